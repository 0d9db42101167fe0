"""Calls that are given base's numbers in another order and return them so: what belongs to them is no difference."""

from __future__ import annotations

import numpy as np
import pytest

from padiff.capture.held import HostValue
from padiff.compare.arrays import compare_arrays
from padiff.engine.free.reordered import Reordered
from padiff.records import Array, Call, Comparison, Outcome, Slot, Tolerance

RNG = np.random.default_rng(0)
GIVEN = RNG.standard_normal((16, 8)).astype("float16")
ORDER = RNG.permutation(16)
CLOSE, LOOSE = (Tolerance(mode="auto", predicted=predicted) for predicted in (1e-5, 1e-2))


def call(index: int, given: Array, returned: Array) -> Call:
    slots = (Slot("0", 2 * index, HostValue(given)),), (Slot("", 2 * index + 1, HostValue(returned)),)
    return Call(index, -1, 0, "attn", "Attention", 0, *slots)


def left(given: Array, returned: Array, raw_returned: Array, tolerance: Tolerance, ends: set[int]) -> int:
    """How many comparisons of a call are left whose first input is in another order."""
    base, raw = call(0, given, returned), call(1, given[ORDER], raw_returned)
    outcome = compare_arrays(returned, raw_returned, tolerance)
    found = Reordered()

    def compared(one: Slot, other: Slot) -> Outcome:
        return compare_arrays(one.value.numpy(), other.value.numpy(), tolerance)

    found.see(base, raw, {(1, 3): outcome}, compared)
    told = Comparison("forward", 0, "input", "attn", "attn", "Attention", "Attention", "0", outcome, 0, 1)
    return len(found.left_out([told], ends))


@pytest.mark.parametrize(
    ("spread", "tolerance", "ends", "kept"),
    [
        (1.0, CLOSE, {1}, 0),
        (1.0, CLOSE, set(), 1),  # somebody after it may have taken up the wrong order
        (0.02, LOOSE, set(), 0),  # in any order what it returns is within rounding, and only its input shows
        (0.0, LOOSE, set(), 1),  # the same in any order: what it is given is another matter
    ],
)
def test_what_is_left(spread: float, tolerance: Tolerance, ends: set[int], kept: int) -> None:
    returned = (1.0 + spread * RNG.standard_normal((16, 8))).astype("float16")
    assert left(GIVEN, returned, returned[ORDER], tolerance, ends) == kept


def test_other_numbers_are_no_other_order() -> None:
    returned = (1.0 + 0.02 * RNG.standard_normal((16, 8))).astype("float16")
    assert left(GIVEN, returned, (returned[ORDER] * np.float16(1.01)), LOOSE, set()) == 1
