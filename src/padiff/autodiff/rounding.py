"""Whether a run failed by rounding only, which tolerance would have held, and how the log says so."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from padiff.compare.kinds import kind_of
from padiff.compare.tolerance import round_up, rounding_bound
from padiff.records import Comparison, Tolerance
from padiff.report import Report


def tolerance_that_holds(report: Report, *, own_loss: bool, inner: bool = True) -> Tolerance | None:
    """The bounds under which the last step would have agreed; None when any difference is more than rounding.

    ``own_loss`` says that the user gave loss functions, ``inner`` that what inner layers are given counts.
    """
    step, tolerance = report.last_step, report.tolerance
    found: list[Tolerance] = []
    elsewhere: list[Comparison] = []
    for comparison in step:
        given = (comparison.phase, comparison.role) == ("forward", "input") and comparison.raw_path != ""
        if comparison.agrees or (given and not inner):
            continue
        one = bounds_that_hold(step, comparison, tolerance, own_loss=own_loss)
        if one is not None:
            found.append(one)
        elif given and comparison.outcome.reason == "shape":
            elsewhere.append(comparison)
        else:
            return None
    return widest(found, tolerance) if all(_returns(step, one) for one in elsewhere) else None


def _returns(step: Sequence[Comparison], given: Comparison) -> bool:
    """Whether what a layer returns was compared, of which nothing can be wrong by more than rounding where bounds are
    asked for: one that begins elsewhere, and is given something else for that, says no more."""
    return any(
        (one.phase, one.role) == ("forward", "output") and one.raw_call == given.raw_call and one.raw_call >= 0
        for one in step
    )


def widest(bounds: Sequence[Tolerance], tolerance: Tolerance) -> Tolerance | None:
    """Bounds in the mode of ``tolerance`` that hold wherever one of these does; None of none."""
    if not bounds:
        return None
    return Tolerance(max(one.rtol for one in bounds), max(one.atol for one in bounds), tolerance.mode)


def bounds_that_hold(
    step: Sequence[Comparison], comparison: Comparison, tolerance: Tolerance, *, own_loss: bool
) -> Tolerance | None:
    """Those under which two tensors would agree; None where their difference is more than rounding."""
    one = comparison.outcome.suggestion
    if one is None and comparison.outcome.reason == "values" and _cancelled(step, comparison, own_loss):
        return _wider(comparison, tolerance)
    return one


def said_of_rounding(differing: int, whose: str, found: Tolerance, far: str = "would hold") -> list[str]:
    """The lines of the log where all that differs is rounding, and ``found`` is what would have held."""
    many = "The difference is" if differing == 1 else f"The {differing} differences are all"
    return [
        f"{many} of the size of rounding noise: but for the bounds, the {whose} agree.",
        said_of_bounds(found, far),
    ]


def said_of_bounds(found: Tolerance, far: str = "would hold") -> str:
    """The line with the bounds themselves; ``far`` says how far they are known to hold."""
    return f"    atol={found.atol:g}, rtol={found.rtol:g} (compare_mode={found.mode}) {far}"


def _wider(comparison: Comparison, tolerance: Tolerance) -> Tolerance | None:
    numbers = comparison.outcome.numbers
    if numbers is None or not math.isfinite(numbers.max_abs):
        return None
    return Tolerance(tolerance.rtol, round_up(max(numbers.max_abs, tolerance.atol)), tolerance.mode)


def _cancelled(step: Sequence[Comparison], comparison: Comparison, own_loss: bool) -> bool:
    """A sum whose terms cancel is as noisy as its terms: its own size says nothing about its rounding."""
    if comparison.role == "loss":
        return not own_loss and _mean_of_outputs(step, comparison)
    return comparison.phase == "gradient" and _beside_others(step, comparison)


def _mean_of_outputs(step: Sequence[Comparison], loss: Comparison) -> bool:
    """The means of two outputs are never further apart than the outputs are on average."""
    outputs = [c.outcome for c in step if c.phase == "forward" and c.role == "output" and c.raw_path == ""]
    numbers = [one.numbers for one in outputs if one.numbers is not None and (one.agrees or one.suggestion is not None)]
    apart = loss.outcome.numbers
    if apart is None or not numbers or len(numbers) < len(outputs):
        return False
    return apart.max_abs <= sum(2 * one.mean_abs + 1e-6 * one.base_mean_abs for one in numbers)


def _beside_others(step: Sequence[Comparison], gradient: Comparison) -> bool:
    """Far below the rounding of the same module's other gradients: the bias of an attention's keys has gradient 0."""
    numbers = gradient.outcome.numbers
    others = [
        c.outcome.numbers.base_rms
        for c in step
        if c.phase == "gradient"
        and c.raw_path == gradient.raw_path
        and c is not gradient
        and c.outcome.numbers is not None
        and (c.agrees or c.outcome.suggestion is not None)
    ]
    dtype = gradient.forms[1].partition("[")[0] or "float32"  # what is narrower is bound the more tightly then
    if numbers is None or not others:
        return False
    return numbers.max_abs <= rounding_bound(kind_of(np.dtype(dtype)), max(others))
