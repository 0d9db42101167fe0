"""An adapter goes down first and a feed-forward up: where both layers are of one shape, the order of use decides."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff


class Adapter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)

    def forward(self, x: Any) -> Any:
        return x + self.fc2(torch.relu(self.fc1(x)))


class Named(paddle.nn.Layer):
    def __init__(self, first: str, second: str) -> None:
        super().__init__()
        self.names = first, second
        for name in sorted(self.names):
            setattr(self, name, paddle.nn.Linear(6, 6))

    def forward(self, x: Any) -> Any:
        first, second = (getattr(self, name) for name in self.names)
        return x + second(paddle.nn.functional.relu(first(x)))


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.blocks = torch.nn.Linear(4, 6), torch.nn.ModuleList(Adapter() for _ in range(3))

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return x


class Port(paddle.nn.Layer):
    def __init__(self, first: str, second: str) -> None:
        super().__init__()
        self.begin = paddle.nn.Linear(4, 6)
        self.adapters = paddle.nn.LayerList([Named(first, second) for _ in range(3)])

    def forward(self, x: Any) -> Any:
        x = self.begin(x)
        for adapter in self.adapters:
            x = adapter(x)
        return x


@pytest.mark.parametrize("names", [("down", "up"), ("up", "down"), ("down_proj", "up_proj"), ("w_down", "w_up")])
@pytest.mark.parametrize("turned", [False, True])
def test_down_and_up_or_up_and_down(names: tuple[str, str], turned: bool) -> None:
    x = np.random.default_rng(0).normal(size=(3, 6)).astype("float32")
    models = [Adapter(), Named(*names)]
    assert padiff.compare(*(models[::-1] if turned else models), x).aligned
    models = [Net(), Port(*names)]
    assert padiff.compare(*(models[::-1] if turned else models), x[:, :4]).aligned


class Gone(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)

    def forward(self, x: Any) -> Any:
        return x + self.up(torch.relu(self.down(x)))


def test_who_uses_down_and_up_in_the_wrong_order() -> None:
    """Both speak of them: then names decide, against the order of use."""
    x = np.random.default_rng(0).normal(size=(3, 6)).astype("float32")
    found = padiff.compare(Gone(), Named("up", "down"), x).divergence
    assert found is not None and found.raw_path == "", str(found)
