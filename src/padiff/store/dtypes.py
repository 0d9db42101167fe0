"""Which dtypes a dump can hold, and how each is kept in a safetensors file."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from padiff.errors import ArgumentError
from padiff.records import Array

DType = np.dtype[Any]


class Kept(NamedTuple):
    """How the elements of one dtype lie in a file."""

    name: str
    """The dtype's name in numpy and ml_dtypes."""
    code: str
    """Its name in safetensors."""
    dtype: DType
    """How numpy reads the elements, little-endian."""
    parts: int = 1
    """Stored numbers for each element; 2 for complex, as one more axis at the end."""
    spelled: bool = False
    """Whether a view of Python's knows the dtype, too."""


_PLAIN = {
    "bool": "BOOL",
    "int8": "I8",
    "uint8": "U8",
    "int16": "I16",
    "uint16": "U16",
    "int32": "I32",
    "uint32": "U32",
    "int64": "I64",
    "uint64": "U64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}
"""Dtypes that every version of safetensors knows."""
_AS_PAIRS = {"complex64": "F32", "complex128": "F64"}
_AS_BYTES = (
    "float8_e4m3",
    "float8_e4m3fnuz",
    "float8_e4m3b11fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float8_e3m4",
    "float6_e2m3fn",
    "float6_e3m2fn",
    "float4_e2m1fn",
    "int4",
    "uint4",
    "int2",
    "uint2",
)
"""Dtypes of one byte that safetensors has no name for, or only since lately."""

CODE_SIZES = {
    "BOOL": 1,
    "I8": 1,
    "U8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "I64": 8,
    "U64": 8,
    "F64": 8,
}
PLAIN_NAMES = {code: name for name, code in _PLAIN.items()}


_SPELLED = frozenset("?bBhHiIlLqQefd")
"""Dtypes that a view of Python's knows how to spell."""


@functools.cache
def kept(name: str) -> Kept | None:
    """How a dtype of that name is kept; None for what no dump holds."""
    if name in _PLAIN:
        dtype = _numpy_dtype(name)
        return Kept(name, _PLAIN[name], dtype, spelled=dtype.isbuiltin == 1 and dtype.char in _SPELLED)
    if name in _AS_PAIRS:
        return Kept(name, _AS_PAIRS[name], _numpy_dtype(name), parts=2)
    if name in _AS_BYTES and hasattr(ml_dtypes, name):
        return Kept(name, "U8", _numpy_dtype(name))
    return None


@functools.cache
def name_of(dtype: DType) -> str:
    """A dtype's name, which numpy takes microseconds to spell."""
    name: str = dtype.name
    return name


def storable(array: Array) -> Array:
    """The array in C order and little-endian."""
    return np.array(array, dtype=how_kept(array.dtype).dtype, order="C", copy=None, subok=False)


@functools.cache
def how_kept(dtype: DType) -> Kept:
    """How the elements of a dtype are kept; raises for what no dump holds."""
    how = kept(name_of(dtype))
    if how is None:
        raise ArgumentError(
            f"a dump cannot hold an array of dtype {dtype.name}: expected booleans, integers, floating or complex "
            "numbers",
            "convert it, or leave it out",
        )
    return how


def as_bytes(array: Array) -> Array:
    """The memory of an array in C order, byte by byte."""
    return array.reshape(-1).view(np.uint8)


def _numpy_dtype(name: str) -> DType:
    special: Any = getattr(ml_dtypes, name, None)
    dtype: DType = np.dtype(special) if special is not None else np.dtype(name).newbyteorder("<")
    return dtype
