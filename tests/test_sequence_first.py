"""A port that keeps sequences first, and hands its blocks a table of positions along with what they work on."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

import padiff

WIDTH, HEADS = 8, 2


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Any, positions: Any) -> Any:
        q, k, v = (
            f(one).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for f, one in ((self.q, x + positions), (self.k, x + positions), (self.v, x))
        )
        return self.o(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm = Attention(), nn.LayerNorm(WIDTH)

    def forward(self, x: Any, positions: Any) -> Any:
        return self.norm(x + self.attention(x, positions=positions))


def table(length: int, *, swapped: bool = False) -> Any:
    waves = torch.arange(length)[:, None] / 10 ** torch.arange(WIDTH // 2)
    parts = [waves.sin(), waves.cos()]
    return torch.cat(parts[::-1] if swapped else parts, -1)


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(5, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x: Any) -> Any:
        x = self.project(x)
        positions = table(x.shape[1]).expand_as(x)
        for block in self.blocks:
            x = block(x, positions=positions)
        return x


class First(nn.Module):
    def __init__(self, eps: float) -> None:
        super().__init__()
        self.attn, self.norm = nn.MultiheadAttention(WIDTH, HEADS), nn.LayerNorm(WIDTH, eps)

    def forward(self, x: Any, pos: Any) -> Any:
        return self.norm(x + self.attn(x + pos, x + pos, x, need_weights=False)[0])


class Raw(nn.Module):
    def __init__(self, *, swapped: bool = False, eps: float = 1e-5) -> None:
        super().__init__()
        self.project, self.swapped = nn.Linear(5, WIDTH), swapped
        self.layers = nn.ModuleList([First(1e-5), First(eps)])

    def forward(self, x: Any) -> Any:
        x = self.project(x).transpose(0, 1)
        pos = table(x.shape[0], swapped=self.swapped)[:, None].expand_as(x)
        for layer in self.layers:
            x = layer(x, pos)
        return x.transpose(0, 1)


def named(raw: Any) -> str | None:
    torch.manual_seed(0)
    result = padiff.compare(Base(), raw, np.random.default_rng(0).normal(size=(3, 6, 5)).astype("float32"))
    assert result.aligned == (result.divergence is None)
    return None if result.divergence is None else result.divergence.raw_path


def test_aligned() -> None:
    assert named(Raw()) is None


def test_a_wrong_table_is_told_of_who_makes_it() -> None:
    assert named(Raw(swapped=True)) == ""


def test_what_is_wrong_inside_is_told_of_there() -> None:
    assert named(Raw(eps=0.1)) == "layers.1.norm"
