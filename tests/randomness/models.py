"""Small models that draw, written in torch and in paddle; how they draw is given as a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import torch

from tests.twins import randomise

pf, tf = paddle.nn.functional, torch.nn.functional

Draw = Callable[[Any], Any]
FEATURES = 8


class TorchNet(torch.nn.Module):
    """Draws between two layers, in its own code."""

    def __init__(self, draw: Draw) -> None:
        super().__init__()
        self.first = torch.nn.Linear(FEATURES, FEATURES)
        self.second = torch.nn.Linear(FEATURES, FEATURES)
        self.draw = draw

    def forward(self, x: Any) -> Any:
        return self.second(self.draw(self.first(x)))


class PaddleNet(paddle.nn.Layer):
    """The same."""

    def __init__(self, draw: Draw) -> None:
        super().__init__()
        self.first = paddle.nn.Linear(FEATURES, FEATURES)
        self.second = paddle.nn.Linear(FEATURES, FEATURES)
        self.draw = draw

    def forward(self, x: Any) -> Any:
        return self.second(self.draw(self.first(x)))


def net(framework: str, draws: dict[str, Draw]) -> Any:
    model = {"torch": TorchNet, "paddle": PaddleNet}[framework](draws[framework])
    randomise(model)
    model.train()
    return model


def data(*shape: int) -> Any:
    return np.random.default_rng(5).normal(size=shape or (6, FEATURES)).astype("float32")


def adam(model: Any) -> Any:
    if isinstance(model, torch.nn.Module):
        return torch.optim.Adam(model.parameters(), lr=0.01)
    return paddle.optimizer.Adam(0.01, parameters=model.parameters())


def _images(x: Any, way: Draw) -> Any:
    """Rows as small images of two channels."""
    return way(x.reshape([-1, 2, 2, 2])).reshape([-1, FEATURES])


def _torch_droppath(keep: float) -> Draw:
    return lambda x: x.div(keep) * x.new_empty((x.shape[0], 1)).bernoulli_(keep)


def _paddle_droppath(keep: float) -> Draw:
    return lambda x: x / keep * paddle.floor(keep + paddle.rand([x.shape[0], 1]))


def _torch_attention(p: float) -> Draw:
    def attend(x: Any) -> Any:
        q = x.reshape(1, 2, 3, FEATURES)
        return tf.scaled_dot_product_attention(q, q, q, dropout_p=p).reshape(6, FEATURES)

    return attend


def _paddle_attention(p: float) -> Draw:
    def attend(x: Any) -> Any:
        q = x.reshape([1, 2, 3, FEATURES]).transpose([0, 2, 1, 3])
        out = pf.scaled_dot_product_attention(q, q, q, dropout_p=p, training=True)
        return out.transpose([0, 2, 1, 3]).reshape([6, FEATURES])

    return attend


KINDS: dict[str, dict[str, Draw]] = {
    "dropout": {"torch": lambda x: tf.dropout(x, 0.3), "paddle": lambda x: pf.dropout(x, 0.3)},
    "fused dropout": {
        "torch": lambda x: torch.native_dropout(x, 0.3, True)[0],
        "paddle": lambda x: pf.dropout(x, 0.3),
    },
    "dropout without scaling": {
        "torch": lambda x: x * torch.bernoulli(torch.full_like(x, 0.7)),
        "paddle": lambda x: pf.dropout(x, 0.3, mode="downscale_in_infer"),
    },
    "dropout in place": {
        "torch": lambda x: tf.dropout(x * 1, 0.3, inplace=True),
        "paddle": lambda x: pf.dropout(x * 1, 0.3),
    },
    "two dropouts": {
        "torch": lambda x: tf.dropout(tf.dropout(x, 0.3).sin(), 0.3),
        "paddle": lambda x: pf.dropout(pf.dropout(x, 0.3).sin(), 0.3),
    },
    "dropout2d": {
        "torch": lambda x: _images(x, lambda y: tf.dropout2d(y, 0.4)),
        "paddle": lambda x: _images(x, lambda y: pf.dropout2d(y, 0.4)),
    },
    "alpha dropout": {
        "torch": lambda x: tf.alpha_dropout(x, 0.3, training=True),
        "paddle": lambda x: pf.alpha_dropout(x, 0.3, training=True),
    },
    "drop path": {"torch": _torch_droppath(0.6), "paddle": _paddle_droppath(0.6)},
    "drop path by comparing": {
        "torch": lambda x: x / 0.6 * (torch.rand(x.shape[0], 1) < 0.6),
        "paddle": _paddle_droppath(0.6),
    },
    "drop path the other way": {
        "torch": lambda x: x / 0.6 * torch.floor(0.6 + torch.rand(x.shape[0], 1)),
        "paddle": lambda x: x / 0.6 * paddle.bernoulli(paddle.full([x.shape[0], 1], 0.6)),
    },
    "mask of what to leave out": {
        "torch": lambda x: x.masked_fill(torch.rand_like(x) < 0.25, 0.0),
        "paddle": lambda x: x * (paddle.rand(x.shape) >= 0.25).astype("float32"),
    },
    "noise": {
        "torch": lambda x: x + 0.1 * torch.randn_like(x),
        "paddle": lambda x: x + 0.1 * paddle.randn(x.shape),
    },
    "noise of its own size": {
        "torch": lambda x: x + torch.empty_like(x).normal_(0.5, 0.2),
        "paddle": lambda x: x + (0.5 + 0.2 * paddle.standard_normal(x.shape)),
    },
    "noise by tensors": {
        "torch": lambda x: torch.normal(x.detach(), torch.full_like(x, 0.3)),
        "paddle": lambda x: paddle.normal(x.detach(), paddle.full_like(x, 0.3)),
    },
    "uniform": {
        "torch": lambda x: x + torch.empty_like(x).uniform_(-1, 1),
        "paddle": lambda x: x + paddle.uniform(x.shape, min=-1.0, max=1.0),
    },
    "exponential": {
        "torch": lambda x: x * torch.empty_like(x).exponential_(2.0),
        "paddle": lambda x: x * paddle.empty(x.shape).exponential_(2.0),
    },
    "log normal": {
        "torch": lambda x: x * torch.empty_like(x).log_normal_(0.1, 0.3),
        "paddle": lambda x: x * paddle.empty(x.shape).log_normal_(0.1, 0.3),
    },
    "bernoulli": {
        "torch": lambda x: x * torch.bernoulli(torch.sigmoid(x.detach())),
        "paddle": lambda x: x * paddle.bernoulli(pf.sigmoid(x.detach())),
    },
    "multinomial": {
        "torch": lambda x: x[torch.multinomial(torch.softmax(x.detach().mean(1), 0), 6, replacement=True)],
        "paddle": lambda x: x[paddle.multinomial(pf.softmax(x.detach().mean(1), 0), 6, replacement=True)],
    },
    "randint": {
        "torch": lambda x: x[torch.randint(0, 6, (6,))],
        "paddle": lambda x: x[paddle.randint(0, 6, [6])],
    },
    "randperm": {"torch": lambda x: x[torch.randperm(6)], "paddle": lambda x: x[paddle.randperm(6)]},
    "random order": {
        "torch": lambda x: x[torch.argsort(torch.rand(6))],
        "paddle": lambda x: x[paddle.argsort(paddle.rand([6]))],
    },
    "poisson": {
        "torch": lambda x: x * torch.poisson(x.detach().abs() * 3),
        "paddle": lambda x: x * paddle.poisson(x.detach().abs() * 3),
    },
    "rrelu": {"torch": lambda x: tf.rrelu(x, training=True), "paddle": lambda x: pf.rrelu(x, training=True)},
    "gumbel softmax": {
        "torch": lambda x: tf.gumbel_softmax(x, dim=-1),
        "paddle": lambda x: pf.gumbel_softmax(x, axis=-1),
    },
    "attention": {"torch": _torch_attention(0.3), "paddle": _paddle_attention(0.3)},
}
"""What is drawn, in either framework."""
UNLIKE: dict[str, dict[str, Draw]] = {
    "cold gumbel softmax": {
        "torch": lambda x: tf.gumbel_softmax(x, tau=0.7, dim=-1),
        "paddle": lambda x: pf.gumbel_softmax(x, temperature=0.7, axis=-1),
    },
    "hard gumbel softmax": {
        "torch": lambda x: tf.gumbel_softmax(x, hard=True, dim=-1),
        "paddle": lambda x: pf.gumbel_softmax(x, hard=True, axis=-1),
    },
}
"""The same draws and results, with other gradients: paddle 3.3 forgets the temperature of gumbel_softmax in backward,
and hands on nothing from a hard one."""
