"""Numbers that rounding has put on the other side of zero, and the gradients that jump for it.

What a ReLU lets through in base and not in raw changes the gradient of that number by all it is, and all gradients
before it by any amount. Both sides' outputs are at hand while raw runs, so that such numbers are known when backward
comes to them. Where they are all that differs in a gradient, raw goes on with base's in their places, and what comes
before is compared as if nothing had happened. No second run has to tell.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from padiff.compare.arrays import compare_arrays
from padiff.records import Array, Outcome, Tolerance

FEW = 1e-3
"""Share of a tensor's numbers that rounding may put on the other side; of small tensors one."""
SAMPLED = 64
"""Numbers that tell whether a tensor was rectified."""


class Crossings:
    """Is shown what both models return, and later the gradients of it."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, ...], list[Array]] = {}
        """Shape to the numbers of a tensor that crossed, in C order."""
        self.of_tensors: dict[tuple[int, int], Array] = {}
        """The same by the numbers of base's and raw's tensor, where those were told."""
        self.mended = 0
        """Gradients in which raw went on with base's numbers."""

    def look(self, base: Array, raw: Array, numbers: tuple[int, int] | None = None) -> None:
        """Two tensors that agree: what is zero in one of them only?"""
        if base.shape != raw.shape or base.dtype.kind != "f" or not _rectified(base):
            return
        crossed = (base > 0) != (raw > 0)
        if crossed.any() and np.count_nonzero(crossed) <= max(1.0, FEW * base.size):
            places = np.flatnonzero(crossed)
            self._places.setdefault(raw.shape, []).append(places)
            if numbers is not None:
                self.of_tensors[numbers] = places

    def of_side(self, side: int) -> dict[int, Array]:
        """The tensors of one side, 0 for base, in which something crossed, by their numbers."""
        found: dict[int, Array] = {}
        for numbers, places in self.of_tensors.items():
            known = found.get(numbers[side])
            found[numbers[side]] = places if known is None else np.union1d(known, places)
        return found

    def concern(self, shape: tuple[int, ...]) -> bool:
        """Whether a gradient of this shape may have jumped."""
        return shape in self._places

    def put_right(self, base: Array, other: Array) -> Array | None:
        """A gradient with base's numbers in all places that crossed; None where there are none of its shape."""
        if base.shape != other.shape or not self.concern(other.shape):
            return None
        found = np.array(other)
        for places in self._places[other.shape]:
            index = np.unravel_index(places, other.shape)
            found[index] = base[index]
        return found

    def compare(self, base: Array, raw: Array, outcome: Outcome, tolerance: Tolerance) -> tuple[Outcome, Array | None]:
        """What is left of a difference of gradients, and what raw is to go on with; None for what it has."""
        if base.shape != raw.shape or outcome.reason not in (None, "values") or outcome.verdict == "equal":
            return outcome, None
        found = np.array(raw)
        changed = 0
        for places in self._places.get(raw.shape, ()):
            index = np.unravel_index(places, raw.shape)
            apart = np.abs(base[index] - found[index]) > (outcome.allowed or 0.0)
            if apart.any():
                index = tuple(axis[apart] for axis in index)
                found[index] = base[index]
                changed += int(np.count_nonzero(apart))
        left = compare_arrays(base, found, tolerance) if changed else outcome
        if not changed or not left.agrees:
            return outcome, None
        self.mended += 1
        many = "a number" if changed == 1 else f"{changed} numbers"
        message = f"{left.message}; without {many} that rounding put on the other side of a kink"
        return replace(left, message=message), found


def _rectified(array: Array) -> bool:
    """Whether some of it looks as if all that is negative had been set to zero."""
    if not array.size:
        return False
    sample = array.reshape(-1) if array.flags.c_contiguous else array.flat
    return bool(np.min(sample[:: max(1, array.size // SAMPLED)]) == 0)
