"""Blocks that end elsewhere than base's, and add up to what the model returns: which of them is wrong, if one is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import padiff
from tests.engine.test_crossings import counted

X = np.random.default_rng(0).normal(size=(3, 8)).astype("float32")


class Picture(nn.Module):
    """Adds itself to what came before."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.style = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x: Any, before: Any = None) -> Any:
        made = self.project(x) * self.style(x).sigmoid()
        return made if before is None else made + before


class Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.deeper = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.pictures = nn.ModuleList(Picture() for _ in range(3))

    def forward(self, x: Any) -> Any:
        made = None
        for deeper, picture in zip(self.deeper, self.pictures, strict=True):
            x = deeper(x).tanh()
            made = picture(x, made)
        return made


class Alone(nn.Module):
    """Is added up by who calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.style, self.project = nn.Linear(8, 4), nn.Linear(8, 4)
        self.wrong = ""

    def forward(self, x: Any) -> Any:
        gate, made = self.style(x), self.project(x)
        if self.wrong == "cut short":
            return made
        if self.wrong == "slightly":
            return made * gate.sigmoid() * 1.00003
        return made * (gate if self.wrong else gate.sigmoid())


class Port(nn.Module):
    def __init__(self, wrong: str, how: str = "gate") -> None:
        super().__init__()
        self.out = nn.ModuleList(Alone() for _ in range(3))
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.wrong = wrong
        for place, one in enumerate(self.out):
            one.wrong = how if wrong in ("all", str(place)) else ""

    def forward(self, x: Any) -> Any:
        total = None
        for layer, out in zip(self.layers, self.out, strict=True):
            x = layer(x).tanh()
            made = out(x)
            total = made if total is None or self.wrong == "left out" else total + made
        return total


@pytest.mark.parametrize(
    ("wrong", "path"), [("all", "out.0"), ("0", "out.0"), ("1", "out.1"), ("2", "out.2"), ("left out", "")]
)
def test_the_first_that_base_computes_nowhere(wrong: str, path: str) -> None:
    assert padiff.compare(Pictures(), Port(""), X).aligned
    result = padiff.compare(Pictures(), Port(wrong), X)
    assert result.divergence is not None
    assert (result.divergence.raw_path, result.divergence.phase) == (path, "forward"), str(result)


def test_a_run_that_leaves_something_in_doubt_does_not_go_back() -> None:
    raw = Port("2")
    calls = counted(raw)
    backwards: list[int] = []
    raw.layers[0].weight.register_hook(lambda _: backwards.append(1))
    result = padiff.compare(Pictures(), raw, X)
    assert result.divergence is not None and result.divergence.raw_path == "out.2"
    assert len(calls) > len(backwards) == 2  # by itself, and fed base's tensors once nothing is in doubt


@pytest.mark.parametrize(("wrong", "path"), [("all", "out.0"), ("0", "out.0"), ("1", "out.1"), ("2", "out.2")])
def test_the_first_that_nobody_goes_on_from(wrong: str, path: str) -> None:
    """It returns what base computes as well, and ends before a step that it had everything for."""
    result = padiff.compare(Pictures(), Port(wrong, "cut short"), X)
    assert result.divergence is not None
    assert (result.divergence.raw_path, result.divergence.phase) == (path, "forward"), str(result)


def test_a_slight_fault_is_not_what_base_computes() -> None:
    result = padiff.compare(Pictures(), Port("0", "slightly"), X)
    assert result.divergence is not None
    assert (result.divergence.raw_path, result.divergence.phase) == ("out.0", "forward"), str(result)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.style = nn.Parameter(torch.randn(8)), nn.Linear(4, 8)

    def forward(self, x: Any, w: Any) -> Any:
        return x * self.weight * self.style(w)


class Shifted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.bias = Scaled(), nn.Parameter(torch.randn(8))

    def forward(self, x: Any, w: Any) -> Any:
        return self.inner(x, w) + self.bias


class Layered(nn.Module):
    """What comes between its layers is its own code."""

    def __init__(self) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.heads = nn.ModuleList(Shifted() for _ in range(2))

    def forward(self, x: Any, w: Any) -> Any:
        total = 0
        for linear, head in zip(self.linears, self.heads, strict=True):
            x = linear(x).tanh()
            total = total + head(x, w)
        return total


class Step(nn.Module):
    """A layer with what comes after it; base has no such module."""

    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.linear, self.wrong = nn.Linear(8, 8), wrong

    def forward(self, x: Any) -> Any:
        y = self.linear(x)
        return y.relu() if self.wrong else y.tanh()


class Both(nn.Module):
    """Scales and shifts at once."""

    def __init__(self) -> None:
        super().__init__()
        self.bias, self.weight = nn.Parameter(torch.zeros(8)), nn.Parameter(torch.zeros(8))
        self.affine = nn.Linear(4, 8)

    def forward(self, x: Any, w: Any) -> Any:
        return x * self.affine(w) * self.weight + self.bias


class LayeredPort(nn.Module):
    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.out = nn.ModuleList(Both() for _ in range(2))
        self.layers = nn.ModuleList(Step(wrong) for _ in range(2))

    def forward(self, x: Any, w: Any) -> Any:
        total = None
        for layer, out in zip(self.layers, self.out, strict=True):
            x = layer(x)
            made = out(x, w)
            total = made if total is None else total + made
        return total


def test_who_ends_elsewhere_and_is_given_the_wrong_thing_is_right() -> None:
    inputs = (X, X[:, :4].copy())
    assert padiff.compare(Layered(), LayeredPort(False), inputs).aligned
    found = padiff.compare(Layered(), LayeredPort(True), inputs).divergence
    assert found is not None and found.op is not None
    assert (found.raw_path, found.phase) == ("layers.0", "forward"), str(found)
    assert (found.op.base, found.op.raw) == ("torch.Tensor.tanh", "torch.Tensor.relu")
