"""What each dtype is: its family, the types it is computed in, and its rounding."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np

from padiff.errors import ArgumentError

Family = Literal["float", "int", "complex"]
DType = np.dtype[Any]

FLOAT32 = np.dtype(np.float32)
FLOAT64 = np.dtype(np.float64)


@dataclass(frozen=True, slots=True)
class Kind:
    """How values of one dtype, or of two mixed ones, are computed with."""

    name: str
    family: Family
    quick: DType
    """Real type of the first look."""
    wide: DType
    """Real type in which doubtful cases are settled."""
    eps: float = 0.0
    """Relative distance of neighbouring values; 0 where values are exact."""
    step: float = 0.0
    """Smallest subnormal: below it rounding is absolute."""
    tiny: float = 0.0
    """Smallest normal value."""
    bits: int = 0
    """Bits that order the values, for ULP distances; 0 where these have no meaning."""
    signed: bool = True


@functools.cache
def kind_of(dtype: DType) -> Kind:
    """The kind of one dtype; raises ArgumentError for what is no number."""
    if dtype.kind in "biu":
        return Kind(dtype.name, "int", FLOAT64, FLOAT64)
    if dtype.kind == "c":
        wide = np.zeros((), np.result_type(dtype, np.complex128)).real.dtype
        info = np.finfo(dtype)
        return Kind(
            dtype.name, "complex", wide, wide, float(info.eps), float(info.smallest_subnormal), float(info.tiny)
        )
    if _has_info(ml_dtypes.finfo, dtype):
        return _float_kind(dtype)
    if _has_info(ml_dtypes.iinfo, dtype):
        return Kind(dtype.name, "int", FLOAT64, FLOAT64)
    raise ArgumentError(
        f"cannot compare arrays of dtype {dtype}: expected booleans, integers, floating or complex numbers"
    )


@functools.cache
def kind_of_pair(base: DType, raw: DType) -> Kind:
    """The kind in which two arrays can be compared: the coarser rounding of the two counts."""
    first, second = kind_of(base), kind_of(raw)
    if base == raw:
        return first
    coarse = max(first, second, key=lambda kind: kind.eps)
    families = {first.family, second.family}
    family: Family = "complex" if "complex" in families else "float" if "float" in families else "int"
    wide = np.result_type(first.wide, second.wide)
    return Kind(coarse.name, family, wide, wide, coarse.eps, max(first.step, second.step), max(first.tiny, second.tiny))


def _float_kind(dtype: DType) -> Kind:
    info: Any = ml_dtypes.finfo(dtype)
    rounding = float(info.eps), float(info.smallest_subnormal), float(info.tiny)
    if dtype.itemsize > FLOAT64.itemsize:
        return Kind(dtype.name, "float", dtype, dtype, *rounding)
    quick = FLOAT64 if dtype == FLOAT64 else FLOAT32
    return Kind(dtype.name, "float", quick, FLOAT64, *rounding, bits=int(info.bits), signed=bool(info.min < 0))


def _has_info(info: Any, dtype: DType) -> bool:
    try:
        info(dtype)
    except ValueError:
        return False
    return True
