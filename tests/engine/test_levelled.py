"""Blocks that pass on all they were given: their authors share the same gradients differently, and numbers cross."""

from __future__ import annotations

from typing import Any

import torch

import padiff
from tests.engine.test_crossings import Shift, on_the_kink, shifted


class Layer(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        shift = Shift(False) if width > 4 else torch.nn.Identity()
        self.shift, self.act, self.proj = shift, torch.nn.ReLU(), torch.nn.Linear(width, 4)

    def forward(self, features: list[Any]) -> Any:
        return self.proj(self.act(self.shift(torch.cat(features, -1))))


class Block(torch.nn.Module):
    """Every layer is given a list of all that came before."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer(width) for width in (4, 8, 12))

    def forward(self, x: Any) -> Any:
        features = [x]
        for layer in self.layers:
            features.append(layer(features))
        return torch.cat(features, -1)


class Shifted(torch.nn.Module):
    def __init__(self, together: bool = True) -> None:
        super().__init__()
        self.together = together

    def forward(self, x: Any) -> Any:
        return torch.relu(shifted(x, self.together) if x.shape[-1] > 4 else x)


class Grown(torch.nn.Module):
    """Returns what it was given, and what it makes of it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.conv = Shifted(), torch.nn.Linear(width, 4)

    def forward(self, x: Any) -> Any:
        return torch.cat([x, self.conv(self.before(x))], -1)


class Chain(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.grown1, self.grown2, self.grown3 = Grown(4), Grown(8), Grown(12)

    def forward(self, x: Any) -> Any:
        return self.grown3(self.grown2(self.grown1(x)))


def models() -> tuple[Any, Any]:
    torch.manual_seed(0)
    base = torch.nn.Sequential(torch.nn.Linear(4, 4), Block(), torch.nn.Linear(16, 3))
    for linear, scale in ((base[0], 1.0), (base[1].layers[0].proj, 0.5)):
        torch.nn.init.zeros_(linear.bias)
        linear.weight.data = scale * torch.eye(4)
    return base, torch.nn.Sequential(torch.nn.Linear(4, 4), Chain(), torch.nn.Linear(16, 3))


def inputs() -> Any:
    """Of what the first layer makes of them, one number crosses in the second and the third."""
    x = on_the_kink()
    x[11, 1] *= 2
    return x


def test_numbers_that_cross_are_no_fault() -> None:
    result = padiff.compare(*models(), inputs())
    assert result.aligned, str(result)
    assert any("without what comes back through those numbers" in note for note in result.notes)


def called(given: Any) -> tuple[Any, list[str]]:
    """What comparing models comes to that differ in nothing but how they share gradients, and whose forwards ran."""
    base, raw = models()
    for layer in base[1].layers:
        layer.shift, layer.act = torch.nn.Sequential(), Shifted(False)
    calls: list[str] = []
    for side, model in (("base", base), ("raw", raw)):
        model.register_forward_pre_hook(lambda *_, side=side: calls.append(side))
    return padiff.compare(base, raw, given), calls


def test_where_nothing_else_differs_they_are_levelled_while_raw_waits() -> None:
    result, calls = called(inputs())
    assert result.aligned, str(result)
    assert any("without what comes back through those numbers" in note for note in result.notes)
    assert calls == ["base", "base", "raw", "base"]


def test_shares_of_a_gradient_take_no_second_look() -> None:
    result, calls = called(torch.randn(16, 4, generator=torch.Generator().manual_seed(1)))
    assert result.aligned, str(result)
    assert not result.notes
    assert calls == ["base", "base", "raw"]


def test_a_wrong_gradient_beside_them_is_named_alone() -> None:
    base, raw = models()
    raw[1].grown2.conv.register_full_backward_hook(lambda module, given, arrived: (given[0] * 1.05,))
    result = padiff.compare(base, raw, inputs())
    assert [(one.raw_path, one.phase) for one in result.divergences] == [("1.grown2.conv", "backward")]


def test_a_wrong_gradient_of_a_parameter_is_named_alone() -> None:
    base, raw = models()
    raw[1].grown2.conv.weight.register_hook(lambda gradient: gradient * 1.05)
    result = padiff.compare(base, raw, inputs())
    assert [(one.raw_path, one.phase) for one in result.divergences] == [("1.grown2.conv", "gradient")]
