"""Numbers moved by one unit in their last place, up or down at random: what stands for rounding."""

from __future__ import annotations

import functools
from typing import Any

import ml_dtypes
import numpy as np

from padiff.capture.held import Held
from padiff.records import SMALLEST, Array, Moves

FEW = 64
"""Elements that usually tell whether all are whole."""
LARGEST = 1e30
"""Masks hold the largest number there is, which must not overflow."""
_FEWEST = 2.0**-10
"""Of the smallest number that has all its digits, what the least is."""
_CONSTANTS = 3e-8
"""In wide dtypes the steps are larger than rounding: constants and tables are kept in float32 more often than not."""
_PERIOD = 65_521
"""Signs are drawn once and used over and over; a prime, so that they fall differently into every row."""


class Jitter:
    """Moves numbers up or down by a relative step, at random, the same way for the same seed."""

    def __init__(self, step: float | None = None, seed: int = 0) -> None:
        self._step = step
        """None for the spacing of each tensor's own dtype."""
        self._least = SMALLEST.get(step or 0.0, 0.0)
        self._signs = np.random.default_rng(seed).integers(0, 2, _PERIOD).astype(np.float64) * 2 - 1
        self._offset = 0
        self.cancelled = False
        """Whether something was moved that is left of larger numbers (see ``capture.cancelling``)."""
        self._made: dict[tuple[float, np.dtype[Any]], tuple[Array, dict[Any, Any]]] = {}

    def moves(self, dtype: np.dtype[Any], step: float | None = None, *, trained: bool = False) -> Moves:
        """How the next tensor of a dtype is moved: from another place of the signs each time."""
        own = spacing_of(dtype)
        key = max(own, step or self.narrow), np.dtype(np.float64 if dtype.itemsize == 8 else np.float32)
        if key not in self._made:
            once = 1.0 + key[0] * self._signs
            self._made[key] = np.concatenate((once, once)).astype(key[1]), {}
        factors, lent = self._made[key]
        self._offset = (self._offset + 7919) % _PERIOD
        least = self._least if own < self.narrow else 0.0
        return Moves(factors, lent, self._offset, LARGEST, least, least / _FEWEST, exact=not trained)

    @property
    def narrow(self) -> float:
        """The least relative step, 0 where there is none beside the dtypes' own."""
        return self._step or 0.0

    def signs(self, size: int) -> Array:
        """One up or down for each of so many numbers, from another place each time."""
        self._offset = (self._offset + 7919) % _PERIOD
        return np.resize(np.roll(self._signs, -self._offset), size)

    def step_of(self, dtype: np.dtype[Any]) -> float:
        """How far numbers of a dtype are moved, relative to themselves."""
        return max(spacing_of(dtype), self._step or 0.0)

    def __call__(self, array: Array, step: float | None = None, *, trained: bool = False) -> Array:
        """The array with every finite number moved. Integers stay, and so does what holds whole numbers only, unless
        it is ``trained``: masks and counts are exact."""
        own = spacing_of(array.dtype)
        if own == 0.0 or array.size == 0 or (not trained and whole(array)):
            return np.array(array)
        moves = self.moves(array.dtype, step, trained=trained)
        factors, work = moves.once, moves.factors.dtype
        flat = np.ascontiguousarray(array).reshape(-1).astype(work, copy=False)
        moved = np.empty(flat.shape, work)
        with np.errstate(all="ignore"):
            for start in range(0, flat.size, _PERIOD):
                block, into = flat[start : start + _PERIOD], moved[start : start + _PERIOD]
                if not (block.max() < LARGEST and block.min() > -LARGEST):
                    np.copyto(into, block)
                    np.multiply(block, factors[: block.size], out=into, where=np.abs(block) < LARGEST)
                else:
                    np.multiply(block, factors[: block.size], out=into)
        if moves.least:
            _lose_below(moves, moved)
        return moved.astype(array.dtype, copy=False).reshape(array.shape)

    def there(self, value: Held) -> Held | Array:
        """The same where the numbers lie."""
        moved = value.moved(lambda: self.moves(np.dtype(value.dtype)))
        return self(value.numpy()) if moved is None else moved


def _lose_below(moves: Moves, moved: Array) -> None:
    """Small numbers as they are where exponents end: whole multiples of the least there is."""
    with np.errstate(all="ignore"):
        small = np.abs(moved) < moves.coarse
        moved[small] = np.rint(moved[small] / moves.least) * moves.least


def whole(array: Array) -> bool:
    """Whether all numbers are whole; the first few usually tell."""
    flat = array.reshape(-1)
    for part in (flat[:FEW], flat):
        with np.errstate(all="ignore"):
            finite = part[np.abs(part) < LARGEST].astype(np.float64)
            if not np.array_equal(finite, np.rint(finite)):
                return False
    return True


@functools.cache
def spacing_of(dtype: np.dtype[Any], *, constants: bool = True) -> float:
    """The relative step that stands for rounding in a dtype, and in ``constants`` beside it; 0 where numbers are
    exact."""
    try:
        return max(float(ml_dtypes.finfo(dtype).eps), _CONSTANTS if constants else 0.0)
    except (ValueError, TypeError):
        return 0.0
