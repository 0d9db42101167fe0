"""Pictures flattened by a layer of raw's own, and inside of a head in base: what is wrong before the layer is not its
doing, and a wrong layer after it is named as ever."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import padiff

X = np.random.default_rng(0).normal(size=(2, 3, 6, 6)).astype("float32")


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pool, self.out = nn.AdaptiveAvgPool2d(1), nn.Linear(5, 4)

    def forward(self, x: Any) -> Any:
        return self.out(self.pool(x).flatten(1))


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.head = nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), Head()

    def forward(self, x: Any) -> Any:
        return self.head(torch.relu(self.norm(self.stem(x))))


class Trunk(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.pooler = nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.AdaptiveAvgPool2d(1)
        self.share = 1.0

    def forward(self, x: Any) -> Any:
        found = self.pooler(torch.relu(self.bn(self.conv(x))))
        return found * self.share if self.share != 1.0 else found


class Raw(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.share = Trunk(), 1.0
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(5, 4))

    def forward(self, x: Any) -> Any:
        found = self.trunk(x)
        return self.classifier(found * self.share if self.share != 1.0 else found)


@pytest.mark.parametrize(("wrong", "places"), [(None, ()), ("", ("",)), ("trunk", ("trunk", ""))])
def test_what_a_layer_reshapes_is_who_gave_it(wrong: str | None, places: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    base, raw = Base().eval(), Raw().eval()
    if wrong is not None:
        raw.get_submodule(wrong).share = 1.25
    result = padiff.compare(base, raw, X)
    assert result.aligned == (wrong is None)
    assert not places or (result.divergence.phase == "forward" and result.divergence.raw_path in places)
