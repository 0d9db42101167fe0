"""A module that keeps a parameter and does not take it up, where base's module ends with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff

X = np.random.default_rng(0).normal(size=(5, 8)).astype("float32")


class Summing(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.bias = torch.nn.Linear(8, 8, bias=False), torch.nn.Parameter(torch.randn(8))

    def forward(self, x: Any) -> Any:
        return self.linear(x).roll(1, 0) * 0.5 + self.bias


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.skip, self.norm = Summing(), torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)

    def forward(self, x: Any) -> Any:
        return x + torch.tanh(self.norm(self.conv(x) + self.skip(x)))


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.Sequential(*(Block() for _ in range(6)))

    def forward(self, x: Any) -> Any:
        return self.blocks(x)


class Spread(paddle.nn.Layer):
    def __init__(self, forgotten: bool) -> None:
        super().__init__()
        self.fc, self.shift = paddle.nn.Linear(8, 8, bias_attr=False), self.create_parameter([8])
        self.forgotten = forgotten

    def forward(self, x: Any) -> Any:
        spread = paddle.roll(self.fc(x), 1, 0) * 0.5
        return spread if self.forgotten else spread + self.shift


class Layer(paddle.nn.Layer):
    def __init__(self, forgotten: bool) -> None:
        super().__init__()
        self.norm, self.linear, self.spread = paddle.nn.LayerNorm(8), paddle.nn.Linear(8, 8), Spread(forgotten)

    def forward(self, x: Any) -> Any:
        summed = self.spread(x) + self.linear(x)
        return x + paddle.tanh(self.norm(summed))


class Port(paddle.nn.Layer):
    def __init__(self, forgotten: frozenset[int] = frozenset()) -> None:
        super().__init__()
        self.layers = paddle.nn.LayerList([Layer(place in forgotten) for place in range(6)])

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize("forgotten", [range(6), range(4, 5), range(0)])
def test_a_bias_that_nobody_adds(forgotten: range) -> None:
    torch.manual_seed(0)
    result = padiff.compare(Net(), Port(frozenset(forgotten)), X)
    assert result.aligned is not bool(forgotten)
    assert [one.raw_path for one in result.divergences] == [f"layers.{place}.spread" for place in forgotten]
    if result.divergence is not None:
        assert result.divergence.causes[0].name == "missing bias"
