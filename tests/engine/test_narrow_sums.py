"""Gradients of parameters that a narrower dtype makes of long sums, or of sums that cancel: no fault by themselves."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import padiff

ROWS = 600
X = torch.as_tensor(np.random.default_rng(0).normal(size=(1, ROWS, 8)).astype("float32"))


class Norm(nn.Module):
    """A norm of many rows, of which the first counts most: beside what it leaves, torch's kernel loses the others."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.norm, self.head = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x: Any) -> Any:
        share = torch.cat([x.new_full((1, 1, 1), 10.0), x.new_ones((1, ROWS - 1, 1))], 1)
        return self.head(self.norm(self.project(x)) * share).sum(1)


class Attention(nn.Module):
    """Its layers hold what its own code multiplies by, and are not called; the key's bias moves nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Any) -> Any:
        layers = (self.query, self.key, self.value)
        query, key, value = (nn.functional.linear(x[:, :12], one.weight, one.bias) for one in layers)
        return (query @ key.transpose(1, 2)).softmax(-1) @ value


def compared(kind: type[nn.Module], dtypes: tuple[torch.dtype, torch.dtype], plant: Any = None) -> padiff.Result:
    torch.manual_seed(0)
    model = kind()
    base, raw = (copy.deepcopy(model).to(dtype) for dtype in dtypes)
    if plant is not None:
        plant(raw)
    one, other = (padiff.Inputs(X.to(dtype)) for dtype in dtypes)
    return padiff.compare(base, raw, (one, other))


NARROW = (torch.float32, torch.bfloat16)
DTYPES = [NARROW, (torch.float32, torch.float16), (torch.float64, torch.float32)]


@pytest.mark.parametrize("dtypes", DTYPES, ids=str)
@pytest.mark.parametrize("kind", [Norm, Attention])
def test_no_false_alarm(kind: type[nn.Module], dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    result = compared(kind, dtypes)
    assert result.aligned, str(result)


def test_a_gradient_that_is_wrong_beside_it() -> None:
    result = compared(Norm, NARROW, lambda raw: raw.norm.weight.register_hook(lambda gradient: 3 * gradient))
    assert result.divergence is not None
    assert (result.divergence.raw_path, result.divergence.phase) == ("norm", "gradient")


def test_a_gradient_of_a_layer_that_is_not_called() -> None:
    result = compared(Attention, NARROW, lambda raw: raw.key.weight.register_hook(lambda gradient: 1.2 * gradient))
    assert result.divergence is not None
    assert (result.divergence.raw_path, result.divergence.phase) == ("key", "gradient")
