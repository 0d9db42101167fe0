"""A module that adds what it is given besides, and can do without: who does not give it that is to blame."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff

WIDTH = 6


class Output(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense, self.norm = torch.nn.Linear(9, WIDTH), torch.nn.LayerNorm(WIDTH)

    def forward(self, x: Any, residual: Any) -> Any:
        return self.norm(self.dense(x) + residual)


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.intermediate, self.output = torch.nn.Linear(WIDTH, 9), Output()

    def forward(self, x: Any) -> Any:
        return self.output(torch.relu(self.intermediate(x)), x)


class DenseNorm(paddle.nn.Layer):
    def __init__(self, *, adds: bool) -> None:
        super().__init__()
        self.fc, self.ln, self.adds = paddle.nn.Linear(9, WIDTH), paddle.nn.LayerNorm(WIDTH), adds

    def forward(self, x: Any, skip: Any = None) -> Any:
        y = self.fc(x)
        return self.ln(y + skip if skip is not None and self.adds else y)


class PaddleBlock(paddle.nn.Layer):
    def __init__(self, *, gives: bool, adds: bool) -> None:
        super().__init__()
        self.up, self.down, self.gives = paddle.nn.Linear(WIDTH, 9), DenseNorm(adds=adds), gives

    def forward(self, x: Any) -> Any:
        y = paddle.nn.functional.relu(self.up(x))
        return self.down(y, x) if self.gives else self.down(y)


@pytest.mark.parametrize(
    ("gives", "adds", "place"), [(True, True, None), (False, True, "1"), (True, False, "1.down")], ids=str
)
def test_the_place(gives: bool, adds: bool, place: str | None) -> None:
    torch.manual_seed(0)
    base = torch.nn.Sequential(torch.nn.Linear(5, WIDTH), *(Block() for _ in range(2)))
    blocks = [PaddleBlock(gives=gives, adds=adds) for _ in range(2)]
    raw = paddle.nn.Sequential(paddle.nn.Linear(5, WIDTH), *blocks)
    result = padiff.compare(base, raw, np.random.default_rng(0).normal(size=(3, 5)).astype("float32"))
    assert result.aligned is (place is None)
    assert (result.divergence and result.divergence.raw_path) == place
