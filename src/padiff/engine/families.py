"""Which dtypes are of one family, whatever their width: what of base may take the place of what of raw."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from padiff.records import Array, Value


@cache
def family(dtype: str) -> str:
    """``float`` for all floating numbers, else the dtype's name without its width."""
    return "float" if dtype.startswith(("float", "bfloat")) else dtype.rstrip("0123456789")


def floating(value: Value) -> bool:
    return family(value.dtype) == "float"


def comparable(base: Value, raw: Value) -> bool:
    """A mask may be boolean here and floating there, and say the same."""
    return family(base.dtype) == family(raw.dtype) and math.prod(base.shape) == math.prod(raw.shape)


def may_replace(array: Array | Value, raw: Value) -> bool:
    """Whether an array, or what lies elsewhere, has the shape and family of raw's tensor."""
    return array.shape == raw.shape and _family_of(array.dtype) == family(raw.dtype)


@cache
def _family_of(dtype: np.dtype[Any] | str) -> str:
    return family(str(dtype))
