"""Errors that all go one way: rounding to few digits is to either side, a wrong factor or offset is not."""

from __future__ import annotations

import numpy as np

from padiff.compare.kinds import kind_of
from padiff.compare.tolerance import lost_below
from padiff.records import Array, Tolerance

LEAST = 32
"""Elements; of fewer, rounding may well go one way."""
STEPS = 1.0
"""Of the narrower dtype, by which everything may be off. A constant kept in it is off by a half. Over language and
vision models in bfloat16 and float16 no call was off by more than a third."""
SHARE = 0.7
"""Of what was predicted; where that is more, something in the call makes rounding grow."""
FEWEST_DIGITS = 2.0**-10
"""float16 and bfloat16. What products are made in (tf32) may be cut off instead of rounded."""


def leaning(base: Array, raw: Array, tolerance: Tolerance) -> str:
    """By what raw is off as a whole, in words; "" where its errors are as much to one side as to the other, and where
    neither a narrower dtype was meant to be the reason for them nor both have so few digits themselves."""
    kinds = [kind_of(array.dtype) for array in (base, raw)]
    if any(kind.family != "float" for kind in kinds):
        return ""
    narrow = max(tolerance.narrow, min(kind.eps for kind in kinds))
    if tolerance.mode != "auto" or narrow < FEWEST_DIGITS or base.shape != raw.shape or base.size < LEAST:
        return ""
    one, other = base.astype(np.float64), raw.astype(np.float64)
    if not (np.isfinite(one).all() and np.isfinite(other).all()):
        return ""
    size = float(np.sqrt(np.mean(np.square(one))))
    lost = max(map(lost_below, kinds))
    most = max(STEPS * narrow * size, SHARE * (tolerance.predicted or 0.0)) + lost
    gap = other - one
    factor = float(np.mean(gap * one)) / size**2 if size > 0 else 0.0
    if abs(factor) * size > most:
        return f"all of it is base's times {1 + factor:.4g}, and rounding goes either way"
    offset = float(np.mean(gap))
    return f"all of it is base's plus {offset:.4g}, and rounding goes either way" if abs(offset) > most else ""
