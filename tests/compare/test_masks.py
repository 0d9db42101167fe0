"""What two masks say, however they are written."""

from __future__ import annotations

import numpy as np
import pytest

from padiff.compare.masks import contradicts, mean_the_same

KEPT = np.array([[True, True, False], [True, False, False]])
ADDED = np.where(KEPT, 0.0, -1e9).astype(np.float32)
LEAST = np.where(KEPT, 0.0, np.finfo(np.float32).min).astype(np.float32)
MARKED = np.where(np.arange(3) == 0, np.finfo(np.float32).max, LEAST).astype(np.float32)
"""Says of some places that are in, too, what they are for: those that see everything."""


@pytest.mark.parametrize("other", [KEPT.astype(np.int64), KEPT.astype(np.float32), ADDED, LEAST, MARKED])
def test_one_mask_in_many_forms(other: np.ndarray) -> None:
    assert mean_the_same(KEPT, other)
    assert mean_the_same(other, KEPT[None])
    assert not mean_the_same(~KEPT, other)


def test_numbers_of_another_width() -> None:
    places = np.arange(6).reshape(2, 3)
    assert mean_the_same(places, places.astype(np.int32))
    assert not mean_the_same(places, places.astype(np.int32) + 1)
    assert not mean_the_same(places, places.astype(np.float32))
    assert not mean_the_same(places, places.reshape(3, 2).astype(np.int32))


def test_equal_dtypes_are_for_others_to_compare() -> None:
    assert not mean_the_same(KEPT, KEPT)


def test_what_one_mask_leaves_in_and_the_other_out() -> None:
    assert contradicts(ADDED, np.where(KEPT, -np.inf, 0.0).astype(np.float32))
    assert not contradicts(ADDED, LEAST[:, None, :].repeat(3, 1)[:, 0])
    rows = np.where([[True, True, False]], 0.0, -1e9).astype(np.float32)
    assert not contradicts(ADDED, rows)  # raw may leave out the rest elsewhere
    assert contradicts(rows, ADDED)
    assert not contradicts(ADDED, ADDED[:, :2].copy())
    assert not contradicts(ADDED, KEPT)
    assert not contradicts(ADDED, ~KEPT)  # truth may say what is left out
    assert contradicts(ADDED, KEPT[:, ::-1]) and contradicts(KEPT[:, ::-1], ADDED)
    assert not contradicts(KEPT, KEPT[:, ::-1])  # nothing says that these are masks


def test_one_axis_more_for_groups_of_heads() -> None:
    rows = LEAST[:, None, None, :].repeat(2, 2)  # batch, heads, queries, keys
    assert not contradicts(rows, ADDED[:, None, None, None, :])  # batch, groups, heads of one, queries, keys
    assert contradicts(rows, ADDED[::-1, None, None, None, :])
    assert not contradicts(ADDED[:, None, None, None, :], rows)
    assert mean_the_same(KEPT[:, None, None, None, :], rows)
