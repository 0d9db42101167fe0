"""Whether gradients that differ still do when the inputs lie a little elsewhere.

The derivative of a ReLU, of a maximum, of a rounding jumps. A number that lies on the jump falls to one side in base
and to the other in raw, by rounding alone, and the gradients differ by any amount: where a norm comes with its
activation, even when both are fed the same. With other inputs other numbers lie there. A fault stays where it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from padiff.capture.one_step import Arguments
from padiff.capture.perturb import changed_arguments
from padiff.engine.free.crossings import FEW
from padiff.engine.inputs import Fresh
from padiff.engine.job import Job
from padiff.records import Array, Comparison, Fault, Numbers

DISTANCE = 1e-2
"""How far the inputs are moved, relative to their size."""
WAVES = 37.0
MANY = 64
MOST = 0.5
"""A number on a kink moves what it is summed with, a row or a channel, and not most of a tensor of so many elements."""
ACROSS = 1e-2
"""How much of what differs may lie across base's gradient, where all of it is off by one factor."""
SOME = 8
"""Nor all of so many."""

BACKWARD = frozenset({"backward", "gradient"})


def may_be_kinks(faults: Iterable[Fault], state: Iterable[Comparison]) -> bool:
    """All that differs are values of gradients, and somewhere not most of them, nor all by one factor: few numbers lie
    on a kink."""
    found = [*(fault.comparison for fault in faults), *(one for one in state if not one.agrees)]
    if not all(one.phase in BACKWARD and one.outcome.reason == "values" for one in found):
        return False
    return any(not (_most_differ(one.outcome.numbers) or _by_one_factor(one.outcome.numbers)) for one in found)


def without_kinks_beside(faults: Sequence[Fault]) -> tuple[Fault, ...]:
    """Where something is wrong in forward, gradients that differ in hardly a number are not asked about: rounding has
    put those on a kink's other side."""
    if all(fault.comparison.phase in BACKWARD for fault in faults):
        return tuple(faults)
    return tuple(fault for fault in faults if not _hardly_differs(fault.comparison))


def _hardly_differs(comparison: Comparison) -> bool:
    numbers = comparison.outcome.numbers
    if comparison.phase not in BACKWARD or comparison.outcome.reason != "values":
        return False
    if numbers is None or numbers.mismatched is None or numbers.size < MANY:
        return False
    return numbers.mismatched <= max(1.0, FEW * numbers.size)


def _most_differ(numbers: Numbers | None) -> bool:
    if numbers is None or numbers.mismatched is None:
        return False
    if numbers.size < MANY:
        return numbers.size >= SOME and numbers.mismatched == numbers.size
    return numbers.mismatched > MOST * numbers.size


def _by_one_factor(numbers: Numbers | None) -> bool:
    """Whether what differs lies along base's gradient, as where all of it is multiplied; half of it may be zero, behind
    a ReLU. What single numbers add lies across it."""
    if numbers is None or not numbers.base_rms > 0.0:
        return False
    apart = numbers.rmse / numbers.base_rms
    return 1.0 - abs(numbers.cosine) < ACROSS * apart**2 / 2


def nudged(job: Job) -> Job | None:
    """The same job with other inputs, near the given ones; None where there is nothing to move."""
    moved = [False]

    def arguments() -> tuple[Arguments, Arguments]:
        base, raw = job.arguments()
        return change(0, base), change(1, raw)

    def change(side: int, given: Arguments) -> Arguments:
        def bent(array: Array) -> Array:
            moved[0] = True
            return _bent(array)

        return changed_arguments((job.base, job.raw)[side], given, bent)

    fresh: Fresh = arguments
    fresh()
    return replace(job, arguments=fresh) if moved[0] else None


def _bent(array: Array) -> Array:
    """Every number moved by what it is: the same in whatever layout."""
    wide = array.astype(np.float64)
    size = float(np.sqrt(np.mean(np.square(wide)))) if wide.size else 0.0
    if not 0.0 < size < np.inf:
        return array
    return (wide + DISTANCE * size * np.sin(WAVES * wide / size)).astype(array.dtype)


def places(faults: Iterable[Fault], state: Iterable[Comparison]) -> set[tuple[str, str]]:
    """Where something differs: the module of raw, or the parameter."""
    return {place_of(fault) for fault in faults} | {(one.raw_path, one.name) for one in state if not one.agrees}


def place_of(fault: Fault) -> tuple[str, str]:
    return fault.comparison.raw_path, fault.comparison.role
