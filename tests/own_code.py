"""One attention block whose own code does the work, in torch and in paddle, with switches for what people get wrong."""

# ruff: noqa: SIM108  what differs stands on a line of its own: lines are what is asked for

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import torch

import padiff


class TorchBlock(torch.nn.Module):
    """A norm written out, attention written out, a residual; three linear layers."""

    tagged = False

    def __init__(self, bug: str = "") -> None:
        super().__init__()
        self.q = torch.nn.Linear(8, 8)
        self.k = torch.nn.Linear(8, 8)
        self.o = torch.nn.Linear(8, 8)
        self.bug = bug

    def forward(self, x: Any) -> Any:
        mean_square = x.pow(2).mean(-1, keepdim=True)
        if self.bug == "eps":
            h = x * torch.rsqrt(mean_square + 1e-3)
        else:
            h = x * torch.rsqrt(mean_square + 1e-5)
        q = self.q(h).view(2, 5, 2, 4).transpose(1, 2)
        k = self.k(h).view(2, 5, 2, 4).transpose(1, 2)
        if self.bug == "operands":
            scores = k @ q.transpose(-1, -2)
        else:
            scores = q @ k.transpose(-1, -2)
        if self.bug != "scale":
            scores = scores * 0.5
        if self.bug == "mask":
            mask = torch.ones(5, 5, dtype=torch.bool).triu(2)
        else:
            mask = torch.ones(5, 5, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(mask, float("-inf"))
        if self.tagged:
            scores = padiff.tag("scores", scores)
        if self.bug == "axis":
            weights = torch.nn.functional.softmax(scores, -2)
        else:
            weights = torch.nn.functional.softmax(scores, -1)
        if self.bug == "detach":
            weights = weights.detach()
        context = weights @ k
        if self.bug != "transpose":
            context = context.transpose(1, 2)
        context = context.reshape(2, 5, 8)
        if self.bug == "extra":
            context = context.tanh()
        out = self.o(context)
        if self.bug == "residual":
            return out
        return out + x


class PaddleBlock(paddle.nn.Layer):
    """The same, as somebody else would write it."""

    tagged = False

    def __init__(self, bug: str = "") -> None:
        super().__init__()
        self.q = paddle.nn.Linear(8, 8)
        self.k = paddle.nn.Linear(8, 8)
        self.o = paddle.nn.Linear(8, 8)
        self.bug = bug

    def forward(self, x: Any) -> Any:
        mean_square = paddle.mean(x * x, -1, keepdim=True)
        if self.bug == "eps":
            h = x * paddle.rsqrt(mean_square + 1e-3)
        else:
            h = x * paddle.rsqrt(mean_square + 1e-5)
        q = self.q(h).reshape([2, 5, 2, 4]).transpose([0, 2, 1, 3])
        k = self.k(h).reshape([2, 5, 2, 4]).transpose([0, 2, 1, 3])
        if self.bug == "operands":
            scores = k @ q.transpose([0, 1, 3, 2])
        else:
            scores = q @ k.transpose([0, 1, 3, 2])
        if self.bug != "scale":
            scores = scores * 0.5
        if self.bug == "mask":
            mask = paddle.triu(paddle.full([5, 5], -1e9), 2)
        else:
            mask = paddle.triu(paddle.full([5, 5], -1e9), 1)
        scores = scores + mask
        if self.tagged:
            scores = padiff.tag("scores", scores)
        if self.bug == "axis":
            weights = paddle.nn.functional.softmax(scores, -2)
        else:
            weights = paddle.nn.functional.softmax(scores, -1)
        if self.bug == "detach":
            weights = weights.detach()
        context = paddle.matmul(weights, k)
        if self.bug != "transpose":
            context = paddle.transpose(context, [0, 2, 1, 3])
        context = context.reshape([2, 5, 8])
        if self.bug == "extra":
            context = paddle.tanh(context)
        out = self.o(context)
        if self.bug == "residual":
            return out
        return out + x


class TorchModel(torch.nn.Module):
    def __init__(self, bug: str = "") -> None:
        super().__init__()
        self.first, self.second = TorchBlock(), TorchBlock(bug)

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x))


class PaddleModel(paddle.nn.Layer):
    def __init__(self, bug: str = "") -> None:
        super().__init__()
        self.first, self.second = PaddleBlock(), PaddleBlock(bug)

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x))


MODELS = {"torch": TorchModel, "paddle": PaddleModel}


def model(framework: str, bug: str = "") -> Any:
    """The same weights every time, in its own framework."""
    torch.manual_seed(3)
    paddle.seed(3)
    return MODELS[framework](bug)


def batch() -> Any:
    return np.random.RandomState(0).randn(2, 5, 8).astype("float32")
