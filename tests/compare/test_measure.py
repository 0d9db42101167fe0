"""Root mean squares hold where squares do not."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from padiff.compare.measure import rms


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, ml_dtypes.bfloat16])
@pytest.mark.parametrize("size", [1e-30, 1e-20, 1.0, 1e20, 1e30])
def test_squares_may_be_no_numbers(dtype: type, size: float) -> None:
    array = np.full((3, 5), size).astype(dtype)
    assert rms(array) == pytest.approx(size, rel=1e-2)


def test_nothing_has_no_size() -> None:
    assert rms(np.zeros((4, 4), np.float32)) == 0.0
    assert rms(np.zeros((0, 4), np.float32)) == 0.0
