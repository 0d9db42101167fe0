"""Gradients that come back through code which is wrong in forward already."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch
from torch import nn

import padiff
from padiff.engine.fed.inherited import without_wrong_code
from padiff.records import Fault

WIDTH = 8
ROWS = np.random.default_rng(0).normal(size=(6, WIDTH)).astype("float32")


def linear() -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH)


class AtOnce(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = linear(), linear()

    def forward(self, x: Any) -> Any:
        return x + self.b(torch.tanh(self.a(x)))


class Half(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = linear()

    def forward(self, x: Any) -> Any:
        return torch.tanh(self.a(x))


class InHalves(nn.Module):
    """The same, of which one half is a module of its own."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.first, self.second, self.factor = Half(), linear(), factor

    def forward(self, x: Any) -> Any:
        return x + self.second(self.first(x) * self.factor)


def test_what_has_been_through_it_is_no_place_of_its_own() -> None:
    raw = nn.Sequential(*(InHalves(factor) for factor in (1.0, -1.0, 1.0)))
    result = padiff.compare(nn.Sequential(*(AtOnce() for _ in range(3))), raw, ROWS)
    assert [(one.phase, one.raw_path) for one in result.divergences] == [("forward", "1")]
    assert result.divergence is not None and result.divergence.causes[0].name == "sign"


class Three(nn.Module):
    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.a, self.b, self.c, self.wrong = linear(), linear(), linear(), wrong

    def forward(self, x: Any) -> Any:
        y = self.b(self.a(x) * (2.0 if self.wrong else 1.0))
        return self.c(y / 2 + y.detach() / 2 if self.wrong else y)


def test_what_goes_wrong_behind_it_has_not_been_through_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[Fault]] = []

    def told(faults: list[Fault], *more: Any) -> list[Fault]:
        seen.extend((faults, without_wrong_code(faults, *more)))
        return seen[-1]

    monkeypatch.setattr("padiff.engine.fed.localise.without_wrong_code", told)
    padiff.compare(Three(False), Three(True), ROWS)
    before, kept = ([(one.phase, "" if one.after is None else one.after.path) for one in some] for some in seen[:2])
    assert before == [("forward", "b"), ("backward", "b"), ("backward", "a")]
    assert kept == before[:2]


class Text(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.LayerNorm(6), torch.nn.Linear(6, 6))

    def forward(self, x: Any) -> Any:
        return self.encoder(x)


class FirstWord(torch.nn.Module):
    """Takes the first word of all that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.head = Text(), torch.nn.Linear(6, 4)

    def forward(self, x: Any) -> Any:
        words = self.text(x)
        return self.head(words[:, 0]), words


class Steeper(paddle.nn.LayerNorm):
    def forward(self, x: Any) -> Any:
        y = super().forward(x)
        return y * 1.5 - (y * 0.5).detach()


class Sentence(paddle.nn.Layer):
    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.blocks = paddle.nn.Sequential(paddle.nn.Linear(6, 6), norm(6), paddle.nn.Linear(6, 6))

    def forward(self, x: Any) -> Any:
        words = self.blocks(x)
        return words, words[:, 0]


class GivenFirst(paddle.nn.Layer):
    """Is given it besides."""

    def __init__(self, norm: Any = paddle.nn.LayerNorm) -> None:
        super().__init__()
        self.sentence, self.out = Sentence(norm), paddle.nn.Linear(6, 4)

    def forward(self, x: Any) -> Any:
        words, first = self.sentence(x)
        return self.out(first), words


def test_a_part_that_is_taken_inside_of_a_call_or_outside_is_no_place() -> None:
    torch.manual_seed(0)
    x = np.random.default_rng(0).normal(size=(3, 5, 6)).astype("float32")
    assert padiff.compare(FirstWord(), GivenFirst(), x).aligned
    found = padiff.compare(FirstWord(), GivenFirst(Steeper), x).divergence
    assert found is not None and (found.raw_path, found.phase) == ("sentence.blocks.1", "backward"), str(found)
