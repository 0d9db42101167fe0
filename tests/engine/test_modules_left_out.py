"""A module that never calls one of its own: what it returns is something that base computes as well, on its way."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff

WIDTH = 6


class Experts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(WIDTH, 9), torch.nn.Linear(9, WIDTH)

    def forward(self, x: Any) -> Any:
        return self.down(torch.relu(self.up(x)))


class Sparse(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts, self.shared_expert = Experts(), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        return self.experts(x) + self.shared_expert(x)


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp = torch.nn.LayerNorm(WIDTH), Sparse()

    def forward(self, x: Any) -> Any:
        return x + self.mlp(self.norm(x))


class PaddleSparse(paddle.nn.Layer):
    def __init__(self, *, shared: bool) -> None:
        super().__init__()
        self.w1, self.w2 = paddle.nn.Linear(WIDTH, 9), paddle.nn.Linear(9, WIDTH)
        self.common, self.shared = paddle.nn.Linear(WIDTH, WIDTH), shared

    def forward(self, x: Any) -> Any:
        y = self.w2(paddle.nn.functional.relu(self.w1(x)))
        return y + self.common(x) if self.shared else y


class PaddleBlock(paddle.nn.Layer):
    def __init__(self, *, shared: bool) -> None:
        super().__init__()
        self.ln, self.ffn = paddle.nn.LayerNorm(WIDTH), PaddleSparse(shared=shared)

    def forward(self, x: Any) -> Any:
        return x + self.ffn(self.ln(x))


@pytest.mark.parametrize("shared", [True, False])
def test_who_holds_it_is_named(shared: bool) -> None:
    torch.manual_seed(0)
    base = torch.nn.Sequential(*(Block() for _ in range(2)))
    raw = paddle.nn.Sequential(*(PaddleBlock(shared=shared) for _ in range(2)))
    result = padiff.compare(base, raw, np.random.default_rng(0).normal(size=(3, WIDTH)).astype("float32"))
    assert result.aligned is shared
    assert [one.raw_path for one in result.divergences] == ([] if shared else ["0.ffn", "1.ffn"])
