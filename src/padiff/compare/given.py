"""Where another dtype is no difference, as long as the values are the same: in what is given, and in what is kept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from padiff.compare.arrays import compare_arrays
from padiff.compare.masks import mean_the_same, without_least, without_masked
from padiff.records import Array, Outcome, Tolerance, Value

MOST_MASK = 1 << 22
"""Elements of a tensor that is asked whether it is a mask."""

_MEASURED = ("float", "bfloat", "complex")


def as_given(base: Value, raw: Value, outcome: Outcome) -> Outcome:
    """The outcome for an input. It may be ones and zeros on one side, trues and falses or 1.0 and 0.0 on the other: how
    it is used shows in what is returned. Two dtypes of measured numbers are no such thing: they round differently."""
    if outcome.reason != "dtype" or outcome.numbers is None or outcome.numbers.max_abs:
        return outcome
    if base.dtype.startswith(_MEASURED) and raw.dtype.startswith(_MEASURED):
        return outcome
    return replace(outcome, verdict="equal", reason=None)


def as_masks(base: Array, raw: Array, outcome: Outcome) -> Outcome:
    """The outcome for an input that leaves out the same on both sides, each with the least number of its own dtype."""
    if outcome.agrees or base.size > MOST_MASK or not all(_measured(array) for array in (base, raw)):
        return outcome
    known = base.dtype != raw.dtype and _alike(base.astype(np.float64), raw.astype(np.float64))
    return replace(outcome, verdict="equal", reason=None) if known else outcome


def beside_the_least(base: Array, raw: Array, outcome: Outcome, tolerance: Tolerance) -> Outcome:
    """The outcome for scores of two dtypes, where each side leaves out with the least number of its own: that of the
    rest."""
    rest = None if outcome.agrees else without_least(base, raw)
    return outcome if rest is None else compare_arrays(*rest, replace(tolerance, predicted=None))


def beside_the_masked(base: Array, raw: Array, outcome: Outcome, tolerance: Tolerance) -> Outcome:
    """The outcome for scores to which each side adds its own number where something is left out: that of the rest."""
    rest = None if outcome.agrees else without_masked(base, raw)
    return outcome if rest is None else compare_arrays(*rest, replace(tolerance, predicted=None))


def leave_out_alike(base: Array, raw: Array) -> bool:
    """Whether two tensors differ in the numbers alone with which they leave something out, and in what is repeated."""
    if base.size > MOST_MASK or not all(_measured(array) for array in (base, raw)):
        return False
    return _alike(base, raw) if base.shape == raw.shape else mean_the_same(base, raw)


def _measured(array: Array) -> bool:
    return str(array.dtype).startswith(_MEASURED[:2])


def _alike(base: Array, raw: Array) -> bool:
    """Two masks, once both are of one dtype."""
    left = without_masked(base, raw)
    return left is not None and np.array_equal(*left)


def as_kept(base: Array, raw: Array, outcome: Outcome) -> Outcome:
    """The outcome for a buffer. Whole numbers may be floats on one side: paddle casts them when a model is cast."""
    if outcome.reason != "dtype" or outcome.numbers is None or outcome.numbers.max_abs:
        return outcome
    whole = [array.dtype.kind in "iu" for array in (base, raw)]
    return outcome if all(whole) or not any(whole) else replace(outcome, verdict="equal", reason=None)
