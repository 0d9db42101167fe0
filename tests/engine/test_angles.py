"""Positions that base hands on as cosines and sines, and raw as angles: what is wrong in attention is told of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff

X = np.random.default_rng(0).normal(size=(2, 6, 8)).astype("float32")


class Turning(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (torch.nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Any, table: Any) -> Any:
        q, k = (turned(part(x), *table, torch.cat) for part in (self.q, self.k))
        return x + self.o((q @ k.transpose(1, 2) * 0.5).softmax(-1) @ self.v(x))


def turned(x: Any, cos: Any, sin: Any, join: Any) -> Any:
    return x * cos + join([-x[..., 4:], x[..., :4]], -1) * sin


class Tables(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Turning() for _ in range(2))

    def forward(self, x: Any) -> Any:
        angles = torch.arange(x.shape[1])[:, None] / 100 ** (torch.arange(4) / 4)
        angles = torch.cat([angles, angles], -1)[None]
        for block in self.blocks:
            x = block(x, (angles.cos(), angles.sin()))
        return x


class Turned(paddle.nn.Layer):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (paddle.nn.Linear(8, 8) for _ in range(4))
        self.scale = scale

    def forward(self, x: Any, angles: Any) -> Any:
        if angles.shape[-1] == 4:
            angles = paddle.concat([angles, angles], -1)
        table = angles.cos(), angles.sin()
        q, k = (turned(part(x), *table, paddle.concat) for part in (self.query, self.key))
        scores = paddle.matmul(q, k, transpose_y=True) * self.scale
        return x + self.out(paddle.matmul(paddle.nn.functional.softmax(scores), self.value(x)))


class Angles(paddle.nn.Layer):
    def __init__(self, halves: bool, scale: float = 0.5, base: float = 100.0) -> None:
        super().__init__()
        self.layers = paddle.nn.LayerList([Turned(scale) for _ in range(2)])
        self.halves, self.base = halves, base

    def forward(self, x: Any) -> Any:
        places, parts = (paddle.arange(n, dtype="float32") for n in (x.shape[1], 4))
        angles = places.unsqueeze(-1) / self.base ** (parts / 4)
        angles = angles if self.halves else paddle.concat([angles, angles], -1)
        for layer in self.layers:
            x = layer(x, angles)
        return x


@pytest.mark.parametrize("halves", [False, True])
def test_a_wrong_scale_is_told_of_attention(halves: bool) -> None:
    torch.manual_seed(0)
    assert padiff.compare(Tables(), Angles(halves), X).aligned
    result = padiff.compare(Tables(), Angles(halves, scale=1.0), X)
    assert result.divergence is not None
    assert result.divergence.raw_path == "layers.0", str(result)


def test_wrong_angles_are_told_of_who_makes_them() -> None:
    torch.manual_seed(0)
    result = padiff.compare(Tables(), Angles(False, base=50.0), X)
    assert result.divergence is not None
    assert result.divergence.raw_path == "", str(result)
