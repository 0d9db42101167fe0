"""Blocks: their borders, memory that is not contiguous, and how much memory it takes."""

import dataclasses
import tracemalloc

import ml_dtypes
import numpy as np
import pytest

from padiff.compare.arrays import compare_arrays
from padiff.compare.blocks import block_length
from padiff.compare.tolerance import as_tolerance
from padiff.records import Tolerance

BLOCK, DOUBLE = block_length(np.dtype(np.float32)), block_length(np.dtype(np.float64))
MODES = [Tolerance(1e-6), Tolerance(1e-6, 1e-9, "strict"), as_tolerance("exact"), as_tolerance("auto")]
LAYOUTS = {
    "transposed": lambda a: np.ascontiguousarray(a.T).T,
    "strided": lambda a: np.repeat(a, 2, axis=1)[:, ::2],
    "reversed": lambda a: np.ascontiguousarray(a[::-1, ::-1])[::-1, ::-1],
    "offset": lambda a: np.pad(a, 1)[1:-1, 1:-1],
}
DTYPES = [
    np.float32,
    np.float64,
    np.float16,
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e5m2,
    np.complex64,
    np.int64,
    np.int8,
]


@pytest.mark.parametrize("size", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 7 * DOUBLE])
@pytest.mark.parametrize("place", [0, DOUBLE - 1, DOUBLE, BLOCK - 2, -1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_one_difference_is_found_wherever_it_is(size, place, dtype):
    base = np.ones(size, dtype)
    raw = base.copy()
    raw[place] = 3
    found = compare_arrays(base, raw, as_tolerance("exact")).numbers
    assert (found.worst, found.mismatched, found.max_abs) == ((place % size,), 1, 2.0)
    assert found.mean_abs == pytest.approx(2 / size)


@pytest.mark.parametrize("place", [0, DOUBLE, BLOCK, BLOCK + 1])
def test_one_nan_is_found_wherever_it_is(place):
    base = np.ones((BLOCK // 2 + 1, 2), np.float32)
    raw = base.copy()
    raw.reshape(-1)[place] = np.nan
    found = compare_arrays(base, raw, Tolerance())
    assert found.reason == "nonfinite"
    assert (
        f"0 in base, 1 in raw, of {base.size} values, the first that differs at [{place // 2}, {place % 2}]"
        in found.message
    )


@pytest.mark.parametrize("tolerance", MODES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("both", [False, True], ids=["one", "both"])
def test_layout_does_not_matter(layout, both, dtype, tolerance):
    rng = np.random.default_rng(0)
    base = rng.integers(-8, 8, (300, 250)).astype(dtype)
    raw = base.copy()
    raw[7:9, 3:5] = raw[200, 200] = np.asarray(5).astype(dtype)
    moved = layout(base) if both else base, layout(raw)
    assert not moved[1].flags.c_contiguous
    expected, found = compare_arrays(base, raw, tolerance), compare_arrays(*moved, tolerance)
    assert dataclasses.replace(found, numbers=None, allowed=None) == dataclasses.replace(
        expected, numbers=None, allowed=None
    )
    for name, value in expected.numbers.to_dict().items():
        other = found.numbers.to_dict()[name]
        assert other == (pytest.approx(value, rel=1e-6) if isinstance(value, float) else value), name


def test_broadcast_arrays():
    base = np.broadcast_to(np.arange(5, dtype=np.float32), (4, 5))
    found = compare_arrays(base, base + np.float32(1), Tolerance())
    assert (found.numbers.mean_abs, found.numbers.base_mean_abs) == (1.0, 2.0)


@pytest.mark.parametrize("tolerance", MODES, ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
def test_no_temporary_of_the_size_of_a_tensor(layout, tolerance):
    base = np.ones((4096, 4096), np.float32)
    raw = base.copy()
    raw[3, 3], raw[5, 5] = 2, np.nan
    if layout == "transposed":
        raw = raw.T
    tracemalloc.start()
    try:
        assert not compare_arrays(base, raw, tolerance, detail=True).agrees
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20
