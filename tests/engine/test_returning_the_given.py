"""A layer with its norm that returns what it was given, not what it made: it is named, and nothing raises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import padiff

X = np.random.default_rng(0).normal(size=(2, 3, 5, 5)).astype("float32")


class ConvNormAct(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.act = nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4), nn.Identity()

    def forward(self, x: Any) -> Any:
        return self.act(self.bn(self.conv(x)))


class ConvNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c, self.n, self.bug = nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4), False

    def forward(self, x: Any) -> Any:
        made = self.n(self.c(x))
        return x if self.bug else made


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.act = ConvNormAct(), ConvNormAct(), nn.ReLU()

    def forward(self, x: Any) -> Any:
        return self.act(self.left(x) + self.right(x))


class Ways(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.relu = ConvNorm(), ConvNorm(), nn.ReLU()

    def forward(self, x: Any) -> Any:
        return self.relu(self.one(x) + self.two(x))


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.blocks = nn.Conv2d(3, 4, 1), nn.ModuleList([Branches() for _ in range(3)])

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


class Raw(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.stage = nn.Conv2d(3, 4, 1), nn.Sequential(*(Ways() for _ in range(3)))

    def forward(self, x: Any) -> Any:
        return self.stage(self.stem(x))


@pytest.mark.parametrize("bug", [False, True])
def test_what_was_given_in_the_place_of_what_was_made(bug: bool) -> None:
    torch.manual_seed(0)
    base, raw = Base().eval(), Raw().eval()
    raw.stage[1].two.bug = bug
    result = padiff.compare(base, raw, X)
    assert result.aligned != bug
    assert (result.divergence.raw_path if result.divergence else None) == ("stage.1.two" if bug else None)
