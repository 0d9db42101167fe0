"""What is left of gradients that differ only when raw is fed base's tensors."""

from __future__ import annotations

import numpy as np
import pytest

from padiff.compare.arrays import compare_arrays
from padiff.engine.fed.second_look import agreeing_by_themselves, wants_second_look
from padiff.records import Comparison, Tolerance

VALUES = np.linspace(1, 2, 64, dtype="float32")


def gradient(path: str, off: float, allowed: float, size: float = 1.0) -> Comparison:
    """Of a parameter, off by a share of it where so much is predicted."""
    values = VALUES * np.float32(size)
    outcome = compare_arrays(values, values * np.float32(1 + off), Tolerance(mode="auto", predicted=allowed))
    return Comparison("gradient", 0, "parameter", path, path, "Linear", "Linear", "weight", outcome)


FED = [gradient("a", 1e-3, 0.0), gradient("b", 0.0, 0.0)]


@pytest.mark.parametrize(
    ("free", "agree"),
    [
        ([gradient("a", 1e-6, 1e-6), gradient("b", 0.0, 0.0)], True),
        ([gradient("a", 1e-6, 1e-6), gradient("b", 1e-3, 0.0)], False),  # something is wrong: it may be this one
        ([gradient("a", 0.1, 1.0), gradient("b", 0.0, 0.0)], False),  # so much is predicted that it says nothing
        ([gradient("a", 0.1, 1e-8, 1e-9), gradient("b", 0.0, 0.0)], True),  # zero by rights: last digits are left
        ([gradient("b", 0.0, 0.0)], False),
        ([], False),
    ],
)
def test_gradients_that_agree_when_raw_runs_by_itself(free: list[Comparison], agree: bool) -> None:
    assert [one.agrees for one in FED] == [False, True]
    found = list(agreeing_by_themselves(FED, free))
    assert [one.agrees for one in found] == [agree, True]
    assert ("not so when raw runs by itself" in found[0].outcome.message) == agree


@pytest.mark.parametrize(
    ("size", "ratio", "wanted"),
    [(4096, 3.9, False), (4096, 4.1, True), (64, 5.5, True), (16, 7.9, False), (16, 8.1, True), (4, 9.9, False)],
)
def test_how_far_an_output_may_be_from_what_was_predicted(size: int, ratio: float, wanted: bool) -> None:
    """One shaken run tells little of how far rounding moves a few numbers."""
    values = np.linspace(1, 2, size)
    tolerance = Tolerance(mode="auto", predicted=1e-4)
    outcome = compare_arrays(values, values + ratio * 1e-4, tolerance)
    assert outcome.agrees
    assert outcome.ratio == pytest.approx(ratio)
    one = Comparison("forward", 0, "output", "a", "a", "Linear", "Linear", "", outcome)
    assert wants_second_look([one], tolerance) is wanted
