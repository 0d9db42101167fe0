"""What tensors hold, in whatever order: by that one is known again elsewhere, in another shape."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from padiff.engine.families import floating
from padiff.engine.fed.calls_met import outward, parents_of
from padiff.records import Array, Call, Slot, StepTrace

LEAST = 8
"""Elements of a tensor that is told from others by its numbers."""
_MARKS = 33
_NEAR = 1e-4
"""How far such numbers may lie apart, relative to their size: rounding is less, another tensor's are more."""


class Prints:
    """What tensors hold, in whatever order: how many numbers, and the marks that cut them, sorted, into equal parts."""

    def __init__(self) -> None:
        self._known: dict[int, list[Array]] = {}

    def add(self, array: Array) -> None:
        """Keep a tensor's, unless one that holds the same is known."""
        marks = _marks(array)
        if marks is not None and not self._find(array.size, marks):
            self._known.setdefault(array.size, []).append(marks)

    def shared(self, other: Prints) -> int:
        """How many of these another has, too."""
        return sum(other._find(size, marks) for size, known in self._known.items() for marks in known)

    def hold(self, array: Array) -> bool:
        """Whether there is a tensor of the same numbers."""
        marks = _marks(array)
        return marks is not None and self._find(array.size, marks)

    def _find(self, size: int, marks: Array) -> bool:
        scale = float(np.sqrt(np.mean(marks**2)))
        return any(float(np.abs(one - marks).max()) <= _NEAR * scale for one in self._known.get(size, ()))


def _marks(array: Array) -> Array | None:
    if array.size < LEAST or not np.isfinite(array).all():
        return None
    ordered = np.sort(array, axis=None).astype(np.float64)
    if ordered[0] == ordered[-1]:
        return None
    marks: Array = ordered[np.linspace(0, array.size - 1, _MARKS).round().astype(int)]
    return marks


def told_apart(slots: Iterable[Slot]) -> Iterator[Slot]:
    """Those whose numbers tell them from others."""
    for slot in slots:
        if floating(slot.value) and not slot.value.overwritten and math.prod(slot.value.shape) >= LEAST:
            yield slot


def goes_on_from(trace: StepTrace, outer: Call, array: Array) -> bool:
    """Whether a call made inside of another is given these numbers."""
    known, parents = Prints(), parents_of(trace.calls)
    for call in trace.calls:
        if call.index != outer.index and outer.index in outward(call.index, parents):
            for slot in told_apart(call.inputs):
                known.add(slot.value.numpy())
    return known.hold(array)


def rows_among(base: Array, raw: Array) -> bool:
    """Whether all rows of one, fewer than the other's, are among the other's, but for rounding."""
    if not base.ndim or not raw.ndim or base.shape[-1] != raw.shape[-1] or raw.size >= base.size or raw.shape[-1] < 2:
        return False
    ours, theirs = (array.reshape(-1, array.shape[-1]).astype(np.float64) for array in (base, raw))
    known = np.sort(ours @ np.linspace(-1.0, 1.5, base.shape[-1]))
    wanted = theirs @ np.linspace(-1.0, 1.5, base.shape[-1])
    after = np.searchsorted(known, wanted).clip(1, len(known) - 1)
    apart = np.minimum(np.abs(known[after] - wanted), np.abs(known[after - 1] - wanted))
    return bool((apart <= _NEAR * np.sqrt((ours**2).sum(-1).mean())).all())


def other_numbers(base: Sequence[Array], raw: Sequence[Array]) -> bool:
    """Whether tensors hold as many numbers as others, and not the same."""
    ours, theirs = (np.concatenate([array.reshape(-1) for array in arrays]) for arrays in (base, raw))
    known = Prints()
    known.add(ours)
    return ours.size == theirs.size and not known.hold(theirs)
