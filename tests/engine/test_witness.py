"""Base's gradients at the borders of calls, where somebody writes into them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import padiff
from padiff.engine.fed import localise
from tests.twins import TorchScaleGradient


class Doubling(nn.Module):
    """Its user doubles gradients where they lie."""

    def __init__(self, slope: float = 0.2) -> None:
        super().__init__()
        self.first, self.act, self.last = nn.Linear(6, 6), nn.LeakyReLU(slope), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.act(self.first(x))
        out: torch.Tensor = self.last(h)
        if out.requires_grad:
            out.register_hook(lambda gradient: gradient.mul_(2))
        return out


def test_a_gradient_that_is_written_into_is_seen_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    base, raw = Doubling(), Doubling()
    raw.act.register_forward_hook(lambda module, args, output: TorchScaleGradient.apply(output))
    runs: list[bool] = []
    witness = localise.Witness

    def counted(**options: bool) -> Any:
        runs.append(options.get("copies", True))
        return witness(**options)

    monkeypatch.setattr(localise, "Witness", counted)
    x = np.random.default_rng(0).standard_normal((4, 6)).astype("float32")
    result = padiff.compare(base, raw, x)
    assert result.divergence is not None
    assert (result.divergence.raw_path, result.divergence.phase) == ("act", "backward")
    assert [one.raw_path for one in result.divergences] == ["act"]
    assert runs[:2] == [False, True]
