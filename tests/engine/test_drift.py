"""How far rounding moves parameters in a step, where gradients are little more than rounding themselves."""

from __future__ import annotations

import numpy as np
import pytest

from padiff.engine.free.drift import uncertain_part


def test_a_gradient_that_is_sure_leaves_nothing_uncertain() -> None:
    gradient = np.ones(8, np.float32)
    assert uncertain_part(-0.01 * gradient, gradient, 0.0, 0.0) == 0.0


def test_where_raw_is_off_by_more_than_the_gradient_its_step_may_be_longer() -> None:
    """A bias before a norm: its gradient is zero by rights, and what is left of it differs from kernel to kernel."""
    gradient = np.full(8, 1e-7, np.float32)
    moved = -0.01 * gradient.astype(np.float64) / 1e-3  # Adam with a large eps
    assert uncertain_part(moved, gradient, 1e-5, 1e-8) == pytest.approx(1e-6)
    assert uncertain_part(moved, gradient, 1e-5, 1e-6) == pytest.approx(1e-6 + 1e-5)
