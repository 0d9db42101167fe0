"""Vectors of a block that two authors use in different orders: what order leaves over stays in its block."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import torch

import padiff

SIZE = 6


class Mix(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name in ("decay", "first", "mix_key", "mix_value", "mix_receptance"):
            self.register_parameter(f"time_{name}", torch.nn.Parameter(torch.rand(SIZE)))
        for name in ("key", "value", "receptance", "output"):
            self.add_module(name, torch.nn.Linear(SIZE, SIZE, bias=False))

    def forward(self, x: Any) -> Any:
        past = torch.roll(x, 1, 1)
        key = x * self.time_mix_key + past * (1 - self.time_mix_key)
        value = x * self.time_mix_value + past * (1 - self.time_mix_value)
        gate = x * self.time_mix_receptance + past * (1 - self.time_mix_receptance)
        key, value, gate = self.key(key), self.value(value), torch.sigmoid(self.receptance(gate))
        return x + self.output(gate * torch.tanh(key * self.time_decay + self.time_first) * value)


class PaddleMix(paddle.nn.Layer):
    """The gate comes first."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        for name in ("decay", "bonus", "mu_k", "mu_v", "mu_r"):
            self.add_parameter(name, self.create_parameter([SIZE]))
        for name in ("Wk", "Wv", "Wr", "Wo"):
            self.add_sublayer(name, paddle.nn.Linear(SIZE, SIZE, bias_attr=False))
        self.scale = scale

    def forward(self, x: Any) -> Any:
        past = paddle.roll(x, 1, 1)
        gate = paddle.nn.functional.sigmoid(self.Wr(past + (x - past) * self.mu_r))
        key = self.Wk(past + (x - past) * self.mu_k)
        value = self.Wv(past + (x - past) * self.mu_v) * self.scale
        return x + self.Wo(gate * paddle.tanh(key * self.decay + self.bonus) * value)


def compared(raw: Any) -> padiff.Result:
    torch.manual_seed(0)
    base = torch.nn.Sequential(*(Mix() for _ in range(3)))
    return padiff.compare(base, raw, np.random.default_rng(0).normal(size=(2, 5, SIZE)).astype("float32"))


def test_aligned() -> None:
    assert compared(paddle.nn.Sequential(*(PaddleMix() for _ in range(3)))).aligned


def test_the_place_is_named() -> None:
    found = compared(paddle.nn.Sequential(PaddleMix(), PaddleMix(2.0), PaddleMix()))
    assert found.divergence is not None
    assert found.divergence.raw_path == "1"
