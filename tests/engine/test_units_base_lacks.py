"""Layers in units that only raw has: a gradient that goes wrong between two units is told of the code between them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import padiff
from tests.twins import TorchScaleGradient


class Flat(nn.Module):
    """A residual block with all layers in its own code."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1, self.act1 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()
        self.conv2, self.bn2, self.act2 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()
        self.conv3, self.bn3 = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x: Any) -> Any:
        made = self.act2(self.bn2(self.conv2(self.act1(self.bn1(self.conv1(x))))))
        return x + self.bn3(self.conv3(made))


class Unit(nn.Module):
    def __init__(self, width: int, act: bool = True) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(4, 4, width, padding=width // 2), nn.BatchNorm2d(4)
        self.relu = nn.ReLU() if act else None
        self.wrong = ""

    def forward(self, x: Any) -> Any:
        if self.wrong == "begin":
            x = TorchScaleGradient.apply(x)
        x = self.bn(self.conv(x))
        x = x if self.relu is None else self.relu(x)
        return TorchScaleGradient.apply(x) if self.wrong == "end" else x


class InUnits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = Unit(3), Unit(3), Unit(1, act=False)
        self.wrong = False

    def forward(self, x: Any) -> Any:
        made = self.first(x)
        if self.wrong:
            made = TorchScaleGradient.apply(made)
        return x + self.third(self.second(made))


def models() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    base = nn.Sequential(nn.Conv2d(3, 4, 3), Flat(), Flat(), nn.Conv2d(4, 2, 1)).train()
    return base, nn.Sequential(nn.Conv2d(3, 4, 3), InUnits(), InUnits(), nn.Conv2d(4, 2, 1)).train()


@pytest.mark.parametrize(
    ("unit", "wrong", "expected"),
    [
        ("", "", None),
        ("", "between", "2"),
        ("second", "begin", "2.second"),
        ("third", "begin", "2.third"),
        ("first", "end", "2.first"),
        ("second", "end", "2.second"),
    ],
)
def test_whose_code_it_is(unit: str, wrong: str, expected: str | None) -> None:
    base, raw = models()
    block = raw.get_submodule("2")
    if unit:
        block.get_submodule(unit).wrong = wrong
    else:
        block.wrong = bool(wrong)
    result = padiff.compare(base, raw, torch.randn(3, 3, 8, 8))
    if expected is None:
        assert result.aligned, str(result)
        return
    assert result.divergence is not None
    assert (result.divergence.raw_path, result.divergence.phase) == (expected, "backward"), str(result)
