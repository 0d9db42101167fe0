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
        (130.0, 0.9, True),  # few units, of which one may be wrong
        (130.0, 1.1, False),
        (3000.0, 1.1, True),  # below a thousandth
        (300.0, 0.9, False),
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
