"""A layer that base's author scales inside and raw's outside returns something else in every call: where all was right
after the first, it is not to blame for what is wrong after the second. Nothing comes after the models themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import torch

import padiff

IDS = np.random.default_rng(0).integers(0, 11, size=(2, 5))


class Scaled(torch.nn.Embedding):
    def __init__(self, scale: float) -> None:
        super().__init__(11, 6)
        self.scale = scale

    def forward(self, ids: Any) -> Any:
        return super().forward(ids) * self.scale


class Part(torch.nn.Module):
    def __init__(self, words: Any) -> None:
        super().__init__()
        self.words, self.norm = words, torch.nn.LayerNorm(6)
        self.first, self.last = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)

    def forward(self, ids: Any, more: Any = 0.0) -> Any:
        x = self.first(self.norm(self.words(ids)) + more)
        return self.last(torch.relu(x))


class Net(torch.nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.encoder, self.decoder = Part(Scaled(scale)), Part(Scaled(scale))
        self.decoder.words.weight = self.encoder.words.weight
        self.pooler = torch.nn.Linear(6, 6)

    def forward(self, ids: Any) -> Any:
        found = self.decoder(ids, self.encoder(ids))
        return found, torch.tanh(self.pooler(found[:, 0]))


class Stack(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.factor = paddle.nn.Linear(6, 6), paddle.nn.Linear(6, 6), 1.0

    def forward(self, x: Any) -> Any:
        return self.last(paddle.nn.functional.relu(self.first(x))) * self.factor


class PaddlePart(paddle.nn.Layer):
    def __init__(self, words: Any, scale: float) -> None:
        super().__init__()
        self.words, self.scale, self.norm, self.stack = words, scale, paddle.nn.LayerNorm(6), Stack()

    def forward(self, ids: Any, more: Any = 0.0) -> Any:
        return self.stack(self.norm(self.words(ids) * self.scale) + more)


class PaddleNet(paddle.nn.Layer):
    def __init__(self, scale: float = 3.0, *, pooled: bool = True) -> None:
        super().__init__()
        self.scale, self.pooled, self.shared = scale, pooled, paddle.nn.Embedding(11, 6)
        self.encoder, self.decoder = PaddlePart(self.shared, scale), PaddlePart(self.shared, scale)
        self.pooler = paddle.nn.Linear(6, 6)

    def forward(self, ids: Any) -> Any:
        found = self.decoder(ids, self.encoder(ids))
        return found, paddle.tanh(self.pooler(found[:, 0])) if self.pooled else found


def compared(raw: PaddleNet) -> padiff.Result:
    torch.manual_seed(0)
    return padiff.compare(Net(raw.scale), raw, IDS)


def test_they_agree() -> None:
    assert compared(PaddleNet()).aligned


def test_it_is_not_blamed_the_second_time() -> None:
    raw = PaddleNet()
    raw.decoder.stack.factor = 0.9
    found = compared(raw).divergence
    assert found is not None
    assert (found.raw_path, found.phase) in {("decoder.stack", "forward"), ("decoder", "forward")}


def test_it_is_blamed_the_first_time() -> None:
    raw = PaddleNet()
    raw.shared.register_forward_post_hook(lambda layer, given, made: made + 0.3 * made.roll(1, -1))
    found = compared(raw).divergence
    assert found is not None
    assert (found.raw_path, found.phase) == ("shared", "forward")


def test_a_model_that_returns_what_is_right_elsewhere_is_found() -> None:
    found = compared(PaddleNet(1.0, pooled=False)).divergence
    assert found is not None
    assert (found.raw_path, found.phase) == ("", "forward")
