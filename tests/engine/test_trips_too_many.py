"""A module that is called once too often is its caller's fault, also where base has one module for it and the next."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import padiff


class NormAct(torch.nn.LayerNorm):
    """A norm that comes with its activation."""

    def forward(self, x: Any) -> Any:
        return torch.relu(super().forward(x))


class Fused(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.bn1 = torch.nn.Linear(6, 8), NormAct(8)
        self.fc2, self.bn2 = torch.nn.Linear(8, 8), NormAct(8)
        self.head = torch.nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.bn2(self.fc2(self.bn1(self.fc1(x)))))


class Part(torch.nn.Module):
    def __init__(self, inputs: int, times: int) -> None:
        super().__init__()
        self.fc, self.norm, self.act = torch.nn.Linear(inputs, 8), torch.nn.LayerNorm(8), torch.nn.ReLU()
        self.norms = [self.norm] * times if times > 1 else [self.norm]

    def forward(self, x: Any) -> Any:
        x = self.fc(x)
        for norm in self.norms:
            x = norm(x)
        return self.act(x)


class Apart(torch.nn.Module):
    def __init__(self, times: int = 1) -> None:
        super().__init__()
        self.parts = torch.nn.Sequential(Part(6, 1), Part(8, times))
        self.head = torch.nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.parts(x))


def base() -> Fused:
    torch.manual_seed(0)
    found = Fused()
    for norm in (found.bn1, found.bn2):
        torch.nn.init.normal_(norm.weight, 1.0, 0.3)
        torch.nn.init.normal_(norm.bias, 0.2, 0.3)
    return found


X = np.random.default_rng(0).standard_normal((4, 6)).astype("float32")


def test_equally_often() -> None:
    assert padiff.compare(base(), Apart(), X).aligned


def test_once_too_often() -> None:
    found = padiff.compare(base(), Apart(times=2), X).divergence
    assert found is not None
    assert (found.raw_path, found.phase) == ("parts.1", "forward")
    assert "parts.1.norm is called once by base and twice by raw" in found.note


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm = torch.nn.Linear(6, 6), torch.nn.LayerNorm(6)

    def forward(self, x: Any) -> Any:
        return x + torch.tanh(self.fc(self.norm(x)))


class Flat(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = torch.nn.ModuleList(Block() for _ in range(3)), torch.nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Encoder(torch.nn.Module):
    def __init__(self, again: int | None) -> None:
        super().__init__()
        self.layer, self.again = torch.nn.ModuleList(Block() for _ in range(3)), again

    def forward(self, x: Any) -> Any:
        for number, layer in enumerate(self.layer):
            x = layer(x)
            if number == self.again:
                x = layer(x)
        return x


class Nested(torch.nn.Module):
    """The same with a module around the blocks, which base lacks."""

    def __init__(self, again: int | None = None) -> None:
        super().__init__()
        self.vision, self.head = Encoder(again), torch.nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.vision(x))


@pytest.mark.parametrize("again", [None, 0, 1, 2])
def test_a_member_of_a_list_once_too_often(again: int | None) -> None:
    torch.manual_seed(0)
    result = padiff.compare(Flat(), Nested(again), X)
    if again is None:
        assert result.aligned, str(result)
        return
    assert result.divergence is not None
    assert result.divergence.raw_path == "vision"
