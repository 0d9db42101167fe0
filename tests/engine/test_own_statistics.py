"""Running statistics that a class of the user's own keeps, against a framework's layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import padiff


class Norm(torch.nn.Module):
    """Normalises by the framework's function, or spells it out."""

    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.gamma, self.beta = torch.nn.Parameter(torch.ones(6)), torch.nn.Parameter(torch.zeros(6))
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("var", torch.ones(6))
        self.wrong = wrong

    def forward(self, x: Any) -> Any:
        if not self.wrong:
            kept = (self.mean, self.var, self.gamma, self.beta)
            return torch.nn.functional.batch_norm(x, *kept, self.training, 0.1)
        var, mean = torch.var_mean(x, (0, 2, 3), unbiased=False)
        with torch.no_grad():
            self.mean.lerp_(mean, 0.1)
            self.var.lerp_(var, 0.1)
        x = (x - mean[:, None, None]) * torch.rsqrt(var + 1e-5)[:, None, None]
        return x * self.gamma[:, None, None] + self.beta[:, None, None]


class Net(torch.nn.Module):
    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.conv, self.norm, self.out = torch.nn.Conv2d(3, 6, 3), norm, torch.nn.Conv2d(6, 2, 1)

    def forward(self, x: Any) -> Any:
        return self.out(torch.relu(self.norm(self.conv(x))))


@pytest.mark.parametrize("own", ["raw", "base"])
@pytest.mark.parametrize("wrong", [False, True])
def test_a_variance_that_a_user_keeps(own: str, wrong: bool) -> None:
    """As the framework does, with n - 1; or with n, which is another."""
    torch.manual_seed(0)
    pair = Net(torch.nn.BatchNorm2d(6)), Net(Norm(wrong))
    base, raw = pair if own == "raw" else pair[::-1]
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 4)).astype("float32")
    result = padiff.compare(base.train(), raw.train(), x)
    if not wrong:
        assert result.aligned, str(result)
        return
    assert result.divergence is not None
    assert (result.divergence.raw_path, result.divergence.phase) == ("norm", "buffer")
    assert "variance" in [cause.name for cause in result.divergence.causes]
