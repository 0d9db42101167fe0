"""Attention that takes a mask and is given none, where base's is: who does not hand it on is named, with models built
differently; and a wrong mask, or table, is the doing of who made it."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff

ROWS = np.random.default_rng(0).normal(size=(2, 6, 8)).astype("float32")
LEAST = -1e9


class Causal(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.o = torch.nn.Linear(8, 24), torch.nn.Linear(8, 8)

    def forward(self, x: Any, mask: Any, turn: tuple[Any, Any]) -> Any:
        q, k, v = (one.view(2, 6, 2, 4).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        q, k = (one * turn[0] + one.roll(2, -1) * turn[1] for one in (q, k))
        scores = q @ k.transpose(-2, -1) * 0.5 + mask
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(2, 6, 8))


class Turning(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("speed", torch.tensor([1.0, 0.1, 1.0, 0.1]))

    def forward(self, x: Any) -> Any:
        angles = torch.arange(6.0)[:, None] * self.speed
        return angles.cos(), angles.sin()


class Base(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.turning = torch.nn.Linear(8, 8), Turning()
        self.blocks = torch.nn.ModuleList([Causal() for _ in range(3)])

    def forward(self, x: Any) -> Any:
        x, turn = self.into(x), self.turning(x)
        mask = torch.full((2, 1, 6, 6), LEAST).triu(1)
        for block in self.blocks:
            x = x + block(x, mask, turn)
        return x


class Attention(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (paddle.nn.Linear(8, 8) for _ in range(4))
        self.bug = ""

    def forward(self, x: Any, turn: Any, attn_mask: Any = None) -> Any:
        q, k, v = (one(x).reshape([2, 6, 2, 4]).transpose([0, 2, 1, 3]) for one in (self.q, self.k, self.v))
        q, k = (one * turn[0] + one.roll(2, -1) * turn[1] for one in (q, k))
        scores = paddle.matmul(q, k, transpose_y=True) * 0.5
        if attn_mask is not None and self.bug != "inside":
            scores = scores + attn_mask
        found = paddle.matmul(paddle.nn.functional.softmax(scores), v)
        return self.o(found.transpose([0, 2, 1, 3]).reshape([2, 6, 8]))


class Layer(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.attend, self.bug = Attention(), ""

    def forward(self, x: Any, turn: Any, mask: Any = None) -> Any:
        return x + self.attend(x, turn, attn_mask=None if self.bug == "layer" else mask)


class Turns(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.bug = ""
        self.register_buffer("speed", paddle.to_tensor([1.0, 0.1, 1.0, 0.1]))

    def forward(self, x: Any) -> Any:
        angles = paddle.arange(6.0)[:, None] * self.speed
        return angles.cos(), (angles.cos() if self.bug == "sine" else angles.sin())


class Stack(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.bug = paddle.nn.LayerList([Layer() for _ in range(3)]), ""

    def forward(self, x: Any, turn: Any, mask: Any = None) -> Any:
        for layer in self.layers:
            x = layer(x, turn, None if self.bug == "stack" else mask)
        return x


class Raw(paddle.nn.Layer):
    def __init__(self, bug: str = "") -> None:
        super().__init__()
        self.first, self.turns, self.stack, self.bug = paddle.nn.Linear(8, 8), Turns(), Stack(), bug
        self.turns.bug = self.stack.bug = bug
        self.stack.layers[1].bug = self.stack.layers[1].attend.bug = bug

    def forward(self, x: Any) -> Any:
        x, turn = self.first(x), self.turns(x)
        mask = paddle.triu(paddle.full([1, 1, 6, 6], LEAST), 2 if self.bug == "made" else 1)
        return self.stack(x, turn, mask)


PLACES = {
    "layer": "stack.layers.1",
    "stack": "stack",
    "made": "",
    "inside": "stack.layers.1.attend",
    "sine": "turns",
}


def test_nothing_is_wrong() -> None:
    torch.manual_seed(0)
    result = padiff.compare(Base(), Raw(), ROWS)
    assert result.aligned, str(result)


@pytest.mark.parametrize("bug", PLACES)
def test_who_does_not_hand_it_on_or_made_it_wrong(bug: str) -> None:
    torch.manual_seed(0)
    found = padiff.compare(Base(), Raw(bug), ROWS).divergence
    assert found is not None
    assert (found.phase, found.raw_path) == ("forward", PLACES[bug]), str(found)
    if bug != "sine":
        assert any(cause.name.startswith("mask") for cause in found.causes[:3]), found.causes
