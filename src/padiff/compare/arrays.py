"""Two arrays to one outcome: shape, dtype, NaN and Inf, values, in this order."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import numpy as np

from padiff.compare import words
from padiff.compare.examine import Details, examine
from padiff.compare.kinds import DType, Kind, kind_of, kind_of_pair
from padiff.compare.measure import Sums, lopsided_cosine, measure
from padiff.compare.tolerance import allowed_error, rounding_bound, suggest
from padiff.records import Array, Numbers, Outcome, Tolerance

DOUBT = 1e-4
"""Sums of single-precision blocks are good to about 1e-6: closer to the bound than this, double decides."""
GUARD = 1 - 1e-6
"""An element closer to its bound than this is left to the second look."""


class _Case(NamedTuple):
    """What is compared, and how."""

    base: Array
    raw: Array
    kind: Kind
    tolerance: Tolerance


def compare_arrays(
    base: Array, raw: Array, tolerance: Tolerance, *, detail: bool = False, brief: bool = False
) -> Outcome:
    """How far ``raw`` is from ``base``, and whether ``tolerance`` allows it.

    ``detail`` asks for the mismatch count, relative and ULP differences and the worst place also where the
    arrays agree; where they differ these are given, unless ``brief`` says that nobody will read them.
    NaN and Inf that both sides share are no difference and are left out of the numbers. ``max_rel`` leaves
    out elements whose base is 0, unless all are: then it is inf. In the mode ``mean`` the mismatched elements
    are those over ``atol + rtol * abs(base)``, in ``auto`` those over the allowed root mean square error.
    """
    if base.shape != raw.shape:
        return Outcome("different", "shape", f"shapes differ: base {list(base.shape)}, raw {list(raw.shape)}")
    case = _Case(base, raw, kind_of_pair(base.dtype, raw.dtype), tolerance)
    with np.errstate(all="ignore"):
        same = base.dtype == raw.dtype or (tolerance.narrow > 0 and _both_float(base.dtype, raw.dtype))
        found = _values(case, detail, brief) if same else _other_dtype(case)
    return _complete(found, base.dtype, tolerance)


def judge_sums(sums: Sums, base: DType, raw: DType, tolerance: Tolerance) -> Outcome | None:
    """The outcome of two arrays of which only the sums are at hand; None where their elements must be looked at."""
    kind = kind_of_pair(base, raw)
    same = base == raw or (tolerance.narrow > 0 and _both_float(base, raw))
    numbers = sums.numbers()
    if not same or sums.lopsided or not (sums.peak == 0.0 or sums.trusted):
        return None
    if sums.peak == 0.0:
        return _complete(_equal(kind, numbers), base, tolerance)
    error, allowed = _error_and_bound(kind, tolerance, numbers)
    if error is not None and abs(error - allowed) <= DOUBT * allowed:
        return None
    found = _within(sums, numbers, tolerance, error, allowed)
    return None if found is None else _complete(found, base, tolerance)


def excess_rtol(tolerance: Tolerance) -> float | None:
    """The relative tolerance that every element is held against, where it is; sums then tell the largest excess."""
    return tolerance.rtol * GUARD if tolerance.mode == "strict" and tolerance.rtol > 0 else None


def _complete(found: Outcome, base: DType, tolerance: Tolerance) -> Outcome:
    """With the verdict that a narrower dtype makes, and what was predicted."""
    if tolerance.narrow and found.verdict == "rounding" and _needs_narrow(found, base, tolerance):
        found = dataclasses.replace(found, verdict="precision", message=f"{found.message}; a narrower dtype's")
    if tolerance.predicted is None:
        return found
    return Outcome(  # written out, since it is made for every tensor
        found.verdict,
        found.reason,
        found.message,
        found.numbers,
        found.allowed,
        tolerance.predicted,
        found.suggestion,
        found.layout,
    )


def missing(message: str) -> Outcome:
    """The outcome where one side has no tensor, or not the structure of the other."""
    return Outcome("different", "structure", message)


def _both_float(base: DType, raw: DType) -> bool:
    return kind_of(base).family == kind_of(raw).family == "float"


def _needs_narrow(found: Outcome, base: DType, tolerance: Tolerance) -> bool:
    """Whether the error is more than base's own dtype explains."""
    if found.numbers is None or found.allowed is None:
        return False
    return found.numbers.rmse > found.allowed * kind_of(base).eps / tolerance.narrow


def _other_dtype(case: _Case) -> Outcome:
    """Different in any case; what the values do is worth knowing."""
    found = _values(case, detail=False)
    numbers = found.numbers
    if found.agrees:
        values = "the values are equal" if found.verdict == "equal" else f"the values agree ({case.tolerance})"
    elif found.reason == "values" and numbers and numbers.rmse <= rounding_bound(case.kind, numbers.base_rms):
        values = f"the values agree within the rounding of {case.kind.name}"
    else:
        values = f"and so do the values: {found.message}"
    message = f"dtypes differ: base {case.base.dtype}, raw {case.raw.dtype}; {values}"
    return dataclasses.replace(found, verdict="different", reason="dtype", message=message, suggestion=None)


def _values(case: _Case, detail: bool, brief: bool = False) -> Outcome:
    if case.base.size == 0:
        return Outcome("equal", None, "equal (no elements)", Numbers(0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0, 0.0, 0))
    sums, numbers = _measure(case)
    if sums.lopsided:
        angle = lopsided_cosine(case.base, case.raw, case.kind, sums)
        numbers = dataclasses.replace(numbers, cosine=angle)
    if sums.unlike:
        return _nonfinite(case, numbers)
    if sums.peak == 0.0:
        return _equal(case.kind, numbers)
    error, allowed = _error_and_bound(case.kind, case.tolerance, numbers)
    found = None if detail else _within(sums, numbers, case.tolerance, error, allowed)
    if found is None and brief and error is not None:
        return Outcome("different", "values", "", numbers, allowed)
    return found or _detailed(case, numbers, error, allowed)


def _equal(kind: Kind, numbers: Numbers) -> Outcome:
    ulp = 0 if kind.bits else None
    sizes = (numbers.mean_abs, numbers.base_mean_abs, numbers.rmse, numbers.base_rms, numbers.cosine)
    return Outcome("equal", None, "equal", Numbers(numbers.size, numbers.max_abs, *sizes, 0, 0.0, ulp))


def _within(sums: Sums, numbers: Numbers, tolerance: Tolerance, error: float | None, allowed: float) -> Outcome | None:
    """The outcome where the first look shows that all is within the bound."""
    if not (_surely_within(tolerance, sums) if error is None else error <= allowed < math.inf):
        return None
    shown = None if error is None else allowed
    return Outcome("rounding", None, words.within(numbers, tolerance, error, allowed), numbers, shown)


def _measure(case: _Case) -> tuple[Sums, Numbers]:
    """The first look in the quick type; in the wide one where that cannot tell."""
    base, raw, kind, tolerance = case
    rtol = excess_rtol(tolerance)
    sums = measure(base, raw, kind, kind.quick, rtol)
    numbers = sums.numbers()
    if kind.quick == kind.wide or sums.peak == 0.0:
        return sums, numbers
    error, allowed = _error_and_bound(kind, tolerance, numbers)
    doubtful = error is not None and abs(error - allowed) <= DOUBT * allowed
    if doubtful or not sums.trusted:
        sums = measure(base, raw, kind, kind.wide, rtol)
        numbers = sums.numbers()
    return sums, numbers


def _error_and_bound(kind: Kind, tolerance: Tolerance, numbers: Numbers) -> tuple[float | None, float]:
    """The one error a mode looks at and its bound; None for ``strict``, which looks at every element."""
    if tolerance.mode == "mean":
        return numbers.mean_abs, tolerance.atol + tolerance.rtol * numbers.base_mean_abs
    if tolerance.mode == "auto":
        return numbers.rmse, allowed_error(kind, tolerance, numbers.base_rms)
    return None, 0.0


def _surely_within(tolerance: Tolerance, sums: Sums) -> bool:
    atol = tolerance.atol * GUARD
    return sums.peak <= atol or (tolerance.rtol > 0 and sums.excess <= atol)


def _detailed(case: _Case, numbers: Numbers, error: float | None, allowed: float) -> Outcome:
    base, raw, kind, tolerance = case
    rtol, atol = (0.0, allowed) if tolerance.mode == "auto" else (tolerance.rtol, tolerance.atol)
    quickly = tolerance.mode == "auto" and numbers.max_abs < math.inf
    details = examine(base, raw, kind, rtol, atol, quickly=quickly)
    numbers = _filled(case, numbers, details)
    within = details.mismatched == 0 if error is None else error <= allowed < math.inf
    if error is None:
        place = details.over if details.over >= 0 else details.worst
        allowed = atol + rtol * abs(float(base.flat[place]) if kind.family != "complex" else base.flat[place])
    if within:
        return Outcome("rounding", None, words.within(numbers, tolerance, error, allowed), numbers, allowed)
    message = words.different(base, raw, numbers, details, tolerance, error, allowed)
    return Outcome("different", "values", message, numbers, allowed, suggestion=_suggestion(case, numbers, details))


def _filled(case: _Case, numbers: Numbers, details: Details) -> Numbers:
    """The numbers with what the second look found."""
    worst = words.place(case.base, details.worst) if details.worst >= 0 else None
    return Numbers(  # written out, since it is made for every tensor that differs
        numbers.size,
        details.max_abs,
        numbers.mean_abs,
        numbers.base_mean_abs,
        numbers.rmse,
        numbers.base_rms,
        numbers.cosine,
        details.mismatched,
        details.max_rel,
        details.max_ulp,
        worst,
        None if worst is None else case.base[worst].item(),
        None if worst is None else case.raw[worst].item(),
    )


def _nonfinite(case: _Case, numbers: Numbers) -> Outcome:
    details = examine(case.base, case.raw, case.kind, case.tolerance.rtol, case.tolerance.atol)
    message = words.nonfinite(case.base, case.raw, details)
    return Outcome("different", "nonfinite", message, _filled(case, numbers, details))


def _suggestion(case: _Case, numbers: Numbers, details: Details) -> Tolerance | None:
    """A tolerance that would hold, where the error is what rounding explains."""
    tolerance = case.tolerance
    if tolerance.mode == "auto" or numbers.rmse > rounding_bound(case.kind, numbers.base_rms):
        return None
    if tolerance.mode == "strict":
        return suggest(case.kind, tolerance, details.needed_rtol, details.needed_atol)
    scale = numbers.base_mean_abs
    needed_rtol = (numbers.mean_abs - tolerance.atol) / scale if scale > 0 else math.inf
    return suggest(case.kind, tolerance, needed_rtol, numbers.mean_abs - tolerance.rtol * scale)
