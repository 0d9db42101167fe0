"""Branches of one block that two authors compute in another order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from torch import nn

import padiff

X = np.random.default_rng(0).normal(size=(2, 3, 8, 8)).astype("float32")


def convolution(size: int, given: int, stride: int) -> nn.Module:
    conv = nn.Conv2d(given, 6, size, stride, size // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(6))


class Block(nn.Module):
    def __init__(self, names: Sequence[str], sizes: Sequence[int], given: int = 6, stride: int = 1) -> None:
        super().__init__()
        for name, size in zip(names, sizes, strict=True):
            self.add_module(name, convolution(size, given, stride))

    def branches(self, x: Any) -> Iterator[Any]:
        return (child(x) for child in self.children())

    def forward(self, x: Any) -> Any:
        first, second = self.branches(x)
        return (first + second).relu()


class Stem(nn.Module):
    """Small kernels first."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = Block("ab", (1, 3), 3)
        self.stages = nn.Sequential(*(Block("ab", (1, 3), stride=1 + place % 2) for place in range(3)))
        self.head = nn.Linear(6, 2)

    def forward(self, x: Any) -> Any:
        return self.head(self.stages(self.stem(x)).mean((2, 3)))


class Staged(nn.Module):
    """Large kernels first, and the stem counts as a stage."""

    def __init__(self) -> None:
        super().__init__()
        self.stage0 = Block(("dense", "point"), (3, 1), 3)
        self.stage1 = Block(("dense", "point"), (3, 1))
        self.stage2 = Block(("dense", "point"), (3, 1), stride=2)
        self.stage3 = Block(("dense", "point"), (3, 1))
        self.linear = nn.Linear(6, 2)

    def forward(self, x: Any) -> Any:
        x = self.stage3(self.stage2(self.stage1(self.stage0(x))))
        return self.linear(x.mean((2, 3)))


@pytest.mark.parametrize("models", [(Stem, Staged), (Staged, Stem)], ids=["small first", "large first"])
def test_branches_that_are_computed_in_another_order(models: Any) -> None:
    base, raw = (model().eval() for model in models)
    for norm in (module for module in base.modules() if isinstance(module, nn.BatchNorm2d)):
        nn.init.normal_(norm.weight, 1.0, 0.2)
        nn.init.normal_(norm.running_mean)
    result = padiff.compare(base, raw, X)
    assert result.aligned, str(result)
    path = "stage2.point.1" if isinstance(raw, Staged) else "stages.1.a.1"
    raw.get_submodule(path).eps = 0.1
    result = padiff.compare(base, raw, X)
    assert result.divergence is not None
    assert result.divergence.raw_path == path
