"""Twins in torch and paddle: a transformer, and a CNN whose torch side writes in place."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # paddle looks for a compiler cache when it is imported
    import paddle

VOCABULARY = 512
CLASSES = 100


@dataclass(frozen=True)
class Case:
    """A pair of models and the size of its inputs."""

    name: str
    kind: Literal["transformer", "cnn"]
    depth: int
    width: int
    batch: int
    length: int
    """Tokens of a sequence, or pixels along an edge."""
    heads: int = 4


@dataclass(frozen=True)
class Pair:
    """Two models that compute the same, once the weights of one are in the other, and inputs for both."""

    torch_model: Any
    paddle_model: Any
    torch_inputs: dict[str, Any]
    paddle_inputs: dict[str, Any]


def build(case: Case) -> Pair:
    """Both models with weights of their own, and equal inputs."""
    torch.manual_seed(0)
    paddle.seed(0)
    if case.kind == "transformer":
        models = TorchTransformer(case), PaddleTransformer(case)
    else:
        models = TorchCNN(case), PaddleCNN(case)
    return Pair(*models, *inputs(case))


def inputs(case: Case) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same numbers as tensors of torch and of paddle."""
    generator = np.random.default_rng(0)
    if case.kind == "transformer":
        array = generator.integers(0, VOCABULARY, (case.batch, case.length))
    else:
        array = generator.standard_normal((case.batch, 3, case.length, case.length), dtype=np.float32)
    return {"x": torch.from_numpy(array.copy())}, {"x": paddle.to_tensor(array)}


# --- transformer


class TorchBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.act = nn.GELU()
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        split = (batch, length, self.heads, width // self.heads)
        y = self.norm1(x)
        q = self.query(y).reshape(split).transpose(1, 2)
        k = self.key(y).reshape(split).transpose(1, 2)
        v = self.value(y).reshape(split).transpose(1, 2)
        weights = torch.softmax(q @ k.transpose(2, 3) * (width // self.heads) ** -0.5, dim=-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(self.act(self.up(self.norm2(x))))


class TorchTransformer(nn.Module):
    def __init__(self, case: Case) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, case.width)
        self.blocks = nn.ModuleList(TorchBlock(case.width, case.heads) for _ in range(case.depth))
        self.norm = nn.LayerNorm(case.width)
        self.head = nn.Linear(case.width, VOCABULARY)

    def forward(self, x: Any) -> Any:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class PaddleBlock(paddle.nn.Layer):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = paddle.nn.LayerNorm(width)
        self.query = paddle.nn.Linear(width, width)
        self.key = paddle.nn.Linear(width, width)
        self.value = paddle.nn.Linear(width, width)
        self.out = paddle.nn.Linear(width, width)
        self.norm2 = paddle.nn.LayerNorm(width)
        self.up = paddle.nn.Linear(width, 4 * width)
        self.act = paddle.nn.GELU()
        self.down = paddle.nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        split = [batch, length, self.heads, width // self.heads]
        order = [0, 2, 1, 3]
        y = self.norm1(x)
        q = self.query(y).reshape(split).transpose(order)
        k = self.key(y).reshape(split).transpose(order)
        v = self.value(y).reshape(split).transpose(order)
        scores = paddle.matmul(q, k, transpose_y=True) * (width // self.heads) ** -0.5
        weights = paddle.nn.functional.softmax(scores, axis=-1)
        x = x + self.out(paddle.matmul(weights, v).transpose(order).reshape([batch, length, width]))
        return x + self.down(self.act(self.up(self.norm2(x))))


class PaddleTransformer(paddle.nn.Layer):
    def __init__(self, case: Case) -> None:
        super().__init__()
        self.embed = paddle.nn.Embedding(VOCABULARY, case.width)
        self.blocks = paddle.nn.LayerList([PaddleBlock(case.width, case.heads) for _ in range(case.depth)])
        self.norm = paddle.nn.LayerNorm(case.width)
        self.head = paddle.nn.Linear(case.width, VOCABULARY)

    def forward(self, x: Any) -> Any:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


# --- CNN: the width doubles at every second block, where the picture halves


def _stages(case: Case) -> list[tuple[int, int, int]]:
    """Channels in, channels out and stride of each residual block."""
    found = []
    channels = case.width
    for place in range(case.depth):
        wider = place > 0 and place % 2 == 0
        found.append((channels, channels * (2 if wider else 1), 2 if wider else 1))
        channels *= 2 if wider else 1
    return found


class TorchResidual(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.shortcut = nn.Conv2d(before, after, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x: Any) -> Any:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += self.shortcut(x)
        return self.relu(y)


class TorchCNN(nn.Module):
    def __init__(self, case: Case) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, case.width, 3, 1, 1, bias=False)
        self.bn = nn.BatchNorm2d(case.width)
        self.relu = nn.ReLU(inplace=True)
        stages = _stages(case)
        self.blocks = nn.Sequential(*(TorchResidual(*stage) for stage in stages))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(stages[-1][1], CLASSES)

    def forward(self, x: Any) -> Any:
        return self.head(self.pool(self.blocks(self.relu(self.bn(self.stem(x))))).flatten(1))


class PaddleResidual(paddle.nn.Layer):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = paddle.nn.Conv2D(before, after, 3, stride, 1, bias_attr=False)
        self.bn1 = paddle.nn.BatchNorm2D(after)
        self.relu = paddle.nn.ReLU()
        self.conv2 = paddle.nn.Conv2D(after, after, 3, 1, 1, bias_attr=False)
        self.bn2 = paddle.nn.BatchNorm2D(after)
        wider = stride > 1
        self.shortcut = paddle.nn.Conv2D(before, after, 1, stride, bias_attr=False) if wider else paddle.nn.Identity()

    def forward(self, x: Any) -> Any:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(y + self.shortcut(x))


class PaddleCNN(paddle.nn.Layer):
    def __init__(self, case: Case) -> None:
        super().__init__()
        self.stem = paddle.nn.Conv2D(3, case.width, 3, 1, 1, bias_attr=False)
        self.bn = paddle.nn.BatchNorm2D(case.width)
        self.relu = paddle.nn.ReLU()
        stages = _stages(case)
        self.blocks = paddle.nn.Sequential(*(PaddleResidual(*stage) for stage in stages))
        self.pool = paddle.nn.AdaptiveAvgPool2D(1)
        self.head = paddle.nn.Linear(stages[-1][1], CLASSES)

    def forward(self, x: Any) -> Any:
        return self.head(self.pool(self.blocks(self.relu(self.bn(self.stem(x))))).flatten(1))
