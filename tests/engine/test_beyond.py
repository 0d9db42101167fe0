"""A port that returns fewer of the tensors that base returns: no run is spent on that, and nothing is lost by it."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff
from tests.twins import counted

X = np.random.default_rng(0).normal(size=(3, 5, 6)).astype("float32")


class Part(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = torch.nn.LayerNorm(6), torch.nn.Linear(6, 9), torch.nn.Linear(9, 6)

    def forward(self, x: Any) -> Any:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Net(torch.nn.Module):
    """Returns its encoder's state, under two names, and what a pooler makes of it, besides what its head does."""

    def __init__(self, *, pooled: bool) -> None:
        super().__init__()
        self.encoder, self.decoder = torch.nn.Sequential(Part(), Part()), Part()
        self.head, self.pooler = torch.nn.Linear(6, 4), torch.nn.Linear(6, 6) if pooled else None

    def forward(self, x: Any) -> Any:
        state = self.encoder(x)
        found = {"scores": self.head(self.decoder(state)), "state": state, "again": state}
        return found if self.pooler is None else found | {"pooled": torch.tanh(self.pooler(state[:, 0]))}


class PaddlePart(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.ln, self.fc1, self.fc2 = paddle.nn.LayerNorm(6), paddle.nn.Linear(6, 9), paddle.nn.Linear(9, 6)
        self.sends = 1.0

    def forward(self, x: Any) -> Any:
        y = x + self.fc2(paddle.tanh(self.fc1(self.ln(x))))
        if self.sends != 1.0:
            y.register_hook(lambda gradient: gradient * self.sends)
        return y


class PaddleNet(paddle.nn.Layer):
    def __init__(self, *, ordered: bool) -> None:
        super().__init__()
        if not ordered:  # then nobody can tell which is which before it has run
            self.last = PaddlePart()
        self.stack = paddle.nn.Sequential(PaddlePart(), PaddlePart())
        if ordered:
            self.last = PaddlePart()
        self.classifier = paddle.nn.Linear(6, 4)

    def forward(self, x: Any) -> Any:
        return self.classifier(self.last(self.stack(x)))


def models(*, ordered: bool = True, pooled: bool = False) -> tuple[Net, PaddleNet]:
    torch.manual_seed(0)
    return Net(pooled=pooled), PaddleNet(ordered=ordered)


@pytest.mark.parametrize("ordered", [True, False])
def test_what_raw_does_not_return_is_followed_inside_of_it(ordered: bool) -> None:
    base, raw = models(ordered=ordered)
    calls = counted(base, raw)
    result = padiff.compare(base, raw, X)
    assert result.aligned, str(result)
    assert calls == [2, 1 if ordered else 2]
    gradients = [one for one in result.comparisons if one.phase == "gradient"]
    assert len(gradients) == len(list(raw.parameters()))
    assert all(one.agrees for one in (*gradients, *(c for c in result.comparisons if c.role == "loss")))


@pytest.mark.parametrize("ordered", [True, False])
def test_what_raw_does_not_make_begins_no_backward(ordered: bool) -> None:
    base, raw = models(ordered=ordered, pooled=True)
    result = padiff.compare(base, raw, X)
    assert result.aligned, str(result)


@pytest.mark.parametrize("path", ["stack.0", "stack.1", "last"])
@pytest.mark.parametrize("pooled", [False, True])
def test_a_wrong_gradient_is_told_where_it_is_made(path: str, pooled: bool) -> None:
    base, raw = models(pooled=pooled)
    dict(raw.named_sublayers())[path].sends = 1.5
    result = padiff.compare(base, raw, X)
    assert [(one.raw_path, one.phase) for one in result.divergences] == [(path, "backward")], str(result)
