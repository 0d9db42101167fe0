"""Attention that base masks itself and that raw is given a mask for: a wrong mask is the doing of who makes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff

ROWS = np.random.default_rng(0).normal(size=(2, 6, 8)).astype("float32")


class Causal(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (torch.nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Any) -> Any:
        q, k, v = (one(x).view(2, 6, 2, 4).transpose(1, 2) for one in (self.q, self.k, self.v))
        found = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(found.transpose(1, 2).reshape(2, 6, 8))


class Base(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.blocks = torch.nn.Linear(8, 8), torch.nn.ModuleList([Causal() for _ in range(5)])

    def forward(self, x: Any) -> Any:
        x = self.into(x)
        for block in self.blocks:
            x = x + block(x)
        return x


class Masked(paddle.nn.Layer):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.q, self.kv, self.o, self.bug = (
            paddle.nn.Linear(8, 8),
            paddle.nn.Linear(8, 16),
            paddle.nn.Linear(8, 8),
            bug,
        )

    def forward(self, x: Any, mask: Any) -> Any:
        q = self.q(x).reshape([2, 6, 2, 4])
        k, v = (one.reshape([2, 6, 2, 4]) for one in self.kv(x).chunk(2, axis=-1))
        scores = paddle.einsum("bqhd,bkhd->bhqk", q, k) * 0.5
        mask = ~mask if self.bug == "inside" else mask
        scores = paddle.where(mask, scores, paddle.full_like(scores, -1e30))
        found = paddle.einsum("bhqk,bkhd->bqhd", paddle.nn.functional.softmax(scores, axis=-1), v)
        return self.o(found.flatten(2))


class Raw(paddle.nn.Layer):
    def __init__(self, bug: str = "") -> None:
        super().__init__()
        self.layers, self.bug = paddle.nn.LayerList([Masked(bug) for _ in range(5)]), bug
        self.first = paddle.nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        mask = paddle.tril(paddle.ones([6, 6], dtype="bool"), 1 if self.bug == "around" else 0)
        for layer in self.layers:
            x = x + layer(x, mask)
        return x


@pytest.mark.parametrize(
    ("bug", "paths"), [("", []), ("around", [""]), ("inside", [f"layers.{block}" for block in range(5)])]
)
def test_who_makes_the_mask(bug: str, paths: list[str]) -> None:
    torch.manual_seed(0)
    result = padiff.compare(Base(), Raw(bug), ROWS)
    assert [one.raw_path for one in result.divergences] == paths, str(result)
    if bug == "around":
        assert result.divergence is not None
        assert any("tril" in line.text for line in result.divergence.source[1])
        assert result.divergence.causes[0].name == "mask"
