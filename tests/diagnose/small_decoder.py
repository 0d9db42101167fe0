"""A decoder in torch and in paddle, small and with a switch for every mistake that a port makes."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import torch

from tests.twins import randomise

WIDTH, HEADS, GROUPS, SIZE, WORDS = 24, 4, 2, 6, 13
LENGTH = 9


class Switches:
    """What may be wrong, and is not."""

    scale = SIZE**-0.5
    ahead = 0
    masked = True
    theta = 10000.0
    neighbours = False
    softmax_axis = -1
    half_softmax = False
    in_turn = True
    residual = True
    twice = 1.0
    cut = False
    bf16 = False
    tanh = False


def ops(x: Any) -> Any:
    return torch if isinstance(x, torch.Tensor) else paddle


def array(x: Any, values: Any) -> Any:
    values = np.asarray(values, dtype="float32")
    return torch.from_numpy(values) if isinstance(x, torch.Tensor) else paddle.to_tensor(values)


def rounded(x: Any) -> Any:
    return x.to(torch.bfloat16).float() if isinstance(x, torch.Tensor) else x.astype("bfloat16").astype("float32")


def turned(x: Any, switches: Any) -> Any:
    angles = np.outer(np.arange(x.shape[2]), switches.theta ** (-np.arange(0, SIZE, 2) / SIZE))
    both = np.concatenate([angles, angles], -1)
    join, half = ops(x).concat, SIZE // 2
    if switches.neighbours:
        rest = ops(x).stack([-x[..., 1::2], x[..., ::2]], -1).reshape(list(x.shape))
    else:
        rest = join([-x[..., half:], x[..., :half]], -1)
    return x * array(x, np.cos(both)) + rest * array(x, np.sin(both))


def attend(q: Any, k: Any, v: Any, switches: Any) -> Any:
    """By position: heads apart, keys repeated, causal."""
    rows, length = q.shape[:2]
    q, k, v = (
        t.reshape([rows, length, t.shape[2] // SIZE, SIZE]).transpose(1, 2)
        if isinstance(t, torch.Tensor)
        else t.reshape([rows, length, t.shape[2] // SIZE, SIZE]).transpose([0, 2, 1, 3])
        for t in (q, k, v)
    )
    q, k = turned(q, switches), turned(k, switches)
    each = HEADS // GROUPS
    order = [head // each for head in range(HEADS)] if switches.in_turn else [head % GROUPS for head in range(HEADS)]
    k, v = (ops(t).stack([t[:, place] for place in order], 1) for t in (k, v))
    scores = ops(q).einsum("bhqd,bhkd->bhqk", q, k) * switches.scale
    if switches.masked:
        ahead = np.triu(np.full((length, length), -1e9), 1 + switches.ahead)
        scores = scores + array(scores, ahead)
    if switches.half_softmax:
        scores = rounded(scores)
    weights = ops(q).nn.functional.softmax(scores, switches.softmax_axis)
    out = ops(q).einsum("bhqk,bhkd->bqhd", weights, v)
    return out.reshape([rows, length, HEADS * SIZE])


def block(self: Any, x: Any) -> Any:
    """The forward of a block in either framework."""
    switches = self.switches
    y = self.norm1(x)
    y = self.out(attend(self.query(y), self.key(y), self.value(y), switches))
    y = y.detach() if switches.cut else y
    x = x + switches.twice * y if switches.residual else y
    z = self.up(self.norm2(x))
    if isinstance(z, torch.Tensor):
        z = torch.nn.functional.gelu(z, approximate="tanh" if switches.tanh else "none")
    else:
        z = paddle.nn.functional.gelu(z, approximate=switches.tanh)
    z = rounded(z) if switches.bf16 else z
    return x + self.down(z)


class TorchLayer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.switches = Switches()
        self.norm1 = torch.nn.LayerNorm(WIDTH)
        self.query = torch.nn.Linear(WIDTH, HEADS * SIZE)
        self.key = torch.nn.Linear(WIDTH, GROUPS * SIZE)
        self.value = torch.nn.Linear(WIDTH, GROUPS * SIZE)
        self.out = torch.nn.Linear(HEADS * SIZE, WIDTH)
        self.norm2 = torch.nn.LayerNorm(WIDTH)
        self.up = torch.nn.Linear(WIDTH, 2 * WIDTH)
        self.down = torch.nn.Linear(2 * WIDTH, WIDTH)

    forward = block


class PaddleLayer(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.switches = Switches()
        self.norm1 = paddle.nn.LayerNorm(WIDTH)
        self.query = paddle.nn.Linear(WIDTH, HEADS * SIZE)
        self.key = paddle.nn.Linear(WIDTH, GROUPS * SIZE)
        self.value = paddle.nn.Linear(WIDTH, GROUPS * SIZE)
        self.out = paddle.nn.Linear(HEADS * SIZE, WIDTH)
        self.norm2 = paddle.nn.LayerNorm(WIDTH)
        self.up = paddle.nn.Linear(WIDTH, 2 * WIDTH)
        self.down = paddle.nn.Linear(2 * WIDTH, WIDTH)

    forward = block


class TorchDecoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, WIDTH)
        self.layers = torch.nn.ModuleList([TorchLayer() for _ in range(3)])
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.head = torch.nn.Linear(WIDTH, WORDS)

    def forward(self, words: Any) -> Any:
        x = self.words(words)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class PaddleDecoder(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.words = paddle.nn.Embedding(WORDS, WIDTH)
        self.layers = paddle.nn.LayerList([PaddleLayer() for _ in range(3)])
        self.norm = paddle.nn.LayerNorm(WIDTH)
        self.head = paddle.nn.Linear(WIDTH, WORDS)

    def forward(self, words: Any) -> Any:
        x = self.words(words)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def decoder(framework: str) -> Any:
    """In eval mode, with lively weights."""
    model = TorchDecoder() if framework == "torch" else PaddleDecoder()
    model.eval()
    randomise(model)
    return model


def sentences() -> np.ndarray:
    return np.random.default_rng(5).integers(0, WORDS, (2, LENGTH))
