"""A weight kept whole in one model, and by size and direction or behind a parametrisation in the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch
from benchmarks.localise.counted import counting

import padiff

X = np.random.default_rng(0).normal(size=(3, 6)).astype("float32")
PICTURE = np.random.default_rng(0).normal(size=(2, 3, 8)).astype("float32")


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (torch.nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: Any) -> Any:
        return self.third(self.second(self.first(x).tanh()).tanh())


class PaddleNet(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (paddle.nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: Any) -> Any:
        return self.third(self.second(self.first(x).tanh()).tanh())


def whole() -> Any:
    return Net()


def in_paddle() -> Any:
    return PaddleNet()


def new(model: Any | None = None) -> Any:
    model = model or Net()
    torch.nn.utils.parametrizations.weight_norm(model.second)
    with torch.no_grad():
        model.second.parametrizations.weight.original0.mul_(1.7)
    return model


def old() -> Any:
    model = Net()
    with pytest.warns(FutureWarning):
        torch.nn.utils.weight_norm(model.second)
    with torch.no_grad():
        model.second.weight_g.mul_(0.6)
    return model


def of_columns() -> Any:
    model = Net()
    torch.nn.utils.parametrizations.weight_norm(model.second, dim=1)
    return model


def of_all() -> Any:
    model = Net()
    torch.nn.utils.parametrizations.weight_norm(model.second, dim=None)
    return model


def normed_in_paddle() -> Any:
    model = PaddleNet()
    paddle.nn.utils.weight_norm(model.second, dim=1)
    return model


class Times(torch.nn.Module):
    """Multiplies a weight."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, weight: Any) -> Any:
        return weight * self.factor


def times(factor: float) -> Any:
    model = Net()
    torch.nn.utils.parametrize.register_parametrization(model.second, "weight", Times(factor))
    return model


NORMED = [new, old, of_columns, of_all, normed_in_paddle]


@pytest.mark.parametrize("base", NORMED)
@pytest.mark.parametrize("raw", [whole, in_paddle])
def test_whole_from_size_and_direction(base: Any, raw: Any) -> None:
    assert padiff.compare(base(), raw(), X).aligned


@pytest.mark.parametrize("base", [whole, in_paddle])
@pytest.mark.parametrize("raw", NORMED)
def test_size_and_direction_from_whole(base: Any, raw: Any) -> None:
    assert padiff.compare(base(), raw(), X).aligned


def test_a_norm_over_other_axes_than_usual_fills_its_like() -> None:
    """That of a convolution's taps, as speech models have it: names settle it, and no order of use is asked for."""

    def made() -> Any:
        conv = torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv1d(6, 6, 8, groups=3), dim=2)
        return torch.nn.Sequential(conv, torch.nn.Tanh())

    base, raw, x = made(), made(), np.ones((2, 6, 20), "float32")
    with counting(base, raw) as runs:
        assert not padiff.plan_weights(base, raw, x).problems
    assert runs.plain() == (0.0, 0.0)
    assert padiff.compare(base, raw, x).aligned


def test_one_that_is_off_is_named() -> None:
    base = Net()
    raw = new(Net())
    raw.load_state_dict(base.state_dict(), strict=False)
    found = padiff.compare(base, raw, X, weights="keep").divergence
    assert found is not None
    assert (found.raw_path, found.phase) == ("second", "forward")


def test_a_parametrisation_that_changes_nothing() -> None:
    assert padiff.compare(Net(), times(1.0), X).aligned
    assert padiff.compare(times(1.0), Net(), X).aligned


def test_one_that_changes_something_is_named() -> None:
    found = padiff.compare(Net(), times(1.1), X).divergences
    assert [(one.raw_path, one.phase) for one in found] == [("second", "forward")]


def test_convolutions() -> None:
    base = torch.nn.Sequential(torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv1d(3, 4, 3)), torch.nn.Tanh())
    raw = torch.nn.Sequential(torch.nn.Conv1d(3, 4, 3), torch.nn.Tanh())
    assert padiff.compare(base, raw, PICTURE).aligned
    assert padiff.compare(raw, base, PICTURE).aligned
