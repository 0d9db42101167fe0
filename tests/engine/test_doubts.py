"""What is in doubt, and what dispels it."""

from __future__ import annotations

import numpy as np

from padiff.capture.held import HostValue
from padiff.compare.arrays import missing
from padiff.engine.fed.calls_met import CallsMet
from padiff.engine.fed.doubts import Doubts
from padiff.records import Call, Comparison, Fault, Slot


def call(index: int, parent: int, node: int, path: str) -> Call:
    return Call(index, parent, node, path, "Kind", 0, (), (Slot("", index, HostValue(np.ones(3, "float32"))),))


def doubt(one: Call) -> Fault:
    compared = Comparison("forward", 0, "output", one.path, one.path, "Kind", "Kind", "", missing(""), tensor=one.index)
    return Fault("forward", one, one, compared, expected=np.ones(3, "float32"), found=-np.ones(3, "float32"))


def test_a_layer_that_was_right_after_all_is_in_doubt_no_more() -> None:
    met = CallsMet()
    calls = [call(0, -1, 0, ""), call(1, 0, 1, "encoder"), call(2, 1, 9, "shared")]
    calls += [call(3, 0, 2, "decoder"), call(4, 3, 9, "shared"), call(5, 3, 5, "decoder.other")]
    for one in calls:
        met.began(one, one)
    doubts, (_, encoder, first, _, again, other) = Doubts(met), calls
    doubts.add(first, first, doubt(first), misfed=False)
    assert doubts.left(first.outputs[0], first.outputs[0])
    doubts.outlive(encoder)
    doubts.add(again, again, doubt(again), misfed=False)
    assert not doubts.left(again.outputs[0], again.outputs[0])
    doubts.add(other, other, doubt(other), misfed=False)
    assert doubts.left(other.outputs[0], other.outputs[0])
