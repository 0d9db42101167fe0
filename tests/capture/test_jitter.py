"""Rounding, imitated: also that a narrower dtype has no numbers below a certain size."""

from __future__ import annotations

import numpy as np
import pytest

from padiff.capture.jitter import Jitter
from padiff.records import SMALLEST

FLOAT16 = 2.0**-10


def test_what_float16_has_no_numbers_for_is_lost() -> None:
    small = np.array([1.0, -3e-3, 2e-8, -2e-8, 4e-8, 1e-6, 3e-5], np.float32)
    moved = Jitter(FLOAT16)(small)
    least = SMALLEST[FLOAT16]
    assert moved[2] == moved[3] == 0.0
    assert abs(moved[4]) == pytest.approx(least)
    assert np.array_equal(moved[4:] / least, np.rint(moved[4:] / least))
    assert np.allclose(moved[:2], small[:2], rtol=1.1 * FLOAT16)


@pytest.mark.parametrize(("step", "dtype"), [(2.0**-7, "float32"), (None, "float32"), (FLOAT16, "float16")])
def test_elsewhere_small_numbers_stay(step: float | None, dtype: str) -> None:
    small = np.array([1.5, 3e-7], dtype)
    assert Jitter(step)(small)[1] != 0.0
    assert abs(Jitter(step)(small)[1] / small[1] - 1) < 0.1
