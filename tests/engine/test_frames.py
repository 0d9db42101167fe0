"""A convolution that pads in base, and is given padded pictures in raw: a wrong frame is the fault of who makes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff

X = np.random.default_rng(0).normal(size=(2, 3, 8, 8)).astype("float32")
F = paddle.nn.functional


class Within(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = torch.nn.Conv2d(3, 6, 3, 2, 1), torch.nn.Conv2d(6, 4, 3, padding=1)

    def forward(self, x: Any) -> Any:
        return self.two(self.one(x).relu()).mean((2, 3))


class Outside(paddle.nn.Layer):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.bug = bug
        self.late = paddle.nn.Conv2D(6, 4, 3)
        self.early = paddle.nn.Conv2D(3, 6, 3, 2)

    def forward(self, x: Any) -> Any:
        x = F.pad(x, [0, 1, 0, 1] if self.bug == "side" else [1, 1, 1, 1], value=0.1 if self.bug == "value" else 0.0)
        x = F.relu(self.early(x))
        x = F.pad(x, [2, 2, 2, 2] if self.bug == "more" else [1, 1, 1, 1])
        return self.late(x).mean([2, 3])


class Torch(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.head = Within(), torch.nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.block(x))


class Paddle(paddle.nn.Layer):
    def __init__(self, bug: str = "") -> None:
        super().__init__()
        self.last, self.inner = paddle.nn.Linear(4, 3), Outside(bug)

    def forward(self, x: Any) -> Any:
        return self.last(self.inner(x))


def test_a_frame_like_the_layers_own_is_right() -> None:
    result = padiff.compare(Torch(), Paddle(), X)
    assert result.aligned, str(result)


@pytest.mark.parametrize("bug", ["side", "value", "more"])
def test_another_frame_is_the_fault_of_the_code_that_makes_it(bug: str) -> None:
    result = padiff.compare(Torch(), Paddle(bug), X)
    assert result.divergence is not None
    assert (result.divergence.base_path, result.divergence.raw_path) == ("block", "inner"), str(result)
    assert result.divergence.op is not None
    assert "pad" in result.divergence.op.raw


def test_a_layer_that_is_given_the_right_frame_is_wrong_itself() -> None:
    raw = Paddle()
    raw.inner.early.register_forward_post_hook(lambda _, given, made: made * 1.01)
    result = padiff.compare(Torch(), raw, X)
    assert result.divergence is not None
    assert result.divergence.raw_path == "inner.early", str(result)


class PadsItself(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.pool = torch.nn.Conv2d(3, 4, 3), torch.nn.MaxPool2d(2, 1)
        self.last = torch.nn.Conv2d(4, 2, 3)

    def forward(self, x: Any) -> Any:
        x = torch.nn.functional.pad(self.first(x), (1, 1, 1, 1))
        return self.last(self.pool(x))


class PoolPads(torch.nn.Module):
    """Beyond the border of its pool is less than anything, not zero."""

    def __init__(self, pool: torch.nn.Module) -> None:
        super().__init__()
        self.last, self.begin, self.pool = torch.nn.Conv2d(4, 2, 3), torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3)), pool

    def forward(self, x: Any) -> Any:
        return self.last(self.pool(self.begin(x)))


def test_a_pool_that_pads_otherwise_than_the_code_before_base_s() -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 9, 9)).astype("float32")
    found = padiff.compare(PadsItself(), PoolPads(torch.nn.MaxPool2d(2, 1, padding=1)), x).divergence
    assert found is not None
    assert (found.raw_path, found.phase) == ("pool", "forward"), str(found)
