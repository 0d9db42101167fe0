"""Scores that a mask leaves out: that these are far below zero is all they say."""

from __future__ import annotations

import itertools
import math

import ml_dtypes
import numpy as np

from padiff.compare.kinds import kind_of
from padiff.records import MASKED, Array

NEARLY = 0.9
"""Of the least number of a dtype: what is added to it is small beside it."""


def masked_alike(base: Array, raw: Array) -> Array:
    """Base's array with raw's numbers where both mask something out."""
    both = _both(base, raw)
    return base if both is None else np.where(both, raw.astype(base.dtype, copy=False), base)


def without_masked(base: Array, raw: Array) -> tuple[Array, Array] | None:
    """Both with zeros where both mask something out, so that the rest counts; None where nothing is masked."""
    both = _both(base, raw)
    return None if both is None else (np.where(both, 0, base), np.where(both, 0, raw))


def least_alike(base: Array, raw: Array) -> Array:
    """Base's array with raw's numbers where each holds the least number of its own dtype, which are two dtypes."""
    both = _both_least(base, raw)
    return base if both is None else np.where(both, raw.astype(base.dtype), base)


def without_least(base: Array, raw: Array) -> tuple[Array, Array] | None:
    """Both with zeros there, so that the rest counts; None where that is nowhere."""
    both = _both_least(base, raw)
    return None if both is None else (np.where(both, base.dtype.type(0), base), np.where(both, raw.dtype.type(0), raw))


def mean_the_same(base: Array, raw: Array) -> bool:
    """Whether two masks leave out the same, though one is written in another dtype: as truth, as 0 and 1, as what is
    added to scores; or in the same, and repeated. Shapes may differ by what is repeated. Of two of floating numbers,
    both are added, or neither."""
    if (base.dtype, base.shape) == (raw.dtype, raw.shape) or not base.size or not raw.size:
        return False
    if base.dtype.kind == raw.dtype.kind == "f" and _added(base) != _added(raw):
        return False
    levelled = level(base, raw)
    if levelled is None:
        return False
    base, raw = np.broadcast_arrays(*levelled)
    kept, other = _kept(base), _kept(raw)
    if kept is not None and other is not None:
        return np.array_equal(kept, other)
    exact = base.dtype.kind in "biu" and raw.dtype.kind in "biu"
    return exact and np.array_equal(base, raw)


def contradicts(base: Array, raw: Array) -> bool:
    """Whether one is added to scores, the other, too, or says by truth what is left in or what is left out, and raw's
    leaves out what base's leaves in. Shapes may differ by what is repeated; that base's leaves out more says nothing,
    since raw may do that elsewhere."""
    if not base.size or not raw.size or not (_added(base) or _added(raw)):
        return False
    if not all(_added(one) or one.dtype.kind == "b" for one in (base, raw)):
        return False
    kept, other = _kept(base), _kept(raw)
    levelled = None if kept is None or other is None else level(kept, other)
    if levelled is None:
        return False
    ones, others = (_meant(own, mask) for own, mask in zip((base, raw), levelled, strict=True))
    return all(bool((one & ~two).any()) for one in ones for two in others)


def in_another_form(base: Array, raw: Array) -> Array | None:
    """Base's mask, which is added to scores, in the shape of raw's, of ones and zeros that may be meant for the same
    and may be meant to be added, too: both tell the same places apart. None where they don't, or base's says more than
    raw's shape holds."""
    if raw.dtype.kind != "f" or not base.size or not raw.size or not _added(base) or _added(raw):
        return None
    kept, other = _kept(base), _kept(raw)
    levelled = None if kept is None or other is None else level(base, raw)
    if kept is None or other is None or levelled is None or other.all() or not other.any():
        return None
    repeated = [axis for axis, (one, two) in enumerate(zip(*(m.shape for m in levelled), strict=True)) if one > two]
    least = levelled[0].max(axis=tuple(repeated), keepdims=True)
    if not np.array_equal(np.broadcast_to(least, levelled[0].shape), levelled[0]):
        return None
    told = _kept(least)
    if told is None or least.shape != levelled[1].shape:
        return None
    other = other.reshape(told.shape)
    same = np.array_equal(told, other) or np.array_equal(told, ~other)
    return least.reshape(raw.shape).astype(raw.dtype) if same else None


def turned_over(base: Array, raw: Array) -> Array | None:
    """Base's mask of truths, or of ones and zeros, in the shape and dtype of raw's, which says the contrary everywhere:
    one author marks what is left in, the other what is left out, or one of them is wrong. None where raw's says
    anything else."""
    if not base.size or not raw.size or _added(base) or _added(raw) or "b" not in (base.dtype.kind, raw.dtype.kind):
        return None
    kept, other = _kept(base), _kept(raw)
    levelled = None if kept is None or other is None else level(kept, other)
    if levelled is None or levelled[0].shape != levelled[1].shape or not np.array_equal(levelled[0], ~levelled[1]):
        return None
    return levelled[0].reshape(raw.shape).astype(raw.dtype)


def _added(mask: Array) -> bool:
    """Whether it is added to scores."""
    return mask.dtype.kind == "f" and bool(mask.min() <= MASKED)


def _meant(mask: Array, kept: Array) -> list[Array]:
    """What a mask may leave in: of truths, nobody says whether it is these."""
    return [kept, ~kept] if mask.dtype.kind == "b" else [kept]


def level(one: Array, other: Array) -> tuple[Array, Array] | None:
    """Two masks with as many axes each: one may have another of length one, for heads or groups of them, and where it
    stands nothing says but that the least is repeated; or both rows and heads in its first. None where the shapes have
    nothing to do with each other."""
    spare = one.ndim - other.ndim
    if spare < 0:
        turned = level(other, one)
        return None if turned is None else turned[::-1]
    unit = [axis for axis, size in enumerate(one.shape) if size == 1]
    options = [np.squeeze(one, axes) for axes in itertools.combinations(unit, spare)] if spare else [one]
    fitting = [(math.prod(size), place) for place, size in enumerate(_together(o, other) for o in options) if size]
    if fitting:
        return options[min(fitting)[1]], other
    if spare != 1 or one.shape[0] < 2 or other.shape[0] % one.shape[0]:
        return None
    apart = other.reshape(one.shape[0], -1, *other.shape[1:])
    return (one, apart) if _together(one, apart) else None


def _together(one: Array, other: Array) -> tuple[int, ...]:
    """The shape that both have when they are repeated; () where there is none."""
    try:
        return np.broadcast_shapes(one.shape, other.shape)
    except ValueError:
        return ()


def _kept(mask: Array) -> Array | None:
    """What a mask leaves in; None where it is no mask."""
    if mask.dtype.kind not in "biuf":
        return None
    zero = mask == 0
    if mask.dtype.kind == "f" and mask.min() <= MASKED:
        out = mask <= MASKED
        return ~out if bool((zero | out | (mask >= -MASKED)).all()) else None  # far above zero is in, and marked
    return ~zero if bool((zero | (mask == 1)).all()) else None


def _both_least(base: Array, raw: Array) -> Array | None:
    if base.dtype == raw.dtype:
        return None
    both = _both(base, raw)
    if both is None:
        return None
    found: Array = both & _least(base) & _least(raw)
    return found if bool(found.any()) else None


def _least(array: Array) -> Array:
    """Where the least number of its dtype is, or what is left of it once something was added."""
    found: Array = array.astype(np.float64) <= NEARLY * float(ml_dtypes.finfo(array.dtype).min)
    return found


def _both(base: Array, raw: Array) -> Array | None:
    if base.shape != raw.shape or not base.size or any(kind_of(one.dtype).family != "float" for one in (base, raw)):
        return None  # the least number of a narrower dtype is another
    if not (float(base.min()) <= MASKED and float(raw.min()) <= MASKED):
        return None
    found: Array = (base <= MASKED) & (raw <= MASKED)
    return found
