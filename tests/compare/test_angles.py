"""What two tables of positions say, however they are written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from padiff.compare.angles import same_angles

HALF = (np.arange(6)[:, None] / 100 ** (np.arange(4) / 4)).astype("float32")
WHOLE = np.concatenate([HALF, HALF], -1)


@pytest.mark.parametrize("way", [np.cos, np.sin])
@pytest.mark.parametrize("other", [HALF, WHOLE, WHOLE[None], HALF.repeat(2, -1)])
def test_angles_and_what_is_made_of_them(other: np.ndarray, way: Any) -> None:
    assert same_angles(way(other), HALF)
    assert same_angles(HALF, way(other))
    assert not same_angles(way(1.1 * other), HALF)


def test_each_number_once_or_twice() -> None:
    assert same_angles(np.cos(WHOLE), np.cos(HALF))
    assert same_angles(np.cos(HALF), np.cos(HALF.repeat(2, -1)))
    assert not same_angles(np.cos(WHOLE), np.sin(HALF))


def test_what_says_nothing() -> None:
    zeros = np.zeros((3, 4), "float32")
    assert not same_angles(zeros, np.cos(zeros))
    assert not same_angles(HALF, HALF + 1)
    assert not same_angles(np.arange(4), np.cos(np.arange(4)))
