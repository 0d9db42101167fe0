"""What is left of a gradient behind a saturated function is rounding, and accuses nobody."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import padiff
from tests.twins import TorchScaleGradient


class Net(torch.nn.Module):
    def __init__(self, wide: bool = False, scaled: bool = False) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)
        self.wide, self.scaled = wide, scaled

    def forward(self, x: Any) -> Any:
        hidden = self.first(x)
        if self.scaled:
            hidden = TorchScaleGradient.apply(hidden)
        squeezed = torch.tanh(hidden.double()).float() if self.wide else torch.tanh(hidden)
        return self.second(squeezed)


@pytest.mark.parametrize("size", [10.0, 30.0, 100.0, 1000.0])
@pytest.mark.parametrize("rows", [2, 40])
def test_a_saturated_function_that_is_rounded_otherwise(size: float, rows: int) -> None:
    x = size * np.random.default_rng(1).standard_normal((rows, 8)).astype("float32")
    result = padiff.compare(Net(), Net(wide=True), x)
    assert result.aligned, str(result.divergence)


@pytest.mark.parametrize("size", [1.0, 10.0])
def test_a_wrong_gradient_behind_it_is_still_seen(size: float) -> None:
    x = size * np.random.default_rng(1).standard_normal((40, 8)).astype("float32")
    found = padiff.compare(Net(), Net(scaled=True), x).divergence
    assert found is not None
    assert found.phase == "backward"
    assert found.note == "the gradient that arrives at the output of first differs"
