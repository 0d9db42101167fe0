"""A small nested pair for lists and dumps: two blocks of three layers, a norm with running statistics, a head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import torch

from padiff import assign_weight

FRAMEWORKS = ("torch", "paddle")
EVERY = [
    *("block1.fc1", "block1.act", "block1.fc2", "block1"),
    *("block2.fc1", "block2.act", "block2.fc2", "block2"),
    *("norm", "head", ""),
]
"""All calls of the model in the order in which they end."""


class TorchBlock(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = torch.nn.Linear(6, 8)
        self.act = torch.nn.GELU()
        self.fc2 = torch.nn.Linear(8, 6)

    def forward(self, x: Any) -> Any:
        return x + self.fc2(self.act(self.fc1(x)))


class TorchBlocks(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block1 = TorchBlock()
        self.block2 = TorchBlock()
        self.norm = torch.nn.BatchNorm1d(6)
        self.head = torch.nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.norm(self.block2(self.block1(x))))


class PaddleBlock(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = paddle.nn.Linear(6, 8)
        self.act = paddle.nn.GELU()
        self.fc2 = paddle.nn.Linear(8, 6)

    def forward(self, x: Any) -> Any:
        return x + self.fc2(self.act(self.fc1(x)))


class PaddleBlocks(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.block1 = PaddleBlock()
        self.block2 = PaddleBlock()
        self.norm = paddle.nn.BatchNorm1D(6)
        self.head = paddle.nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.norm(self.block2(self.block1(x))))


def blocks(framework: str) -> Any:
    return TorchBlocks() if framework == "torch" else PaddleBlocks()


def twins(first: str, second: str) -> tuple[Any, Any]:
    """Two models of the same weights."""
    one, other = blocks(first), blocks(second)
    assert assign_weight(base_model=one, raw_model=other)
    return one, other


def data(step: int = 0, rows: int = 5) -> np.ndarray:
    return np.random.default_rng(step).normal(size=(rows, 6)).astype(np.float32)


def tensor(framework: str, array: np.ndarray) -> Any:
    return torch.as_tensor(array) if framework == "torch" else paddle.to_tensor(array)


def linear(framework: str) -> type:
    return torch.nn.Linear if framework == "torch" else paddle.nn.Linear


def sgd(model: Any, rate: float = 0.1) -> Callable[[], None]:
    """A function that steps and clears."""
    if isinstance(next(iter(model.parameters())), torch.Tensor):
        ours = torch.optim.SGD(model.parameters(), lr=rate)

        def step() -> None:
            ours.step()
            ours.zero_grad()
    else:
        theirs = paddle.optimizer.SGD(rate, parameters=model.parameters())

        def step() -> None:
            theirs.step()
            theirs.clear_grad()

    return step


def train(proxy: Any, steps: int, rate: float = 0.1, path: Any = None) -> None:
    """The documented loop: run, backward, update, dump."""
    update = sgd(proxy, rate)
    for step in range(steps):
        loss = (proxy(tensor(proxy.framework, data(step))) ** 2).mean()
        proxy.backward(loss)
        update()
        proxy.try_dump(path)
