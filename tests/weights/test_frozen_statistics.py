"""Norms whose statistics are frozen: leaves of the user's own that hold four tensors of one shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff

NAMES = ("weight", "bias", "running_mean", "running_var")


class Frozen(torch.nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        for name in NAMES:
            self.register_buffer(name, torch.rand(size) + 0.5)

    def forward(self, x: Any) -> Any:
        weight, bias, mean, var = (getattr(self, name).reshape(1, -1, 1, 1) for name in NAMES)
        scale = weight * (var + 1e-5).rsqrt()
        return x * scale + (bias - mean * scale)


class ConvLayer(torch.nn.Module):
    def __init__(self, inputs: int, outputs: int, size: int) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False)
        self.normalization, self.activation = Frozen(outputs), torch.nn.ReLU()

    def forward(self, x: Any) -> Any:
        return self.activation(self.normalization(self.convolution(x)))


class Embedder(torch.nn.Module):
    """Holds the pool."""

    def __init__(self) -> None:
        super().__init__()
        self.embedder, self.pooler = ConvLayer(3, 4, 3), torch.nn.MaxPool2d(3, 2, 1)

    def forward(self, x: Any) -> Any:
        return self.pooler(self.embedder(x))


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedder = Embedder()
        self.stages = torch.nn.Sequential(ConvLayer(4, 4, 3), ConvLayer(4, 4, 3))

    def forward(self, x: Any) -> Any:
        return self.stages(self.embedder(x)).mean((2, 3))


class PaddleFrozen(paddle.nn.Layer):
    """Uses them in another order."""

    def __init__(self, size: int, eps: float, names: Sequence[str] = NAMES) -> None:
        super().__init__()
        for name in names:
            self.register_buffer(name, paddle.ones([size]))
        self.eps, self.names = eps, names

    def forward(self, x: Any) -> Any:
        weight, bias, mean, var = (getattr(self, name) for name in self.names)
        scale = (var + self.eps).rsqrt() * weight
        shift = bias - mean * scale
        return x * scale.reshape([1, -1, 1, 1]) + shift.reshape([1, -1, 1, 1])


class ConvNorm(paddle.nn.Layer):
    def __init__(self, inputs: int, outputs: int, size: int, eps: float, names: Sequence[str]) -> None:
        super().__init__()
        self.conv = paddle.nn.Conv2D(inputs, outputs, size, padding=size // 2, bias_attr=False)
        self.norm = PaddleFrozen(outputs, eps, names)

    def forward(self, x: Any) -> Any:
        return paddle.nn.functional.relu(self.norm(self.conv(x)))


class PaddleNet(paddle.nn.Layer):
    def __init__(self, *, eps: float = 1e-5, ceil: bool = False, names: Sequence[str] = NAMES) -> None:
        super().__init__()
        self.stem = ConvNorm(3, 4, 3, eps, names)
        self.pool = paddle.nn.MaxPool2D(3, 2, 1, ceil_mode=ceil)
        self.body = paddle.nn.LayerList([ConvNorm(4, 4, 3, 1e-5, names), ConvNorm(4, 4, 3, 1e-5, names)])

    def forward(self, x: Any) -> Any:
        x = self.pool(self.stem(x))
        for one in self.body:
            x = one(x)
        return x.mean([2, 3])


def compared(**how: Any) -> padiff.Result:
    torch.manual_seed(0)
    return padiff.compare(Net(), PaddleNet(**how), np.random.default_rng(0).normal(size=(2, 3, 8, 8)).astype("float32"))


def test_aligned() -> None:
    assert compared().aligned


def test_statistics_under_other_names() -> None:
    names = ("gamma", "beta", "mean", "var")
    assert compared(names=names).aligned
    assert [one.raw_path for one in compared(names=names, eps=0.1).divergences] == ["stem.norm"]


@pytest.mark.parametrize(("how", "path"), [({"ceil": True}, "pool"), ({"eps": 0.1}, "stem.norm")])
def test_the_place_is_named(how: dict[str, Any], path: str) -> None:
    """Sizes that differ from the pool on leave each norm its own tensors; and the stem is not what holds the pool."""
    assert [one.raw_path for one in compared(**how).divergences] == [path]


def test_each_keeps_its_own() -> None:
    picture = np.random.default_rng(0).normal(size=(2, 3, 8, 8)).astype("float32")
    for entry in padiff.plan_weights(Net(), PaddleNet(ceil=True), picture).entries:
        assert [source.path.rpartition(".")[2] for source in entry.sources] == [entry.path.rpartition(".")[2]]
