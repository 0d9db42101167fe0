"""The same elements in another arrangement: axes of length one, axes in another order, axes merged."""

from __future__ import annotations

import itertools
import math

from padiff.compare.arrays import compare_arrays
from padiff.records import Array, Outcome, Tolerance

_MOST_AXES = 5


def compare_in_any_layout(base: Array, raw: Array, tolerance: Tolerance) -> Outcome:
    """Compare; where the shapes differ, look for an arrangement of base in raw's shape that agrees, and state it."""
    outcome = compare_arrays(base, raw, tolerance)
    if outcome.reason != "shape" or base.size != raw.size or not base.size:
        return outcome
    for change, arranged in _arrangements(base, raw.shape):
        found = compare_arrays(arranged, raw, tolerance)
        if found.agrees:
            return Outcome(found.verdict, None, f"{found.message}; base {change}", found.numbers, found.allowed)
    return outcome


def _arrangements(base: Array, shape: tuple[int, ...]) -> list[tuple[str, Array]]:
    found: list[tuple[str, Array]] = []
    plain = [size for size in base.shape if size != 1]
    wanted = [size for size in shape if size != 1]
    if plain == wanted:
        return [(f"reshaped from {list(base.shape)}", base.reshape(shape))]
    if sorted(plain) == sorted(wanted) and len(plain) <= _MOST_AXES:
        squeezed = base.reshape(plain)
        for order in itertools.permutations(range(len(plain))):
            if [plain[axis] for axis in order] == wanted and list(order) != sorted(order):
                found.append((f"with axes permuted to {list(order)}", squeezed.transpose(order).reshape(shape)))
    if len(plain) != len(wanted) and math.prod(plain) == math.prod(wanted):
        found.append((f"reshaped from {list(base.shape)}", base.reshape(shape)))
        if len(plain) >= 2:
            swapped = base.reshape(plain).swapaxes(0, 1)
            found.append((f"with its first axes swapped, reshaped from {list(base.shape)}", swapped.reshape(shape)))
    return found
