"""A layer of the framework that only reshapes what it is given (``Flatten``): who gave it a wrong thing is to blame."""

from __future__ import annotations

import numpy as np

from padiff.engine.explaining.scenes import Scenes
from padiff.engine.explaining.watched_again import has_own_code
from padiff.records import Call, Fault


def given_to_reshape(fault: Fault, scenes: Scenes) -> Fault | None:
    """The fault of the code that gives such a layer what it returns in another shape, where base's partner does more
    than that; None where the layer, or its class, may be what is wrong."""
    call = fault.raw
    if fault.phase != "forward" or fault.between or not _reshapes(fault, call):
        return None
    live = scenes.job.raw
    if live.tree.nodes[call.node].children or has_own_code(live, call.node):
        return None
    calls = {one.index: one for one in scenes.found.calls}
    inner, outer = call, calls.get(call.parent)
    while outer is not None and call.inputs[0].origin in [slot.origin for slot in outer.inputs]:
        inner, outer = outer, calls.get(outer.parent)
    around = outer
    while around is not None and around.index not in scenes.pairs:
        around = calls.get(around.parent)
    if outer is None or around is None:
        return None
    beside = [one for one in scenes.found.calls if one.parent == outer.index and one.index < inner.index]
    before = beside[-1] if beside else None
    return Fault(
        "forward",
        scenes.pairs[around.index],
        outer,
        fault.comparison,
        between=True,
        before=before,
        after=inner,
        expected=fault.expected,
        found=fault.found,
    )


def _reshapes(fault: Fault, call: Call) -> bool:
    """Whether it returns the numbers that it was given, one after the other, in another shape."""
    if len(call.inputs) != 1 or fault.found is None or call.inputs[0].value.overwritten:
        return False
    given = call.inputs[0].value.numpy()
    if given.shape == fault.found.shape or given.size != fault.found.size:
        return False
    return np.array_equal(given.reshape(-1), fault.found.reshape(-1))
