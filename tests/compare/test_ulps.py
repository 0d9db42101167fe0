"""ULP distances: neighbours are one apart in every floating type."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from padiff.compare.examine import ulps
from padiff.compare.kinds import kind_of

FLOATS = [
    np.float64,
    np.float32,
    np.float16,
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e4m3fnuz,
    ml_dtypes.float8_e5m2,
    ml_dtypes.float6_e2m3fn,
    ml_dtypes.float4_e2m1fn,
    ml_dtypes.float8_e8m0fnu,
]


def distance(base, raw, dtype):
    base, raw = np.array([base], dtype), np.array([raw], dtype)
    return int(ulps(base, raw, kind_of(base.dtype))[0])


@pytest.mark.parametrize("dtype", [t for t in FLOATS if np.dtype(t).itemsize <= 2])
def test_all_values_of_small_types_in_order_are_one_apart(dtype):
    codes = np.arange(1 << 8 * np.dtype(dtype).itemsize, dtype=f"u{np.dtype(dtype).itemsize}")
    bits = kind_of(np.dtype(dtype)).bits
    values = codes[: 1 << bits].view(dtype)
    with np.errstate(invalid="ignore"):
        wide = values.astype(np.float64)
    ordered = values[np.isfinite(wide)][np.argsort(wide[np.isfinite(wide)], kind="stable")]
    found = ulps(ordered[:-1], ordered[1:], kind_of(np.dtype(dtype)))
    differs = ordered[:-1].astype(np.float64) != ordered[1:].astype(np.float64)
    assert (found == differs).all()


@given(st.floats(allow_nan=False, allow_infinity=False, max_value=1e308))
def test_float64_neighbours(value):
    assert distance(value, np.nextafter(value, np.inf), np.float64) == 1


@given(st.floats(allow_nan=False, allow_infinity=False, width=32, max_value=2.0**100))
def test_float32_neighbours(value):
    assert distance(value, np.nextafter(np.float32(value), np.float32(np.inf)), np.float32) == 1


def test_zeros_are_one_value():
    assert distance(0.0, -0.0, np.float32) == 0


def test_the_longest_distance_does_not_overflow():
    largest = np.finfo(np.float64).max
    assert distance(-largest, largest, np.float64) == 2 * 0x7FEFFFFFFFFFFFFF
