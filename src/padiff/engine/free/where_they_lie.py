"""Two values to one outcome: by a few sums where both lie on one accelerator and agree, by their elements elsewhere."""

from __future__ import annotations

import math

import numpy as np

from padiff.capture.held import measured
from padiff.compare.arrays import excess_rtol, judge_sums
from padiff.compare.layouts import compare_in_any_layout
from padiff.compare.measure import Sums, rms, rms_gap
from padiff.records import Outcome, Tolerance, Value


def compare_values(
    base: Value, raw: Value, tolerance: Tolerance, *, gradients: bool = False, loosely: bool = False
) -> Outcome:
    """Compare; elements are fetched only where sums don't settle it."""
    return compared_there(base, raw, tolerance) or compare_in_any_layout(
        base.numpy(), raw.numpy(), tolerance, gradients=gradients, loosely=loosely
    )


def compared_there(base: Value, raw: Value, tolerance: Tolerance) -> Outcome | None:
    """The outcome where both values lie on one accelerator and agree; None where their elements must be looked at."""
    found = measured(base, raw, excess_rtol(tolerance))
    if found is None:
        return None
    means = found.gap_mean, found.base_mean
    sums = Sums(found.size, found.size, found.peak, *means, found.gap_rms, found.base_rms, found.raw_rms, found.excess)
    return judge_sums(sums, np.dtype(base.dtype), np.dtype(raw.dtype), tolerance)


def size_of(value: Value) -> float:
    """The root mean square of a value."""
    found = measured(value, value)
    return rms(value.numpy()) if found is None else found.base_rms


def gap(base: Value, other: Value) -> float:
    """The root mean square of the difference; infinite where nothing can be predicted."""
    if base.overwritten or other.overwritten or base.shape != other.shape or base.dtype != other.dtype:
        return math.inf
    found = measured(base, other)
    return rms_gap(base.numpy(), other.numpy()) if found is None else found.gap_rms
