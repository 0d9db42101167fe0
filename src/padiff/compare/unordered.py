"""Two tensors as heaps of numbers, in whatever order those lie."""

from __future__ import annotations

import math

import numpy as np

from padiff.compare.kinds import kind_of
from padiff.records import Array


def apart_in_any_order(base: Array, raw: Array) -> float:
    """How far the numbers of two tensors are apart at most when both are sorted, relative to their size; infinite where
    there are not as many of them."""
    if base.size != raw.size or not base.size or any(kind_of(one.dtype).family != "float" for one in (base, raw)):
        return math.inf
    left, right = (np.sort(one if one.dtype.kind == "f" else one.astype(np.float32), axis=None) for one in (base, raw))
    gap, size = float(np.abs(left - right).max()), float(np.sqrt(np.mean(np.square(left, dtype=np.float64))))
    return gap / size if size > 0 else math.inf if gap else 0.0
