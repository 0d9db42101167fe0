"""A gradient that is off by one factor is no number on a kink, though half of it is zero: nothing is run to ask."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import padiff
from tests.engine.test_crossings import counted
from tests.twins import TorchScaleGradient


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.last = torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4)

    def forward(self, x: Any) -> Any:
        return self.last(self.act(self.first(x)))


class Wrong(Net):
    def forward(self, x: Any) -> Any:
        return self.last(self.act(TorchScaleGradient.apply(self.first(x))))


def test_a_factor_is_told_without_other_inputs() -> None:
    torch.manual_seed(0)
    base, raw = Net(), Wrong()
    torch.nn.init.constant_(base.first.bias, -0.5)  # most numbers are below zero
    called = counted(base), counted(raw)
    result = padiff.compare(base, raw, np.random.default_rng(0).standard_normal((16, 8)).astype("float32"))
    assert result.divergence is not None
    assert (result.divergence.raw_path, result.divergence.phase) == ("", "backward")
    assert [len(side) for side in called] == [4, 2]
