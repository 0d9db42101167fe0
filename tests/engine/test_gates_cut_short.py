"""A gate that returns its factors alone, where all others of its class multiply by them: base computes those factors,
too, but an author who ends one of them there would end them all there."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff


class Gate(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.reduce, self.expand = torch.nn.Conv2d(8, 4, 1), torch.nn.Conv2d(4, 8, 1)

    def forward(self, x: Any) -> Any:
        h = torch.relu(self.reduce(x.mean((2, 3), keepdim=True)))
        return x * torch.sigmoid(self.expand(h))


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers = torch.nn.Conv2d(8, 8, 3, padding=1), Gate(), torch.nn.Conv2d(8, 8, 1)
        self.block = torch.nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        return x + self.block(x)


class Excite(paddle.nn.Layer):
    forgets = False

    def __init__(self) -> None:
        super().__init__()
        self.pool = paddle.nn.AdaptiveAvgPool2D(1)
        self.fc1, self.fc2 = paddle.nn.Conv2D(8, 4, 1), paddle.nn.Conv2D(4, 8, 1)

    def forward(self, x: Any) -> Any:
        factors = paddle.nn.functional.sigmoid(self.fc2(paddle.nn.functional.relu(self.fc1(self.pool(x)))))
        return factors if self.forgets else x * factors


class Residual(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.excite, self.project = (
            paddle.nn.Conv2D(8, 8, 3, padding=1),
            Excite(),
            paddle.nn.Conv2D(8, 8, 1),
        )

    def forward(self, x: Any) -> Any:
        return x + self.project(self.excite(self.conv(x)))


@pytest.mark.parametrize("which", [None, 1, 2, 3])
def test_the_gate_is_named(which: int | None) -> None:
    torch.manual_seed(0)
    base = torch.nn.Sequential(*(Block() for _ in range(4)))
    raw = paddle.nn.Sequential(*(Residual() for _ in range(4)))
    if which is not None:
        raw[which].excite.forgets = True
    result = padiff.compare(base, raw, np.random.default_rng(0).normal(size=(2, 8, 6, 6)).astype("float32"))
    if which is None:
        assert result.aligned, str(result)
        return
    assert result.divergence is not None
    assert result.divergence.raw_path == f"{which}.excite"
