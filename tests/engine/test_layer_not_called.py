"""Layers that raw has and does not call, and steps that all blocks of a class leave out: who should have done it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import padiff

X = np.random.default_rng(0).normal(size=(3, 5, 8)).astype("float32")


class Mixing(nn.Module):
    """Base's author projects outside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.value = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        return (self.query(x) @ x.transpose(1, 2)).softmax(-1) @ self.value(x)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mixing, self.dense, self.norm = Mixing(), nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x: Any) -> Any:
        return self.norm(x + self.dense(self.mixing(x)))


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(3)), nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Attention(nn.Module):
    """Raw's author projects inside."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.v, self.out, self.wrong = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), False

    def forward(self, x: Any) -> Any:
        made = (self.q(x) @ x.transpose(1, 2)).softmax(-1) @ self.v(x)
        return made if self.wrong else self.out(made)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.after, self.wrong = Attention(), nn.LayerNorm(8), False

    def forward(self, x: Any) -> Any:
        x = x + self.attention(x)
        return x if self.wrong else self.after(x)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


class Raw(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = Encoder(), nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        return self.head(self.encoder(x))


@pytest.mark.parametrize("places", [(0,), (1,), (2,), (0, 1, 2)])
@pytest.mark.parametrize("inner", [".attention", ""])
def test_who_holds_a_layer_should_have_called_it(inner: str, places: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    raw = Raw()
    assert padiff.compare(Base(), raw, X).aligned
    for place in places:
        raw.get_submodule(f"encoder.layers.{place}{inner}").wrong = True
    result = padiff.compare(Base(), raw, X)
    assert result.divergence is not None
    assert result.divergence.raw_path == f"encoder.layers.{places[0]}{inner}", str(result)


class Flat(nn.Module):
    """Base's author calls all layers in one place."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise = nn.ModuleList(nn.Conv1d(5, 5, 3, padding=1, groups=5) for _ in range(3))
        self.pointwise = nn.ModuleList(nn.Conv1d(5, 5, 1) for _ in range(3))
        self.act = nn.SiLU()

    def forward(self, x: Any) -> Any:
        for depthwise, pointwise in zip(self.depthwise, self.pointwise, strict=True):
            x = x + pointwise(self.act(depthwise(x)))
        return x


class Spread(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.act, self.wrong = nn.Conv1d(5, 5, 3, padding=1, groups=5), nn.SiLU(), ""

    def forward(self, x: Any) -> Any:
        x = x if self.wrong == "first" else self.conv(x)
        return x if self.wrong == "act" else self.act(x)


class Separable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.spread, self.mix = Spread(), nn.Conv1d(5, 5, 1)

    def forward(self, x: Any) -> Any:
        return x + self.mix(self.spread(x))


@pytest.mark.parametrize("wrong", ["first", "act"])
@pytest.mark.parametrize("place", range(3))
def test_a_first_layer_and_one_without_weights(wrong: str, place: int) -> None:
    torch.manual_seed(0)
    base, raw = Flat(), nn.Sequential(*(Separable() for _ in range(3)))
    assert padiff.compare(base, raw, X).aligned
    raw[place].spread.wrong = wrong
    result = padiff.compare(base, raw, X)
    assert result.divergence is not None
    assert result.divergence.raw_path == f"{place}.spread", str(result)


class Normed(nn.Module):
    """Base's author has a module for the first activation, and none for the second."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.rectify, self.up, self.down = nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x: Any) -> Any:
        return x + self.down(nn.functional.gelu(self.up(self.rectify(self.norm(x)))))


class NormAct(nn.BatchNorm1d):
    """Raw's author keeps one with the norm."""

    def __init__(self) -> None:
        super().__init__(5)
        self.act, self.wrong = nn.ReLU(), False

    def forward(self, x: Any) -> Any:
        return self.act(x if self.wrong else super().forward(x))


class Activated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bn, self.drop, self.wrong = NormAct(), nn.Dropout(0.5), False
        self.fc1, self.fc2 = nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x: Any) -> Any:
        made = self.fc1(self.bn(x))
        return x + self.fc2(self.drop(made if self.wrong else nn.functional.gelu(made)))


@pytest.mark.parametrize("inner", [".bn", ""])
@pytest.mark.parametrize("place", range(3))
def test_a_layer_that_is_called_in_the_place_of_an_op(inner: str, place: int) -> None:
    """An activation, or a dropout that does nothing, is not why base's op is left out before it."""
    torch.manual_seed(0)
    base, raw = (nn.Sequential(*(kind() for _ in range(4))).eval() for kind in (Normed, Activated))
    assert padiff.compare(base, raw, X).aligned
    raw.get_submodule(f"{place}{inner}").wrong = True
    result = padiff.compare(base, raw, X)
    assert result.divergence is not None
    assert result.divergence.raw_path == f"{place}{inner}", str(result)


class Residual(nn.Module):
    def __init__(self, wrong: bool = False) -> None:
        super().__init__()
        self.up, self.down, self.wrong = nn.Linear(8, 12), nn.Linear(12, 8), wrong

    def forward(self, x: Any) -> Any:
        made = self.down(self.up(x).relu())
        return made if self.wrong else x + made


def staged(wrong: bool) -> nn.Module:
    stages = (nn.Sequential(nn.Linear(8, 8), *(Residual(wrong) for _ in range(3))) for _ in range(2))
    return nn.Sequential(*stages, nn.Linear(8, 4))


class Wrapped(nn.Module):
    """Built otherwise than what it is held against."""

    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.body = staged(wrong)

    def forward(self, x: Any) -> Any:
        return self.body(x)


def test_a_step_that_all_blocks_leave_out_is_left_out_by_the_first() -> None:
    """And not by the stage around it, which ends where its last block does."""
    torch.manual_seed(0)
    assert padiff.compare(staged(False), Wrapped(False), X).aligned
    result = padiff.compare(staged(False), Wrapped(True), X)
    assert result.divergence is not None
    assert result.divergence.raw_path == "body.0.1", str(result)


class Parts(nn.Module):
    """Takes its projections from one layer that it never calls."""

    def __init__(self) -> None:
        super().__init__()
        self.in_proj, self.out = nn.Linear(8, 16), nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        weights, biases = self.in_proj.weight.chunk(2), self.in_proj.bias.chunk(2)
        query, value = (nn.functional.linear(x, *part) for part in zip(weights, biases, strict=True))
        return self.out((query @ x.transpose(1, 2)).softmax(-1) @ value)


class Projected(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.value, self.out = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        return self.out((self.query(x) @ x.transpose(1, 2)).softmax(-1) @ self.value(x))


class PartsBlock(nn.Module):
    def __init__(self, attention: nn.Module, wrong: bool = False) -> None:
        super().__init__()
        self.attention, self.up, self.down, self.wrong = attention, nn.Linear(8, 12), nn.Linear(12, 8), wrong

    def forward(self, x: Any) -> Any:
        made = self.up(x + self.attention(x))
        return self.down(nn.functional.gelu(made) if self.wrong else nn.functional.relu(made))


def test_a_layer_of_which_parts_are_taken_is_not_left_out() -> None:
    torch.manual_seed(0)
    base = nn.Sequential(*(PartsBlock(Projected()) for _ in range(2)))
    assert padiff.compare(base, nn.Sequential(*(PartsBlock(Parts()) for _ in range(2))), X).aligned
    result = padiff.compare(base, nn.Sequential(*(PartsBlock(Parts(), wrong=True) for _ in range(2))), X)
    assert result.divergence is not None
    assert result.divergence.raw_path == "0", str(result)
