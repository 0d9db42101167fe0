"""A fused projection whose bias raw keeps in parts beside it: ways to read it head by head take all of its parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import padiff

X = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")


def attended(attention: Any, x: Any, bias: Any) -> Any:
    fused = nn.functional.linear(x, attention.qkv.weight, bias)
    q, k, v = fused.reshape(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
    found = (q @ k.mT * attention.scale).softmax(-1) @ v
    return attention.proj(found.transpose(1, 2).reshape(2, 5, 8))


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.scale = 2, 0.5
        self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        bias = self.qkv.bias.clone()
        bias[8:16] = 0
        return attended(self, x, bias)


class InParts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.scale = 2, 0.5
        self.qkv, self.proj = nn.Linear(8, 24, bias=False), nn.Linear(8, 8)
        self.q_bias, self.v_bias = nn.Parameter(torch.zeros(8)), nn.Parameter(torch.zeros(8))
        self.register_buffer("k_bias", torch.zeros(8), persistent=False)

    def forward(self, x: Any) -> Any:
        return attended(self, x, torch.cat((self.q_bias, self.k_bias, self.v_bias)))


class Net(nn.Module):
    def __init__(self, attention: Any) -> None:
        super().__init__()
        self.first, self.blocks = nn.Linear(8, 8), nn.ModuleList([attention() for _ in range(2)])

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return x


@pytest.mark.parametrize(("scale", "place"), [(0.5, None), (0.75, "blocks.0")])
def test_every_way_to_fill_it_is_whole(scale: float, place: str | None) -> None:
    torch.manual_seed(0)
    base, raw = Net(Whole), Net(InParts)
    raw.blocks[0].scale = scale
    result = padiff.compare(base, raw, X)
    assert (result.divergence.raw_path if result.divergence else None) == place
    assert result.aligned == (place is None)
