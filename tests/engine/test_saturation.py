"""What is left of a gradient behind a saturated function is rounding, and accuses nobody."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

import padiff
from padiff.capture.held import HostValue
from padiff.capture.jitter import spacing_of
from padiff.engine.fed.saturation import Saturation
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
@pytest.mark.parametrize("factor", [-1.0, 1.5])
def test_a_wrong_gradient_behind_a_layer_that_lets_little_through(size: float, factor: float) -> None:
    """In bfloat16 what comes out of a layer of small weights is below a few units of what comes in."""

    def net(factor: float) -> torch.nn.Module:
        torch.manual_seed(2)
        layers = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)
        torch.nn.init.normal_(layers[1].weight, std=1e-3)
        model = torch.nn.Sequential(*layers).to(torch.bfloat16)
        if factor != 1.0:
            model[1].register_forward_pre_hook(lambda module, args: (Times.apply(args[0], factor),))
        return model

    x = torch.from_numpy(size * np.random.default_rng(3).standard_normal((16, 32))).to(torch.bfloat16)
    assert padiff.compare(net(1.0), net(1.0), x).aligned
    found = padiff.compare(net(1.0), net(factor), x).divergence
    assert found is not None
    assert (found.raw_path, found.phase) == ("1", "backward")


@pytest.mark.parametrize(
    ("size", "off", "narrow", "excused"),
    [
        (0.02, 0.5, 2.0**-7, True),  # zero by rights
        (0.02, 0.03, 2.0**-7, False),  # by a factor
        (0.1, 0.5, 2.0**-7, False),  # some of it gets through
        (0.02, 3.0, 2.0**-7, False),  # more than rounding leaves
        (0.02, 0.5, 0.0, False),
    ],
)
@pytest.mark.parametrize("kind", ["Net", "Sigmoid"])
def test_terms_that_cancel_but_for_few_digits(kind: str, size: float, off: float, narrow: float, excused: bool) -> None:
    """In bfloat16's units of what comes in."""
    unit = 2.0**-7 * 1e-3
    call = _given_back(kind, np.full(64, 1e-3, "float32"))
    known = Saturation(StepTrace(0, (call,), {}, None, {}), {}, {1: call.outputs[0].value}, narrow)
    numbers = Numbers(64, off * unit, off * unit, size * unit, off * unit, size * unit, 0.0)
    squashed = kind == "Sigmoid" and narrow > 0 and off <= 0.25
    if kind == "Net" or squashed:
        told = known.explains("input", call, Outcome("different", "values", "", numbers))
        assert told is (excused or squashed)


def _given_back(kind: str, arrives: Any) -> Call:
    value = HostValue(arrives)
    return Call(0, -1, 0, "", kind, 0, (Slot("0", 0, value, True),), (Slot("", 1, value, True),))


class TwoRows(torch.nn.Module):
    """A norm of two rows sends nothing back, whatever comes in."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(8, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 4)

    def forward(self, x: Any) -> Any:
        apart = x.new_tensor([[2.0], [-2.0]])
        return self.last(self.norm(self.first(x) + apart))


class Gated(torch.nn.Module):
    """A gate that is open for good, with much behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.gate, self.last = torch.nn.Linear(8, 64), torch.nn.Sigmoid(), torch.nn.Linear(64, 4)

    def forward(self, x: Any) -> Any:
        return self.last(self.gate(3.0 * self.first(x) + 4.5))


@pytest.mark.parametrize("kind", [TwoRows, Gated])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("narrow", ["base", "raw"])
def test_what_few_digits_leave_of_it(kind: Any, dtype: torch.dtype, narrow: str) -> None:
    torch.manual_seed(0)
    one = kind()
    other = copy.deepcopy(one)
    (one if narrow == "base" else other).to(dtype)
    x = np.random.default_rng(1).standard_normal((2, 8)).astype("float32")
    result = padiff.compare(one, other, x)
    assert result.aligned, str(result.divergence)


class Times(torch.autograd.Function):
    """The same forward; backward with another factor."""

    @staticmethod
    def forward(ctx: Any, x: Any, factor: float) -> Any:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return ctx.factor * gradient, None


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
