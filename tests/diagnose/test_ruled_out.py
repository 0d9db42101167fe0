"""Hypotheses that a few rows rule out are ruled out by all of them, too."""

from __future__ import annotations

import numpy as np
import pytest

from padiff.diagnose.causes.layouts import _leading_rolled
from padiff.diagnose.causes.trial import further, gap, leading

SHAPES = [(8, 64, 16, 16), (3, 5), (20000,), (100, 200), (2, 3, 10000), (4, 1, 9000, 2)]


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_of_what_is_moved_around(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).normal(size=shape)
    for axis in range(array.ndim):
        for step in (1, -1, 2, -2):
            assert np.array_equal(_leading_rolled(array, step, axis), leading(np.roll(array, step, axis)))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows_only", [False, True])
def test_what_is_further_is_further(shape: tuple[int, ...], rows_only: bool) -> None:
    base = np.random.default_rng(0).normal(size=shape)
    raw = base.copy()
    (leading(raw) if rows_only else raw)[...] += 1e-3
    apart = gap(base, raw)
    assert further(base, raw, 0.001 * apart)
    assert further(base, raw, 0.99 * apart) is (rows_only or leading(base).size == base.size)
    assert not further(base, raw, 1.01 * apart)


def test_what_is_no_number_is_left_to_the_whole() -> None:
    base, raw = np.full((2, 4), np.inf), np.full((2, 4), np.inf)
    assert not further(base, raw, 0.0)
