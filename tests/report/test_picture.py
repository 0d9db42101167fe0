"""The picture of an error: histogram, map and first elements."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from padiff.report import picture_of


def test_a_stripe_shows_where_it_is() -> None:
    base = np.zeros((4, 40), np.float32)
    raw = base.copy()
    raw[:, 35:] = 0.5
    found = picture_of(base, raw)
    assert found is not None
    assert (found.size, found.equal, found.nonfinite) == (160, 140, 0)
    assert found.counts == (20,)
    assert found.low == found.high == pytest.approx(math.log10(0.5))
    assert (found.axes, found.extent) == ((0, 1), (4, 40))
    assert [len(row) for row in found.cells] == [16] * 4
    assert found.cells[0] == (0.0,) * 14 + (0.5, 0.5)  # columns 35 and 36 share the cell that ends at 37
    assert [one.index for one in found.first][:6] == [(0, 35), (0, 36), (0, 37), (0, 38), (0, 39), (1, 35)]
    assert (found.first[0].base, found.first[0].raw) == (0.0, 0.5)


def test_the_axes_along_which_it_changes_are_drawn() -> None:
    base = np.zeros((2, 3, 8, 5), np.float32)
    raw = base.copy()
    raw[:, 1, :, 0] = 1.0  # one channel, at the left edge
    found = picture_of(base, raw)
    assert found is not None
    assert found.axes == (1, 3)
    assert found.cells == ((0.0,) * 5, (1.0, 0.0, 0.0, 0.0, 0.0), (0.0,) * 5)


def test_what_is_no_number_on_one_side_is_told_apart() -> None:
    base = np.array([1.0, np.nan, np.inf, 2.0, 3.0])
    raw = np.array([1.0, np.nan, np.inf, np.nan, 3.5])
    found = picture_of(base, raw)
    assert found is not None
    assert (found.equal, found.nonfinite, sum(found.counts)) == (3, 1, 1)
    assert found.cells == ((0.0, 0.0, 0.0, math.inf, 0.5),)
    assert [one.index for one in found.first] == [(3,), (4,)]


def test_small_errors_beside_a_large_one_are_not_first() -> None:
    base = np.ones(100, np.float32)
    raw = base + np.float32(1e-6)
    raw[70] = 2.0
    found = picture_of(base, raw)
    assert found is not None
    assert [one.index for one in found.first] == [(70,)]


def test_other_dtypes() -> None:
    narrow = np.array([1, 2, 3], ml_dtypes.bfloat16)
    found = picture_of(narrow, narrow + ml_dtypes.bfloat16(1))
    assert found is not None
    assert (found.first[0].base, found.first[0].raw) == (1.0, 2.0)
    counts = picture_of(np.array([2**62, 5]), np.array([2**62, 7]))
    assert counts is not None
    assert (counts.equal, counts.cells) == (1, ((0.0, 2.0),))
    turned = picture_of(np.array([1 + 1j]), np.array([1 - 1j]))
    assert turned is not None
    assert turned.cells == ((2.0,),)


def test_a_long_one_is_counted_whole() -> None:
    error = np.full(200_000, 1.2e-3)
    error[:70_000] = 1e-6
    error[150_000:] = 0.0
    error[-1] = 1.0
    found = picture_of(np.zeros_like(error), error)
    assert found is not None
    assert (found.low, found.high, found.equal) == (-6.0, 0.0, 49_999)
    assert found.counts == (70_000, *[0] * 15, 80_000, *[0] * 14, 1)


@pytest.mark.parametrize("error", [1.0, 0.0123456, 9.996e-7, 4.5678e-13, 1.2345e-31, 123456.0, 6.78e25])
def test_cells_are_rounded_to_three_digits(error: float) -> None:
    found = picture_of(np.zeros(2), np.array([0.0, error]))
    assert found is not None
    assert found.cells == ((0.0, float(f"{error:.3g}")),)


def test_nothing_to_draw() -> None:
    assert picture_of(np.zeros(3), np.zeros(4)) is None
    assert picture_of(np.zeros(0), np.zeros(0)) is None
    assert picture_of(None, np.zeros(3)) is None
    assert picture_of(np.array(["a"]), np.array(["b"])) is None


shapes = arrays.array_shapes(min_dims=0, max_dims=5, max_side=20)


@given(st.data())
def test_every_element_is_counted_once_and_it_stays_small(data: st.DataObject) -> None:
    shape = data.draw(shapes)
    dtype = data.draw(st.sampled_from([np.float32, np.float64, np.float16, np.int64, np.bool_]))
    base, raw = (data.draw(arrays.arrays(dtype, shape, fill=st.just(1))) for _ in range(2))
    found = picture_of(base, raw)
    assert found is not None
    assert found.size == base.size == found.equal + found.nonfinite + sum(found.counts)
    assert len(found.counts) <= 32
    assert len(found.cells) <= 16
    assert all(len(row) <= 16 for row in found.cells)
    assert len(found.first) <= 10
    assert all(index < length for one in found.first for index, length in zip(one.index, shape, strict=True))
