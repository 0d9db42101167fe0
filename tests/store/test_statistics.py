"""Statistics against plain numpy, and what can be told from them."""

from __future__ import annotations

import itertools
import math
from typing import Any

import hypothesis.extra.numpy as arrays_of
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from padiff.store import gap, statistics
from padiff.store.statistics import COLUMNS, LEVELS, RANKED, SAMPLED, positions


def generator() -> np.random.Generator:
    return np.random.default_rng(5)


CASES: dict[str, Any] = {
    "normal": generator().standard_normal(100_000),
    "float32": generator().standard_normal((300, 333), dtype=np.float32),
    "far from zero": generator().standard_normal(100_000) * 1e-3 + 1e6,
    "bfloat16": generator().standard_normal((64, 64)).astype(ml_dtypes.bfloat16),
    "float8": generator().standard_normal((64, 64)).astype(ml_dtypes.float8_e4m3fn),
    "integers": generator().integers(-1000, 1000, (70, 50)),
    "booleans": generator().integers(0, 2, 70_000).astype(bool),
    "transposed": generator().standard_normal((40, 50, 60)).transpose(2, 0, 1),
    "one": np.float32([3]),
    "scalar": np.array(-2.5),
}


@pytest.mark.parametrize("array", CASES.values(), ids=CASES)
def test_moments_norms_and_extremes(array: Any) -> None:
    found = statistics(array)
    wide = array.astype(np.float64)
    assert (found.shape, found.dtype, found.size) == (array.shape, array.dtype.name, array.size)
    assert (found.minimum, found.maximum) == (wide.min(), wide.max())
    assert found.zero == np.count_nonzero(wide == 0)
    expected = wide.mean(), wide.std(), np.abs(wide).sum(), math.sqrt((wide**2).sum())
    assert (found.mean, found.std, found.l1, found.l2) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert found.finite == array.size


def test_nan_and_infinity_are_counted_and_left_out() -> None:
    array = np.array([np.nan, 1, np.inf, -np.inf, 2, np.nan, np.inf, 0])
    found = statistics(array)
    assert (found.nan, found.positive_infinite, found.negative_infinite, found.zero) == (2, 2, 1, 1)
    assert (found.finite, found.minimum, found.maximum, found.mean, found.l1) == (3, 0.0, 2.0, 1.0, 3.0)
    assert found.quantiles == (0, 0, 0, 0, 1, 2, 2, 2, 2)
    assert np.array_equal(found.sample, array, equal_nan=True)


@pytest.mark.parametrize("array", [np.zeros(0), np.full(4, np.nan), np.zeros((3, 0), np.int8)], ids=str)
def test_nothing_finite_gives_zeros(array: Any) -> None:
    found = statistics(array)
    assert found.row()[4:] == [0.0] * (len(COLUMNS) - 4 + len(LEVELS))
    assert found.nan == np.count_nonzero(np.isnan(array))


def test_complex_numbers_count_as_two() -> None:
    found = statistics(np.array([3 + 4j, complex(0, np.inf)], np.complex64))
    assert (found.size, found.l1, found.l2, found.positive_infinite, found.zero) == (4, 7.0, 5.0, 1, 1)
    assert found.sample == (3.0, 4.0, 0.0, math.inf)


@given(
    arrays_of.arrays(np.float64, st.integers(0, 50), elements=st.floats(width=64, allow_nan=True, allow_infinity=True))
)
def test_everything_stays_finite(array: Any) -> None:
    found = statistics(array)
    assert all(math.isfinite(value) for value in found.row())
    finite = array[np.isfinite(array)]
    assert found.finite == finite.size
    if finite.size:
        assert found.minimum <= found.quantiles[0] <= found.quantiles[-1] <= found.maximum
        largest = float(np.abs(finite).max())
        assert largest <= found.l2 * (1 + 1e-9) <= found.l1 * (1 + 1e-8)
        assert found.std <= 2.1 * largest or largest > 1e300


def test_quantiles_are_exact_where_all_elements_rank() -> None:
    found = statistics(generator().permutation(np.arange(101.0)))
    assert found.quantiles == (1, 5, 10, 25, 50, 75, 90, 95, 99)
    large = statistics(generator().standard_normal(500_000))
    assert large.quantiles == pytest.approx(np.quantile(generator().standard_normal(500_000), LEVELS), abs=0.15)


@pytest.mark.parametrize("size", [0, 1, 23, 24, 25, 100, 4096, 4097, 12_345_678, 2**40])
@pytest.mark.parametrize("wanted", [SAMPLED, RANKED])
def test_positions_are_fixed_rising_and_spread(size: int, wanted: int) -> None:
    found = positions(size, wanted).tolist()
    assert found == sorted(set(found))
    assert not found or (found[0] >= 0 and found[-1] < size)
    if size <= wanted:
        assert found == list(range(size))
    else:
        assert len(found) > 0.6 * min(size, wanted)
        assert max(b - a for a, b in itertools.pairwise(found)) < 5 * size / wanted + 1


def test_positions_are_those_of_the_format() -> None:
    """Other readers compute the same ones: docs/dump-format.md gives the formula."""
    expected = sorted({(n * 11400714819323198485 % 2**64) * 1000 // 2**64 for n in range(1, 25)})
    assert positions(1000, 24).tolist() == expected


def test_positions_fall_into_step_with_no_axis() -> None:
    for channels in (4, 8, 64, 256, 768):
        hit = {int(p) % channels for p in positions(4096 * channels, SAMPLED)}
        assert len(hit) >= min(channels, SAMPLED) // 2


def test_the_digest_tells_single_bits() -> None:
    array = np.zeros(1000, np.float32)
    changed = array.copy()
    changed[777] = -0.0
    assert statistics(array).digest == statistics(array.copy()).digest
    assert statistics(array).digest != statistics(changed).digest


def test_equal_tensors_have_no_gap() -> None:
    array = CASES["normal"]
    found = gap(statistics(array), statistics(array.copy()))
    assert found.identical
    assert found.comparable
    assert not found.nonfinite
    assert (found.sample, found.sample_max, found.norm, found.mean, found.quantile) == (0, 0, 0, 0, 0)


def test_a_gap_is_as_large_as_the_difference() -> None:
    base = generator().standard_normal(100_000).astype(np.float32)
    for size in (1e-6, 1e-3, 1.0):
        raw = (base + size * np.random.default_rng(9).standard_normal(base.size)).astype(np.float32)
        found = gap(statistics(base), statistics(raw))
        assert not found.identical
        assert 0.3 * size < found.sample < 3 * size
    scaled = gap(statistics(base), statistics(base * np.float32(1.25)))
    assert scaled.norm == pytest.approx(0.25, rel=1e-5)
    assert scaled.sample == pytest.approx(0.25, rel=1e-5)
    shifted = gap(statistics(base), statistics(base + np.float32(0.5)))
    assert shifted.mean == pytest.approx(0.5, rel=1e-2)
    assert shifted.quantile == pytest.approx(0.5, rel=1e-2)


def test_other_shapes_dtypes_and_holes_are_told() -> None:
    base = np.arange(12.0).reshape(3, 4)
    assert not gap(statistics(base), statistics(base.T)).comparable
    assert not gap(statistics(base), statistics(base.T)).identical
    assert not gap(statistics(base), statistics(base.astype(np.float32))).identical
    holed = base.copy()
    holed[0, 0] = np.nan
    found = gap(statistics(base), statistics(holed))
    assert found.nonfinite
    assert found.sample == 0
    assert gap(statistics(np.zeros(3)), statistics(np.ones(3))).norm == math.inf


def test_a_row_is_small() -> None:
    found = statistics(CASES["normal"])
    assert 8 * (len(found.row()) + len(found.sample)) + len(found.digest) // 2 < 400
