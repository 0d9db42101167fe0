"""What is left of a gradient behind a saturated function is rounding, and accuses nobody."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import padiff
from padiff.capture.held import HostValue
from padiff.capture.jitter import spacing_of
from padiff.engine.saturation import Saturation
from padiff.records import Call, Numbers, Outcome, Slot, StepTrace
from tests.twins import TorchScaleGradient


class Net(torch.nn.Module):
    def __init__(self, wide: bool = False, scaled: bool = False) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)
        self.wide, self.scaled = wide, scaled

    def forward(self, x: Any) -> Any:
        hidden = self.first(x)
        if self.scaled:
            hidden = TorchScaleGradient.apply(hidden)
        squeezed = torch.tanh(hidden.double()).float() if self.wide else torch.tanh(hidden)
        return self.second(squeezed)


@pytest.mark.parametrize("size", [10.0, 30.0, 100.0, 1000.0])
@pytest.mark.parametrize("rows", [2, 40])
def test_a_saturated_function_that_is_rounded_otherwise(size: float, rows: int) -> None:
    x = size * np.random.default_rng(1).standard_normal((rows, 8)).astype("float32")
    result = padiff.compare(Net(), Net(wide=True), x)
    assert result.aligned, str(result.divergence)


@pytest.mark.parametrize("size", [1.0, 10.0])
def test_a_wrong_gradient_behind_it_is_still_seen(size: float) -> None:
    x = size * np.random.default_rng(1).standard_normal((40, 8)).astype("float32")
    found = padiff.compare(Net(), Net(scaled=True), x).divergence
    assert found is not None
    assert found.phase == "backward"
    assert found.note == "the gradient that arrives at the output of first differs"


@pytest.mark.parametrize(
    ("units", "off", "excused"),
    [
        (10.0, 1.9, True),  # nothing but rounding
        (10.0, 2.1, False),
        (130.0, 1.4, True),  # few units, of which one may be wrong, or nearly two
        (130.0, 1.6, False),
        (3000.0, 1.9, True),  # below a thousandth
        (1500.0, 1.6, False),
    ],
)
def test_how_much_of_what_gets_through_may_be_wrong(units: float, off: float, excused: bool) -> None:
    """In units in the last place of what comes in."""
    arrives = np.full(64, 1e-3, "float32")
    unit = spacing_of(arrives.dtype) * 1e-3
    value = HostValue(arrives)
    call = Call(0, -1, 0, "", "Net", 0, (Slot("0", 0, value, True),), (Slot("", 1, value, True),))
    known = Saturation(StepTrace(0, (call,), {}, None, {}), {}, {1: value})
    numbers = Numbers(64, off * unit, off * unit, units * unit, off * unit, units * unit, 1.0)
    assert known.explains("input", call, Outcome("different", "values", "", numbers)) is excused


@pytest.mark.parametrize("size", [0.05, 0.5])
def test_a_turned_gradient_behind_a_layer_that_lets_little_through(size: float) -> None:
    """In bfloat16 what comes out of a layer of small weights is below a few units of what comes in."""

    def net(factor: float) -> torch.nn.Module:
        torch.manual_seed(2)
        layers = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)
        torch.nn.init.normal_(layers[1].weight, std=1e-3)
        model = torch.nn.Sequential(*layers).to(torch.bfloat16)
        if factor != 1.0:
            model[1].register_forward_pre_hook(lambda module, args: (Turned.apply(args[0]),))
        return model

    x = torch.from_numpy(size * np.random.default_rng(3).standard_normal((16, 32))).to(torch.bfloat16)
    assert padiff.compare(net(1.0), net(1.0), x).aligned
    found = padiff.compare(net(1.0), net(-1.0), x).divergence
    assert found is not None
    assert (found.raw_path, found.phase) == ("1", "backward")


class Turned(torch.autograd.Function):
    """The same forward; backward with the other sign."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return -gradient


class Spelled(torch.nn.Module):
    """A softmax in steps, with a table of its own that makes its scores."""

    def __init__(self, divided_last: bool = False, wrong: bool = False) -> None:
        super().__init__()
        self.linear, self.table = torch.nn.Linear(8, 8), torch.nn.Parameter(torch.randn(2, 4) * 0.3)
        self.divided_last, self.wrong = divided_last, wrong

    def forward(self, x: Any, distances: Any) -> Any:
        heads = self.linear(x).reshape(*x.shape[:2], 2, 4)
        table = TorchScaleGradient.apply(self.table) if self.wrong else self.table
        scores = (heads * table).sum(-1) + distances
        weights = (scores - scores.max(1, keepdim=True).values.detach()).exp()
        total = weights.sum(1, keepdim=True)
        if self.divided_last:
            return ((heads * weights.unsqueeze(-1)).sum(1) / total.transpose(1, 2)).flatten(1)
        return (heads * (weights / total).unsqueeze(-1)).sum(1).flatten(1)


def _far_apart(seed: int, size: float) -> tuple[Any, ...]:
    numbers = np.random.default_rng(seed)
    x = numbers.standard_normal((6, 5, 8)).astype("float32")
    return x, (size * numbers.standard_normal((6, 5, 2))).astype("float32")


@pytest.mark.parametrize("size", [30.0, 100.0, 300.0, 1000.0])
def test_a_parameter_behind_a_softmax_that_is_spelled_out(size: float) -> None:
    """One score outweighs all others: what is left of the table's gradient is a difference of equal numbers."""
    for seed in range(6):
        torch.manual_seed(seed)
        result = padiff.compare(Spelled(), Spelled(divided_last=True), _far_apart(seed, size))
        assert result.aligned, str(result.divergence)


@pytest.mark.parametrize("size", [1.0, 10.0])
def test_a_wrong_gradient_of_such_a_parameter(size: float) -> None:
    torch.manual_seed(0)
    found = padiff.compare(Spelled(), Spelled(wrong=True), _far_apart(0, size)).divergence
    assert found is not None
    assert (found.raw_path, found.phase, found.comparison.name) == ("", "gradient", "table")
