"""An encoder that returns all of its states, where base's returns the last: they are paired without another run."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import padiff
from tests.engine.test_crossings import counted


class Last(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


class All(Last):
    def forward(self, x: Any) -> Any:
        states = [x]
        for layer in self.layers:
            states.append(torch.tanh(layer(states[-1])))
        return states


class Base(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = Last(), torch.nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.encoder(x))


class Port(torch.nn.Module):
    """Its names tell nothing."""

    def __init__(self, which: int = -1) -> None:
        super().__init__()
        self.body, self.out = All(), torch.nn.Linear(8, 3)
        self.which = which

    def forward(self, x: Any) -> Any:
        return self.out(self.body(x)[self.which])


X = np.random.default_rng(0).standard_normal((4, 8)).astype("float32")


def test_the_last_of_all_states_is_the_one() -> None:
    base, raw = Base(), Port()
    called = counted(base), counted(raw)
    assert padiff.compare(base, raw, X).aligned
    assert [len(side) for side in called] == [2, 1]


def test_going_on_from_another_is_the_callers_fault() -> None:
    found = padiff.compare(Base(), Port(which=-2), X).divergence
    assert found is not None
    assert (found.raw_path, found.phase) == ("", "forward")
