"""A module that both models call several times, in another order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
import torch
from torch import nn

import padiff
from tests.engine.test_crossings import counted


class Encoder(nn.Module):
    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.linear, self.act, self.norm, self.wrong = nn.Linear(8, 8), nn.Tanh(), nn.LayerNorm(8), wrong

    def forward(self, x: Any) -> Any:
        return self.norm(self.act(self.linear(x) * (1.1 if self.wrong else 1.0)))


class Pair(nn.Module):
    """Question and answer through one encoder."""

    def __init__(self, order: str = "xy", exchanged: bool = False, wrong: bool = False) -> None:
        super().__init__()
        self.first, self.encoder, self.mix = nn.Linear(8, 8), Encoder(wrong), nn.Linear(16, 4)
        self.order, self.exchanged = order, exchanged

    def forward(self, x: Any, y: Any) -> Any:
        given = {"x": self.first(x), "y": y}
        made = {name: self.encoder(given[name]) for name in self.order}
        parts = [made.get("x", made["y"]), made["y"]]
        return self.mix(torch.cat(parts[::-1] if self.exchanged else parts, -1))


class PaddlePair(paddle.nn.Layer):
    """The answer first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.mix = paddle.nn.Linear(8, 8), paddle.nn.Linear(16, 4)
        self.encoder = paddle.nn.Sequential(paddle.nn.Linear(8, 8), paddle.nn.Tanh(), paddle.nn.LayerNorm(8))

    def forward(self, x: Any, y: Any) -> Any:
        other = self.encoder(y)
        return self.mix(paddle.concat([self.encoder(self.first(x)), other], -1))


def given() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0).normal
    return {name: draw(size=(2, 5, 8)).astype("float32") for name in "xy"}


@pytest.mark.parametrize("orders", [("xy", "yx"), ("yx", "xy"), ("yx", "yx")])
def test_calls_in_another_order_are_the_same_calls(orders: tuple[str, str]) -> None:
    result = padiff.compare(*(Pair(order) for order in orders), given())
    assert result.aligned, str(result.divergence)
    assert result.unmatched == ()


def test_in_another_framework() -> None:
    result = padiff.compare(Pair(), PaddlePair(), given())
    assert result.aligned, str(result.divergence)


def test_with_bounds_of_ones_own() -> None:
    x = {name: torch.from_numpy(array) for name, array in given().items()}
    assert padiff.auto_diff(Pair(), Pair("yx"), (x, x), atol=1e-4, rtol=1e-4)


def test_in_dumps(tmp_path: Path) -> None:
    models = Pair(), Pair("yx")
    models[1].load_state_dict(models[0].state_dict())
    for name, model in zip("ab", models, strict=True):
        with padiff.capture(model, to=tmp_path / name):
            model(**{key: torch.from_numpy(array) for key, array in given().items()}).pow(2).sum().backward()
    result = padiff.compare_dumps(tmp_path / "a", tmp_path / "b")
    assert result.aligned, str(result.divergence)


FAULTS = {
    "in the encoder": (Pair("yx", wrong=True), "encoder"),
    "parts exchanged": (Pair("yx", exchanged=True), ""),
    "one part for both": (Pair("yy"), ""),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_is_named_all_the_same(case: str) -> None:
    raw, path = FAULTS[case]
    result = padiff.compare(Pair(), raw, given())
    assert result.divergence is not None
    assert (result.divergence.raw_path, result.divergence.phase) == (path, "forward"), str(result.divergence)


def test_what_is_no_number_says_nothing_of_an_order() -> None:
    """Neither model runs by itself once more, as it would where calls come in another order."""
    torch.manual_seed(0)
    base, raw = Pair(), Pair()
    raw.first.register_forward_hook(lambda _, given, made: made * float("nan"))
    called = counted(base), counted(raw)
    x = np.random.default_rng(0).standard_normal((3, 8)).astype("float32")
    result = padiff.compare(base, raw, (x, x + 1))
    assert [one.raw_path for one in result.divergences][:1] == ["first"], str(result)
    assert [len(side) for side in called] == [4, 2]
