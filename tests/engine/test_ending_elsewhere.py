"""Blocks that end elsewhere than base's, and add up to what the model returns: which of them is wrong, if one is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import padiff
from padiff.capture.held import HostValue
from padiff.engine.fed.doubts import _slightly
from padiff.records import Slot
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


class Residual(nn.Module):
    """Adds what it was given to what it makes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 6), nn.Linear(6, 8)

    def forward(self, x: Any) -> Any:
        return x + self.down(self.up(x).tanh())


class Residuals(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Residual() for _ in range(3)), nn.Linear(8, 2)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Inner(nn.Module):
    """Leaves that to who calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.widen, self.narrow = nn.Identity(), nn.Linear(8, 6), nn.Linear(6, 8)

    def forward(self, x: Any) -> Any:
        return self.narrow(self.widen(self.norm(x)).tanh())


class Inners(nn.Module):
    def __init__(self, forgotten: int) -> None:
        super().__init__()
        self.out, self.forgotten = nn.Linear(8, 2), forgotten
        self.a, self.b, self.c = Inner(), Inner(), Inner()

    def forward(self, x: Any) -> Any:
        for place, one in enumerate((self.a, self.b, self.c)):
            x = one(x) if place == self.forgotten else x + one(x)
        return self.out(x)


@pytest.mark.parametrize("forgotten", [1, 2])
def test_what_comes_after_a_call_of_a_class_that_ends_elsewhere_as_a_rule(forgotten: int) -> None:
    """Its likes show that the rest is left to the code around."""
    assert padiff.compare(Residuals(), Inners(-1), X).aligned
    result = padiff.compare(Residuals(), Inners(forgotten), X)
    assert result.divergence is not None
    assert (result.divergence.raw_path, result.divergence.phase) == ("", "forward"), str(result)
    assert "missing residual" in {cause.name for cause in result.divergence.causes}


class ScaledTable(nn.Embedding):
    def forward(self, ids: Any) -> Any:
        return super().forward(ids) * 3.0


class Looking(nn.Module):
    def __init__(self, table: nn.Embedding, scale: float = 1.0) -> None:
        super().__init__()
        self.table, self.norm, self.head, self.scale = table, nn.LayerNorm(8), nn.Linear(8, 2), scale
        self.places = nn.Embedding(5, 8)

    def forward(self, ids: Any) -> Any:
        x = self.table(ids) * self.scale + self.places(torch.arange(5))
        return self.head(self.norm(x))


class Wrapped(nn.Module):
    """The same, built otherwise."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.inner = nn.Sequential(Looking(nn.Embedding(11, 8), scale))

    def forward(self, ids: Any) -> Any:
        return self.inner(ids)


def test_a_layer_of_a_class_of_its_own_that_does_what_raw_does_outside() -> None:
    ids = np.random.default_rng(0).integers(0, 11, size=(2, 5))
    base = Looking(ScaledTable(11, 8))
    assert padiff.compare(base, Wrapped(3.0), ids).aligned
    assert padiff.compare(Wrapped(3.0), base, ids).aligned
    found = padiff.compare(base, Wrapped(2.0), ids).divergence
    assert found is not None
    assert (found.raw_path, found.phase) == ("inner.0.table", "forward"), str(found)
    assert found.op is not None and found.op.raw_line is not None
    assert found.op.raw_line.line == Looking.forward.__code__.co_firstlineno + 1  # who calls it may be wrong as well
    found = padiff.compare(Wrapped(2.0), base, ids).divergence
    assert found is not None
    assert (found.raw_path, found.phase) == ("table", "forward"), str(found)


def test_numbers_in_other_places_are_no_slight_difference() -> None:
    base = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")

    def slot(array: np.ndarray) -> Slot:
        return Slot("", 0, HostValue(array))

    assert _slightly(slot(base), slot(base + np.float32(1e-5)))
    assert _slightly(slot(base), slot(base.reshape(10, 8).T.copy()))  # laid out differently
    assert not _slightly(slot(base), slot(np.roll(base, 1, 1)))
