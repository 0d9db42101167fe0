"""Two tensors as heaps of numbers, in whatever order those lie."""

from __future__ import annotations

import math

import numpy as np

from padiff.records import Array


def apart_in_any_order(base: Array, raw: Array) -> float:
    """How far the numbers of two tensors are apart at most when both are sorted, relative to their size; infinite where
    there are not as many of them."""
    if base.size != raw.size or not base.size or base.dtype.kind != "f" or raw.dtype.kind != "f":
        return math.inf
    left, right = np.sort(base, axis=None), np.sort(raw, axis=None)
    gap, size = float(np.abs(left - right).max()), float(np.sqrt(np.mean(np.square(left, dtype=np.float64))))
    return gap / size if size > 0 else math.inf if gap else 0.0
