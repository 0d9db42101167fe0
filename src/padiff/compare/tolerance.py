"""Which deviation is allowed: what the user may write, and what a dtype's rounding explains."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import ml_dtypes

from padiff.compare.kinds import Kind
from padiff.errors import ArgumentError
from padiff.records import SMALLEST, Calibration, Tolerance

AUTO_FACTORS: dict[str, float] = {
    "float64": 40000.0,
    "float32": 800.0,
    "complex128": 40000.0,
    "complex64": 800.0,
    "float16": 30.0,
    "bfloat16": 30.0,
}
"""How many eps of a dtype the relative error's norm may reach: generous enough for the rounding of a
24-layer transformer between two frameworks."""

COARSE_FACTOR = 2.0
"""For the 8-bit floats and below, whose eps is already a good part of the value."""

FLOOR = 16.0
"""How many eps are allowed where base shows no noise at all: functions are approximated differently."""

COARSE_FLOOR = 2.0
"""The same for dtypes of 16 bits and below, in which nothing is approximated but the result."""

CONSTANTS = 5e-7
"""Relative; for wide dtypes: constants (eps, tables of angles) are kept in float32 more often than not."""

SUMS = 16.0
"""How many times the floor sums and gradients may need: the terms of a long sum are rounded on the way, and what a
saturated function sends back is the small difference of large numbers."""

COARSE_EPS = 1e-4

FEW_DIGITS = 4e-3
"""bfloat16 and below: wide exponents, so that nothing is lost to underflow."""

NARROW_FACTOR = 0.3
"""Of the usual factor, where numbers have few digits, of their own or of a narrower dtype that is imitated: weights
are moved by a whole step of it, and really lose a quarter of one. Over language and vision models in bfloat16 and
float16 the error was 0.2 to 0.7 times what was predicted."""

NARROW_SUMS = 3.0
"""The same as SUMS where few digits are left: sums are made in a wider dtype, and only the result is rounded."""

EXPECTED = (
    '"auto", "exact", a pair (rtol, atol), a padiff.Calibration or a padiff.Tolerance, '
    "with bounds that are finite and not negative"
)


def as_tolerance(value: object) -> Tolerance:
    """What the user wrote for ``tolerance``, as a Tolerance; raises ArgumentError for anything else."""
    if isinstance(value, Tolerance):
        found = value
    elif isinstance(value, str) and value == "auto":
        return Tolerance(mode="auto")
    elif isinstance(value, Calibration):
        return _calibrated(value)
    elif isinstance(value, str) and value == "exact":
        return Tolerance(rtol=0.0, atol=0.0, mode="strict")
    elif isinstance(value, (tuple, list)) and len(value) == 2:
        found = Tolerance(rtol=value[0], atol=value[1], mode="strict")
    else:
        raise _refusal(value)
    if found.mode not in ("mean", "strict", "auto") or not (_is_bound(found.rtol) and _is_bound(found.atol)):
        raise _refusal(value)
    return replace(found, rtol=float(found.rtol), atol=float(found.atol))


def _calibrated(value: Calibration) -> Tolerance:
    if not isinstance(value.runs, int) or isinstance(value.runs, bool) or value.runs < 1:
        raise ArgumentError(f"tolerance: Calibration's runs is {value.runs!r}, expected a whole number of at least 1")
    if not _is_bound(value.factor) or value.factor <= 0:
        raise ArgumentError(f"tolerance: Calibration's factor is {value.factor!r}, expected a number above 0")
    return Tolerance(mode="auto", factor=float(value.factor), runs=value.runs)


def predicting(tolerance: Tolerance, predicted: float, *, sums: bool, atol: float | None = None) -> Tolerance:
    """The tolerance for a tensor whose deviation was measured; written out, since it is made for every tensor."""
    return Tolerance(
        tolerance.rtol,
        tolerance.atol if atol is None else atol,
        tolerance.mode,
        predicted,
        tolerance.narrow,
        tolerance.factor,
        tolerance.runs,
        sums,
    )


def rounding_bound(kind: Kind, base_rms: float) -> float:
    """The root mean square error that rounding explains; 0 for integers, which do not round."""
    factor = AUTO_FACTORS.get(kind.name, COARSE_FACTOR)
    return factor * (kind.eps * base_rms + kind.step)


def allowed_error(kind: Kind, tolerance: Tolerance, base_rms: float) -> float:
    """For ``auto``: the root mean square error that is allowed, by measurement where there is one."""
    if tolerance.predicted is None:
        narrow = AUTO_FACTORS["bfloat16"] * tolerance.narrow * base_rms if tolerance.narrow > kind.eps > 0 else 0.0
        return max(rounding_bound(kind, base_rms), narrow) + tolerance.atol
    eps = max(kind.eps, tolerance.narrow) if kind.eps else 0.0
    sums = SUMS if eps < FEW_DIGITS else NARROW_SUMS
    relative = (FLOOR if eps < COARSE_EPS else COARSE_FLOOR) * eps * (sums if tolerance.sums else 1.0)
    floor = max(relative, CONSTANTS if kind.eps else 0.0) * base_rms
    factor = tolerance.factor * (NARROW_FACTOR if eps >= COARSE_EPS else 1.0)
    return factor * tolerance.predicted + floor + lost_below(kind, tolerance.narrow) + tolerance.atol


def spacing(dtype: str) -> float:
    """The relative distance of neighbouring values of a floating dtype, or of what products are made in."""
    return 2.0**-11 if dtype == "tf32" else float(ml_dtypes.finfo(dtype).eps)


def lost_below(kind: Kind, narrow: float = 0.0) -> float:
    """What is smaller may be lost without a trace: where exponents end, hardware may round to zero, and a norm makes
    what was lost larger again. ``narrow`` is the
    spacing of what numbers were held in on their way, whatever dtype they come in: autocast hands on wide ones."""
    own = kind.tiny / kind.eps if 0 < kind.tiny < 1e-30 else 4 * kind.step
    return max(own, SMALLEST.get(narrow, 0.0))


def suggest(kind: Kind, tolerance: Tolerance, needed_rtol: float, needed_atol: float) -> Tolerance:
    """The tolerance in the same mode that would hold: a larger rtol if a sane one does it, else a larger atol.

    ``needed_rtol`` holds with the given atol, ``needed_atol`` with the given rtol.
    """
    # A base value next to zero can ask for any rtol, which would then excuse every other value too.
    sane_rtol = 10 * AUTO_FACTORS.get(kind.name, COARSE_FACTOR) * kind.eps
    if needed_rtol <= sane_rtol:
        return Tolerance(rtol=round_up(needed_rtol), atol=tolerance.atol, mode=tolerance.mode)
    return Tolerance(rtol=tolerance.rtol, atol=round_up(needed_atol), mode=tolerance.mode)


def round_up(value: float) -> float:
    """The next number with one significant digit; it lies above ``value`` by at least a millionth."""
    if value <= 0.0:
        return 0.0
    value *= 1 + 1e-6
    exponent = math.floor(math.log10(value))
    found = float(f"{math.ceil(value / 10.0**exponent)}e{exponent}")
    # The division may have rounded down onto a whole digit.
    return found if found >= value else float(f"{math.ceil(value / 10.0**exponent) + 1}e{exponent}")


def _is_bound(value: Any) -> bool:
    try:
        return not isinstance(value, (bool, str)) and math.isfinite(value) and value >= 0
    except TypeError:
        return False


def _refusal(value: object) -> ArgumentError:
    return ArgumentError(f"tolerance: got {value!r}, expected {EXPECTED}")
