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


def _both(base: Array, raw: Array) -> Array | None:
    if base.shape != raw.shape or base.dtype != raw.dtype or base.dtype.kind != "f" or not base.size:
        return None
    if base.min() > MASKED or raw.min() > MASKED:
        return None
    found: Array = (base <= MASKED) & (raw <= MASKED)
    return found
