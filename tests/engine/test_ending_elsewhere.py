"""Blocks that end elsewhere than base's, and add up to what the model returns: which of them is wrong, if one is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch import nn

import padiff

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


@pytest.mark.parametrize(("wrong", "path"), [("all", "out.0"), ("0", "out.0"), ("1", "out.1"), ("2", "out.2")])
def test_the_first_that_nobody_goes_on_from(wrong: str, path: str) -> None:
    """It returns what base computes as well, and ends before a step that it had everything for."""
    result = padiff.compare(Pictures(), Port(wrong, "cut short"), X)
    assert result.divergence is not None
    assert (result.divergence.raw_path, result.divergence.phase) == (path, "forward"), str(result)
