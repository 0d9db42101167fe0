"""Parameters and buffers that are a single number, with no axis: a temperature, a count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff

X = np.random.default_rng(0).standard_normal((4, 6)).astype("float32")


class TorchNet(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(6, 5)
        self.warmth = torch.nn.Parameter(torch.tensor(1.5))
        self.register_buffer("count", torch.tensor(2.0))

    def forward(self, x: Any) -> Any:
        return torch.tanh(self.first(x)) * self.warmth.exp() / self.count


class PaddleNet(paddle.nn.Layer):
    def __init__(self, warmth: float = 1.5, offset: float = 0.0) -> None:
        super().__init__()
        self.first = paddle.nn.Linear(6, 5)
        self.warmth = self.create_parameter([], default_initializer=paddle.nn.initializer.Constant(warmth))
        self.register_buffer("count", paddle.to_tensor(2.0))
        self.offset = offset

    def forward(self, x: Any) -> Any:
        return paddle.tanh(self.first(x)) * (self.warmth + self.offset).exp() / self.count


def sgd(model: Any, rate: float = 0.1) -> Any:
    if isinstance(model, torch.nn.Module):
        return torch.optim.SGD(model.parameters(), rate)
    return paddle.optimizer.SGD(rate, parameters=model.parameters())


def test_they_are_copied_and_trained() -> None:
    base, raw = TorchNet(), PaddleNet(warmth=0.3)
    inputs = (torch.from_numpy(X), paddle.to_tensor(X))
    result = padiff.compare(base, raw, inputs, optimizers=(sgd(base), sgd(raw)), steps=3)
    assert result.aligned, str(result)


def test_a_rate_that_differs_is_the_optimizers() -> None:
    base, raw = TorchNet(), PaddleNet()
    inputs = (torch.from_numpy(X), paddle.to_tensor(X))
    result = padiff.compare(base, raw, inputs, optimizers=(sgd(base), sgd(raw, 0.2)), steps=2)
    assert result.divergence is not None
    assert result.divergence.phase == "weight"


@pytest.mark.parametrize("offset", [0.0, 0.1], ids=["aligned", "another temperature"])
@pytest.mark.parametrize("sync", [False, True], ids=["free", "synchronised"])
def test_they_are_captured(tmp_path: Path, offset: float, sync: bool) -> None:
    base, raw = TorchNet(), PaddleNet(warmth=0.3, offset=offset)
    for model, folder, more in ((base, "a", {}), (raw, "b", {"base": tmp_path / "a", "sync": sync})):
        x = torch.from_numpy(X) if model is base else paddle.to_tensor(X)
        optimizer = sgd(model)
        with padiff.capture(model, to=tmp_path / folder, optimizer=optimizer, **more):
            for _ in range(2):
                model(x).square().mean().backward()
                optimizer.step()
                (optimizer.zero_grad if model is base else optimizer.clear_grad)()
    result = padiff.compare_dumps(tmp_path / "a", tmp_path / "b")
    assert result.aligned == (offset == 0.0), str(result)
    if offset:
        assert result.divergence is not None
        assert (result.divergence.raw_path, result.divergence.phase) == ("", "forward")
