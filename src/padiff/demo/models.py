"""A small transformer encoder in torch and its port to paddle."""

from __future__ import annotations

from typing import Any

import paddle
import torch

WIDTH, HEADS, HIDDEN, DEPTH, CLASSES, FEATURES, TOKENS = 32, 4, 48, 3, 10, 12, 9


class TorchBlock(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = torch.nn.LayerNorm(WIDTH)
        self.attention = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.norm2 = torch.nn.LayerNorm(WIDTH)
        self.fc1 = torch.nn.Linear(WIDTH, HIDDEN)
        self.act = torch.nn.GELU()
        self.fc2 = torch.nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Any) -> Any:
        h = self.norm1(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.fc2(self.act(self.fc1(self.norm2(x))))


class TorchEncoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Linear(FEATURES, WIDTH)
        self.blocks = torch.nn.ModuleList([TorchBlock() for _ in range(DEPTH)])
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.head = torch.nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Any) -> Any:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


class PaddleBlock(paddle.nn.Layer):
    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__()
        self.norm1 = paddle.nn.LayerNorm(WIDTH)
        self.attention = paddle.nn.MultiHeadAttention(WIDTH, HEADS)
        self.norm2 = paddle.nn.LayerNorm(WIDTH, epsilon=eps)
        self.fc1 = paddle.nn.Linear(WIDTH, HIDDEN)
        self.act = paddle.nn.GELU()
        self.fc2 = paddle.nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.norm1(x))
        return x + self.fc2(self.act(self.fc1(self.norm2(x))))


class PaddleEncoder(paddle.nn.Layer):
    def __init__(self, mistake: bool = False) -> None:
        super().__init__()
        self.embed = paddle.nn.Linear(FEATURES, WIDTH)
        # The mistake: one norm of one block was ported with another epsilon.
        self.blocks = paddle.nn.LayerList([PaddleBlock(1e-3 if mistake and i == 1 else 1e-5) for i in range(DEPTH)])
        self.norm = paddle.nn.LayerNorm(WIDTH)
        self.head = paddle.nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Any) -> Any:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))
