"""Scores that a mask leaves out: that these are far below zero is all they say."""

from __future__ import annotations

import numpy as np

from padiff.records import Array

MASKED = -5000.0
"""What is added to scores to leave them out is below this, however it is written: -1e4, the smallest number, -inf."""


def masked_alike(base: Array, raw: Array) -> Array:
    """Base's array with raw's numbers where both mask something out."""
    both = _both(base, raw)
    return base if both is None else np.where(both, raw, base)


def without_masked(base: Array, raw: Array) -> tuple[Array, Array] | None:
    """Both with zeros where both mask something out, so that the rest counts; None where nothing is masked."""
    both = _both(base, raw)
    return None if both is None else (np.where(both, 0, base), np.where(both, 0, raw))


def mean_the_same(base: Array, raw: Array) -> bool:
    """Whether two masks leave out the same, though one is written in another dtype: as truth, as 0 and 1, as what is
    added to scores. Shapes may differ by what is repeated."""
    if base.dtype == raw.dtype or not base.size or not raw.size:
        return False
    try:
        base, raw = np.broadcast_arrays(base, raw)
    except ValueError:
        return False
    kept, other = _kept(base), _kept(raw)
    if kept is not None and other is not None:
        return np.array_equal(kept, other)
    exact = base.dtype.kind in "biu" and raw.dtype.kind in "biu"
    return exact and np.array_equal(base, raw)


def contradicts(base: Array, raw: Array) -> bool:
    """Whether both are added to scores, and raw's leaves out what base's leaves in. Shapes may differ by what is
    repeated; that base's leaves out more says nothing, since raw may do that elsewhere."""
    if base.dtype.kind != "f" or raw.dtype.kind != "f" or not base.size or not raw.size:
        return False
    if base.min() > MASKED or raw.min() > MASKED:
        return False
    kept, other = _kept(base), _kept(raw)
    if kept is None or other is None:
        return False
    try:
        return bool((kept & ~other).any())
    except ValueError:  # of shapes that have nothing to do with each other
        return False


def _kept(mask: Array) -> Array | None:
    """What a mask leaves in; None where it is no mask."""
    if mask.dtype.kind not in "biuf":
        return None
    zero = mask == 0
    if mask.dtype.kind == "f" and mask.min() <= MASKED:
        return zero if bool((zero | (mask <= MASKED)).all()) else None
    return ~zero if bool((zero | (mask == 1)).all()) else None


def _both(base: Array, raw: Array) -> Array | None:
    if base.shape != raw.shape or base.dtype != raw.dtype or base.dtype.kind != "f" or not base.size:
        return None
    if base.min() > MASKED or raw.min() > MASKED:
        return None
    found: Array = (base <= MASKED) & (raw <= MASKED)
    return found
