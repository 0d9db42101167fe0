"""A transformer of patches that is told what to do by a condition: norms without tensors that one author shifts inside
of a module of his own, and patches that are a convolution here and a linear layer there."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch
from torch import nn

import padiff

INPUTS = {
    "x": np.random.default_rng(0).normal(size=(2, 3, 8, 8)).astype("float32"),
    "c": np.random.default_rng(1).normal(size=(2, 12)).astype("float32"),
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(12, elementwise_affine=False)
        self.ada = nn.Sequential(nn.SiLU(), nn.Linear(12, 36))
        self.fc = nn.Linear(12, 12)

    def forward(self, x: Any, c: Any) -> Any:
        shift, scale, gate = self.ada(c)[:, None].chunk(3, -1)
        return x + gate * self.fc(self.norm(x) * (1 + scale) + shift).tanh()


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch, self.head = nn.Conv2d(3, 12, 4, 4), nn.Linear(12, 5)
        self.cond = nn.Sequential(nn.Linear(12, 12), nn.Tanh())
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: Any, c: Any) -> Any:
        x, c = self.patch(x).flatten(2).transpose(1, 2), self.cond(c)
        for block in self.blocks:
            x = block(x, c)
        return self.head(x)


class Shifted(paddle.nn.Layer):
    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Any, shift: Any, scale: Any) -> Any:
        return paddle.nn.functional.layer_norm(x, [12], epsilon=self.eps) * (1 + scale) + shift


class Layer(paddle.nn.Layer):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.bug = bug
        self.up, self.told = paddle.nn.Linear(12, 12), paddle.nn.Linear(12, 36)
        self.shifted = Shifted(1e-3 if bug == "eps" else 1e-5)

    def forward(self, x: Any, c: Any) -> Any:
        c = c if self.bug == "activation" else paddle.nn.functional.silu(c)
        shift, scale, gate = self.told(c).unsqueeze(1).chunk(3, -1)
        return x + gate * paddle.tanh(self.up(self.shifted(x, shift, scale)))


class Condition(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.one = paddle.nn.Linear(12, 12)

    def forward(self, c: Any) -> Any:
        return paddle.tanh(self.one(c))


class Port(paddle.nn.Layer):
    def __init__(self, bug: str = "") -> None:
        super().__init__()
        self.bug = bug
        self.out, self.cut = paddle.nn.Linear(12, 5), paddle.nn.Linear(48, 12)
        self.layers, self.about = paddle.nn.LayerList([Layer(bug) for _ in range(2)]), Condition()

    def forward(self, x: Any, c: Any) -> Any:
        order = [0, 2, 4, 1, 5, 3] if self.bug == "patches" else [0, 2, 4, 1, 3, 5]
        x = self.cut(x.reshape([2, 3, 2, 4, 2, 4]).transpose(order).reshape([2, 4, 48]))
        c = self.about(c)
        for layer in self.layers:
            x = layer(x, c)
        return self.out(x)


def test_the_port_is_right() -> None:
    torch.manual_seed(0)
    assert padiff.compare(Base(), Port(), INPUTS).aligned


@pytest.mark.parametrize(
    ("bug", "path", "cause"),
    [("patches", "", ""), ("eps", "layers.0.shifted", "eps"), ("activation", "layers.0", "missing activation")],
)
def test_where_it_is_wrong(bug: str, path: str, cause: str) -> None:
    torch.manual_seed(0)
    found = padiff.compare(Base(), Port(bug), INPUTS).divergence
    assert found is not None
    assert (found.raw_path, found.phase) == (path, "forward"), str(found)
    assert not cause or cause in [one.name for one in found.causes]
