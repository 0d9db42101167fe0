"""Modules that ask what they are given for no number: a table of positions takes an activation for its dtype, and any
will do."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff
from tests.engine.test_crossings import counted

X = np.random.default_rng(0).standard_normal((2, 6, 8)).astype("float32")
HEADS, WIDTH = 2, 4


class Table(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", 0.5 ** torch.arange(WIDTH), persistent=False)

    def forward(self, like: Any) -> Any:
        return torch.cos(torch.arange(6.0)[:, None] * self.steps).to(like.dtype)


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (torch.nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Any, table: Any) -> Any:
        q, k, v = (one(x).reshape(2, 6, HEADS, WIDTH).transpose(1, 2) for one in (self.q, self.k, self.v))
        scores = torch.softmax((q * table) @ (k * table).mT, -1)
        return self.out((scores @ v).transpose(1, 2).reshape(2, 6, 8))


class Net(torch.nn.Module):
    """Makes the table once, of what comes in."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 8)
        self.table, self.attention = Table(), Attention()

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        return self.attention(x, self.table(x))


class PaddleTable(paddle.nn.Layer):
    def __init__(self, slower: float) -> None:
        super().__init__()
        self.slower = slower
        self.register_buffer("steps", 0.5 ** paddle.arange(WIDTH).astype("float32"), persistable=False)

    def forward(self, like: Any) -> Any:
        places = paddle.arange(6).astype("float32") * self.slower
        return paddle.cos(places[:, None] * self.steps).astype(like.dtype)


class PaddleAttention(paddle.nn.Layer):
    """Makes it inside, of its values: as many numbers, and others."""

    def __init__(self, slower: float) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (paddle.nn.Linear(8, 8) for _ in range(4))
        self.table, self.scale = PaddleTable(slower), 1.0

    def forward(self, x: Any) -> Any:
        q, k, v = (one(x).reshape([2, 6, HEADS, WIDTH]) for one in (self.q, self.k, self.v))
        table = self.table(v)
        q, k, v = (one.transpose([0, 2, 1, 3]) for one in (q, k, v))
        scores = paddle.nn.functional.softmax((q * table) @ (k * table).transpose([0, 1, 3, 2]) * self.scale, -1)
        return self.out((scores @ v).transpose([0, 2, 1, 3]).reshape([2, 6, 8]))


class PaddleNet(paddle.nn.Layer):
    def __init__(self, slower: float = 1.0) -> None:
        super().__init__()
        self.first = paddle.nn.Linear(8, 8)
        self.attention = PaddleAttention(slower)

    def forward(self, x: Any) -> Any:
        return self.attention(self.first(x))


def test_any_activation_will_do() -> None:
    torch.manual_seed(0)
    base, raw = Net(), PaddleNet()
    runs = counted(base), counted(raw)
    result = padiff.compare(base, raw, X)
    assert result.aligned, str(result)
    assert len(runs[0]) <= 3
    assert len(runs[1]) == 1


def test_a_table_that_is_wrong_is_found() -> None:
    torch.manual_seed(0)
    result = padiff.compare(Net(), PaddleNet(slower=0.9), X)
    assert result.divergence is not None
    assert (result.divergence.base_path, result.divergence.raw_path) == ("table", "attention.table")


@pytest.mark.parametrize("place", ["attention.out", "attention"])
def test_what_else_is_wrong_is_found(place: str) -> None:
    torch.manual_seed(0)
    base, raw = Net(), PaddleNet()
    if place == "attention":
        raw.attention.scale = 0.5
    else:
        raw.attention.out.register_forward_post_hook(lambda layer, given, made: made * 1.1)
    result = padiff.compare(base, raw, X)
    assert result.divergence is not None
    assert (result.divergence.raw_path, result.divergence.phase) == (place, "forward")


class Switched(torch.nn.Module):
    """Reads numbers with following switched off: what is handed to it matters."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.first, self.gate, self.factor = torch.nn.Linear(8, 8), torch.nn.Sigmoid(), factor

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        with torch.no_grad():
            gate = self.gate(x * self.factor)
        return x * gate


def test_a_wrong_number_is_found_where_following_is_off() -> None:
    torch.manual_seed(0)
    result = padiff.compare(Switched(1.0), Switched(1.5), X)
    assert result.divergence is not None
    assert (result.divergence.raw_path, result.divergence.phase) == ("", "forward")
