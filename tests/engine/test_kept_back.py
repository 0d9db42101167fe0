"""Modules that only raw has around layers of base's: what they make and do not go on with, or make once too often."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch
from torch import nn

import padiff

WIDTH, WORDS, PLACES = 8, 23, 6
IDS = np.random.default_rng(0).integers(0, WORDS, size=(2, PLACES))


class Layer(paddle.nn.Layer):
    """All in one, with norms after each half."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.value, self.out = (paddle.nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.norm1, self.norm2 = paddle.nn.LayerNorm(WIDTH), paddle.nn.LayerNorm(WIDTH)
        self.linear1, self.linear2 = paddle.nn.Linear(WIDTH, 3 * WIDTH), paddle.nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        mixed = paddle.nn.functional.softmax(self.query(x), -1) * self.value(x)
        x = self.norm1(x + self.out(mixed))
        return self.norm2(x + self.linear2(paddle.nn.functional.gelu(self.linear1(x))))


class Model(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = paddle.nn.Embedding(WORDS, WIDTH), paddle.nn.Embedding(PLACES, WIDTH)
        self.layers = paddle.nn.LayerList([Layer() for _ in range(3)])

    def forward(self, ids: Any) -> Any:
        x = self.words(ids) + self.places(paddle.arange(PLACES))
        for layer in self.layers:
            x = layer(x)
        return x


class Scores(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.value = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        return torch.softmax(self.query(x), -1) * self.value(x)


class Output(nn.Module):
    def __init__(self, inner: int) -> None:
        super().__init__()
        self.dense, self.norm, self.bug = nn.Linear(inner, WIDTH), nn.LayerNorm(WIDTH), ""

    def forward(self, x: Any, around: Any) -> Any:
        x = self.dense(x)
        if self.bug == "only what leads around":
            return self.norm(around)
        found = self.norm(x + around)
        return self.norm(found) if self.bug == "normed twice" else found


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scores, self.output, self.bug = Scores(), Output(WIDTH), ""

    def forward(self, x: Any) -> Any:
        mixed = self.scores(x)
        return self.output(x, mixed) if self.bug == "swapped" else self.output(mixed, x)


class Wider(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense, self.bug = nn.Linear(WIDTH, 3 * WIDTH), ""

    def forward(self, x: Any) -> Any:
        return self.dense(x) if self.bug == "as it is" else nn.functional.gelu(self.dense(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.wider, self.output = Attention(), Wider(), Output(3 * WIDTH)

    def forward(self, x: Any) -> Any:
        x = self.attention(x)
        return self.output(self.wider(x), x)


class Embeddings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.bug = nn.Embedding(WORDS, WIDTH), nn.Embedding(PLACES, WIDTH), ""

    def forward(self, ids: Any) -> Any:
        words, places = self.words(ids), self.places(torch.arange(PLACES)[None].expand_as(ids))
        return places if self.bug == "no words" else words + places


class Port(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embeddings = Embeddings()
        self.blocks = nn.ModuleList([Block() for _ in range(3)])

    def forward(self, ids: Any) -> Any:
        x = self.embeddings(ids)
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize(
    ("path", "bug"),
    [
        ("blocks.1.attention.output", "normed twice"),
        ("blocks.1.output", "normed twice"),
        ("blocks.1.attention.output", "only what leads around"),
        ("blocks.1.output", "only what leads around"),
        ("blocks.1.attention", "swapped"),
        ("embeddings", "no words"),
        ("blocks.0.wider", "as it is"),
        ("blocks.1.wider", "as it is"),
    ],
)
def test_who_keeps_back_what_it_made(path: str, bug: str) -> None:
    base, raw = Model(), Port().eval()
    base.eval()
    for layer in base.layers:  # one that has learned nothing, called twice, is one called once
        layer.norm1.weight.set_value(paddle.linspace(0.5, 2.0, WIDTH))
        layer.norm2.weight.set_value(paddle.linspace(2.0, 0.5, WIDTH))
    assert padiff.compare(base, raw, IDS).aligned
    raw.get_submodule(path).bug = bug  # type: ignore[assignment]
    found = padiff.compare(base, raw, IDS).divergence
    assert found is not None
    assert (found.phase, found.raw_path) == ("forward", path), str(found)


class Gated(paddle.nn.Layer):
    """Its activation is a part of an op."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = (paddle.nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Any) -> Any:
        return x + self.down(paddle.nn.functional.swiglu(self.gate(x), self.up(x)))


class Silu(nn.Module):
    detached = False

    def forward(self, x: Any) -> Any:
        x = nn.functional.silu(x)
        return x.detach() if self.detached else x


class Gates(nn.Module):
    twice = False

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.act = Silu()

    def forward(self, x: Any) -> Any:
        gate = self.act(self.gate(x))
        return x + self.down((self.act(gate) if self.twice else gate) * self.up(x))


@pytest.mark.parametrize(("path", "bug", "phase"), [("1", "twice", "forward"), ("1.act", "detached", "backward")])
def test_an_activation_that_only_raw_has_a_module_for(path: str, bug: str, phase: str) -> None:
    base = paddle.nn.Sequential(*(Gated() for _ in range(3)))
    raw = nn.Sequential(*(Gates() for _ in range(3)))
    x = np.random.default_rng(0).normal(size=(4, WIDTH)).astype("float32")
    assert padiff.compare(base, raw, x).aligned
    setattr(raw.get_submodule(path), bug, True)
    found = padiff.compare(base, raw, x).divergence
    assert found is not None
    assert (found.phase, found.raw_path) == (phase, path), str(found)
