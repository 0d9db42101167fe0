"""A convolution whose weight is kept by size and direction, in a layer of the framework's inside of a module that pads,
and in one of the user's own that does both."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch
from torch import nn

import padiff

X = np.random.default_rng(0).normal(size=(2, 4, 9)).astype("float32")


class Causal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 4, 3))

    def forward(self, x: Any) -> Any:
        return self.conv(nn.functional.pad(x, (2, 0), mode="reflect"))


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Causal() for _ in range(3))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = x + nn.functional.elu(layer(x))
        return x


class Own(paddle.nn.Layer):
    def __init__(self, mode: str) -> None:
        super().__init__()
        self.mode = mode
        self.b, self.v = self.create_parameter([4], is_bias=True), self.create_parameter([4, 4, 3])
        self.g = self.create_parameter([4])

    def forward(self, x: Any) -> Any:
        weight = self.v * (self.g / self.v.square().sum([1, 2]).sqrt()).reshape([-1, 1, 1])
        padded = paddle.nn.functional.pad(x, [2, 0], mode=self.mode, data_format="NCL")
        return paddle.nn.functional.conv1d(padded, weight, self.b)


class Port(paddle.nn.Layer):
    def __init__(self, bug: str = "") -> None:
        super().__init__()
        self.bug = bug
        modes = ["replicate" if bug == "mode" and place == 1 else "reflect" for place in range(3)]
        self.tail, self.mid, self.front = Own(modes[2]), Own(modes[1]), Own(modes[0])

    def forward(self, x: Any) -> Any:
        for layer in (self.front, self.mid, self.tail):
            made = layer(x)
            x = x + (paddle.nn.functional.relu(made) if self.bug == "activation" else paddle.nn.functional.elu(made))
        return x


def base() -> Base:
    torch.manual_seed(0)
    model = Base()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.rand_like(parameter))
    return model


def test_they_find_their_places() -> None:
    result = padiff.compare(base(), Port(), X)
    assert result.aligned
    assert result.coverage["parameters"] == 1.0


@pytest.mark.parametrize(("bug", "path"), [("mode", "mid"), ("activation", "")])
def test_where_it_is_wrong(bug: str, path: str) -> None:
    found = padiff.compare(base(), Port(bug), X).divergence
    assert found is not None
    assert (found.raw_path, found.phase) == (path, "forward"), str(found)
