"""Picks that only rounding decides, put right while a model runs.

A router picks the experts that score highest. Where two of them score the same but for rounding, another pick is as
right, and all that follows differs by any amount. So base's picks are noted with the scores they were made by, and a
run whose scores agree with base's, and which picks otherwise only where those tie, goes on with base's picks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from padiff.capture.jitter import spacing_of
from padiff.capture.recomputing import in_checkpoint
from padiff.frameworks.picks import Picked, Told
from padiff.records import Array

CLOSE = 4.0
"""How many times what shaking moves scores, root mean square, another run's may be apart from base's."""
TIE = 10.0
"""How many times that two scores of base may be apart, of which either may be picked."""
DIGITS = 1.0
"""The least that scores are uncertain by, in units of the last place of the largest in a row of them."""
MOST = 1 << 24
"""Picks among more numbers than this are left alone: they would have to be kept."""


@dataclass(frozen=True, slots=True)
class Noted:
    """What base picked, in rows: one for each choice."""

    scores: Array
    indices: Array
    largest: bool
    ordered: bool


class Picks:
    """Base's picks of one step, and what becomes of others' beside them."""

    def __init__(self) -> None:
        self._noted: list[Noted] = []
        self._gaps: dict[int, float] = {}
        """By the number of the pick, how far shaking moves its scores."""
        self._narrow = 0.0
        self._shaken = False
        self._waits = False
        self._early: list[Picked] = []
        """What raw has picked in a run that did not know yet how far rounding moves base's scores."""
        self.mended = 0
        """Rows in which raw went on with base's picks, in its last run."""

    @contextmanager
    def shaking(self, narrow: float) -> Iterator[None]:
        """Inside, base runs with its last digits shaken; ``narrow`` is the spacing of a narrower dtype than its own."""
        self._narrow, self._shaken = narrow, True
        try:
            yield
        finally:
            self._shaken = False

    def wait(self) -> None:
        """Raw's next run is over before base is shaken: what it picks is remembered."""
        self._waits = True

    def left_ties(self) -> bool:
        """Whether that run would have gone on with base's picks where it did not, now that base has been shaken."""
        free, early, self._early = list(range(len(self._noted))), self._early, []
        found = [self._either(free, picked) for picked in early]
        return any(one is not None for one in found)

    def of(self, side: str) -> Told:
        """Who is told of a run of one of the models."""
        return self._of_base() if side == "base" else self._of_raw()

    def _of_base(self) -> Told:
        if self._shaken:
            self._gaps = {}
            numbers = iter(range(len(self._noted)))
            return lambda picked: self._keep(next(numbers, None), picked)
        self._noted = []
        return self._note

    def _of_raw(self) -> Told:
        waits, self._waits, self._early, self.mended = self._waits, False, [], 0
        free = list(range(len(self._noted)))

        def told(picked: Picked) -> None:
            right = self._put_right(free, picked)
            if waits and picked.scores.size <= MOST and not in_checkpoint():
                self._early.append(replace(picked, indices=right, put=_nowhere))

        return told

    def _note(self, picked: Picked) -> None:
        small = picked.scores.size <= MOST
        scores = _rows(picked.scores, picked.axis) if small else np.empty((0, 0))
        self._noted.append(Noted(scores, _rows(picked.indices, picked.axis), picked.largest, picked.ordered))

    def _keep(self, number: int | None, picked: Picked) -> None:
        """Shaken, base picks what it picked: what jumps for another pick says nothing of rounding."""
        if number is None:
            return
        noted, scores = self._noted[number], _rows(picked.scores, picked.axis)
        if not _alike(noted, picked, scores):
            return
        self._gaps[number] = _apart(noted.scores, scores)
        if not (np.array_equal(noted.indices, _rows(picked.indices, picked.axis)) or in_checkpoint()):
            picked.put(_unrowed(noted.indices, picked))

    def _put_right(self, free: list[int], picked: Picked) -> Array:
        """Has raw go on with base's picks where scores tie; returns what it goes on with."""
        either = self._either(free, picked)
        if either is None or in_checkpoint():  # which would pick otherwise when it runs again
            return picked.indices
        noted, rows = either
        self.mended += int(np.count_nonzero(rows))
        right = _unrowed(np.where(rows[:, None], noted.indices, _rows(picked.indices, picked.axis)), picked)
        picked.put(right)
        return right

    def _either(self, free: list[int], picked: Picked) -> tuple[Noted, Array] | None:
        """The first of base's picks that is made by the same scores, and the rows in which that one is as right; None
        where raw is left as it is."""
        scores, indices = _rows(picked.scores, picked.axis), _rows(picked.indices, picked.axis)
        for number in free:
            noted = self._noted[number]
            if not _alike(noted, picked, scores):
                continue
            step = max(self._narrow, spacing_of(picked.scores.dtype, constants=False)) * DIGITS
            least, moved = step * _largest(noted.scores), self._gaps.get(number, 0.0)
            if not _apart(noted.scores, scores) <= CLOSE * moved + _rms(least):
                continue
            free.remove(number)
            other = (indices != noted.indices).any(-1)
            rows = other & (_between(noted, picked, indices) <= TIE * moved + 2.0 * least[:, 0])
            return (noted, rows) if rows.any() else None
        return None


def _nowhere(others: Array) -> None:
    """What is over stays as it was."""


def _alike(noted: Noted, picked: Picked, scores: Array) -> bool:
    """Whether both pick as many of as many, from the same end."""
    count = picked.indices.shape[picked.axis]
    return noted.scores.shape == scores.shape and noted.indices.shape[-1] == count and noted.largest == picked.largest


def _between(noted: Noted, picked: Picked, indices: Array) -> Array:
    """How far what raw picks is by base's scores from what base picks, row by row."""
    found = [np.take_along_axis(noted.scores, one, -1) for one in (noted.indices, indices)]
    if not (noted.ordered and picked.ordered):
        found = [np.sort(one, -1) for one in found]
    with np.errstate(invalid="ignore"):
        apart = np.where(found[0] == found[1], 0.0, np.abs(found[0] - found[1]))
    furthest: Array = np.where(np.isnan(apart), np.inf, apart).max(-1)
    return furthest


def _apart(one: Array, other: Array) -> float:
    """How far scores are apart; what one side leaves out altogether the other must."""
    finite = np.isfinite(one)
    if not np.array_equal(finite, np.isfinite(other)):
        return math.inf
    return _rms(one[finite] - other[finite])


def _largest(scores: Array) -> Array:
    found: Array = np.abs(np.where(np.isfinite(scores), scores, 0.0)).max(-1, keepdims=True)
    return found


def _rms(array: Array) -> float:
    return float(np.sqrt(np.mean(np.square(array)))) if array.size else 0.0


def _rows(array: Array, axis: int) -> Array:
    """One row for each choice; numbers are as wide as they need to be for a difference."""
    rows = np.moveaxis(array, axis, -1).reshape(-1, array.shape[axis])
    return rows.astype(np.float64) if rows.dtype.kind not in "iu" else rows


def _unrowed(rows: Array, picked: Picked) -> Array:
    shape = np.moveaxis(picked.indices, picked.axis, -1).shape
    return np.ascontiguousarray(np.moveaxis(rows.reshape(shape), -1, picked.axis))
