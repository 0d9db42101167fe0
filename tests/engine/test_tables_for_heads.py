"""Tables of angles that one author makes with an axis for heads, and the other without: who makes them wrongly."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff

IDS = np.random.default_rng(0).integers(0, 20, (2, 6))


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (torch.nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Any, cos: Any, sin: Any, mask: Any) -> Any:
        q, k, v = (one(x).view(2, -1, 2, 8).transpose(1, 2) for one in (self.q, self.k, self.v))
        q, k = (one * cos + torch.cat([-one[..., 4:], one[..., :4]], -1) * sin for one in (q, k))
        weights = torch.softmax(q @ k.transpose(2, 3) / 8**0.5 + mask, -1)
        return self.o((weights @ v).transpose(1, 2).flatten(2))


class Base(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(20, 16)
        self.blocks = torch.nn.ModuleList([Attention() for _ in range(5)])

    def forward(self, ids: Any) -> Any:
        places = torch.arange(ids.shape[1])
        angles = torch.outer(places.float(), 100.0 ** -(torch.arange(4) / 4)).repeat(1, 2)
        mask = torch.full((ids.shape[1], ids.shape[1]), float("-inf")).triu(1)
        x = self.tokens(ids)
        for block in self.blocks:
            x = x + block(x, angles.cos(), angles.sin(), mask)
        return x


class Heads(paddle.nn.Layer):
    def __init__(self, wrong: bool, sine_first: bool) -> None:
        super().__init__()
        self.sine_first = sine_first
        self.qkv, self.out, self.wrong = paddle.nn.Linear(16, 48), paddle.nn.Linear(16, 16), wrong

    def forward(self, x: Any, rope: Any, mask: Any) -> Any:
        sin, cos = rope if self.sine_first else rope[::-1]
        q, k, v = self.qkv(x).reshape([2, -1, 3, 2, 8]).unbind(2)
        sign = -1.0 if self.wrong else 1.0
        q, k = (one * cos + paddle.concat([-one[..., 4:], one[..., :4]], -1) * sin * sign for one in (q, k))
        q, k, v = (one.transpose([0, 2, 1, 3]) for one in (q, k, v))
        scores = paddle.matmul(q, k, transpose_y=True) / 8**0.5
        weights = paddle.nn.functional.softmax(paddle.where(mask, scores, paddle.full_like(scores, -1e30)))
        return self.out(paddle.matmul(weights, v).transpose([0, 2, 1, 3]).flatten(2))


class Raw(paddle.nn.Layer):
    def __init__(self, base: float = 100.0, wrong: bool = False, sine_first: bool = True) -> None:
        super().__init__()
        self.embed, self.base, self.sine_first = paddle.nn.Embedding(20, 16), base, sine_first
        self.layers = paddle.nn.LayerList([Heads(wrong, sine_first) for _ in range(5)])

    def forward(self, ids: Any) -> Any:
        n = ids.shape[1]
        angles = paddle.arange(n, dtype="float32").unsqueeze(-1) * self.base ** -(paddle.arange(4, dtype="float32") / 4)
        angles = paddle.concat([angles, angles], -1).unsqueeze([0, 2])
        rope = (angles.sin(), angles.cos()) if self.sine_first else (angles.cos(), angles.sin())
        mask = paddle.tril(paddle.ones([n, n], dtype="bool"))
        x = self.embed(ids)
        for layer in self.layers:
            x = x + layer(x, rope, mask)
        return x


@pytest.mark.parametrize(
    ("raw", "paths", "cause"),
    [
        ({"base": 500.0, "sine_first": False}, [""], "rope base"),
        ({"wrong": True}, [f"layers.{place}" for place in range(5)], "rope sign"),
        ({}, [], ""),
    ],
)
def test_who_makes_the_table(raw: dict[str, Any], paths: list[str], cause: str) -> None:
    """The sine may come first in one model, and the cosine in the other: that excuses nothing."""
    torch.manual_seed(0)
    result = padiff.compare(Base(), Raw(**raw), IDS)
    assert [one.raw_path for one in result.divergences] == paths, str(result.divergence)
    if result.divergence is not None:
        assert cause in [one.name for one in result.divergence.causes[:2]]
