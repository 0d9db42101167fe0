"""A base that differs from itself supports no verdict, and that is said first."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

import padiff


class Noisy(torch.nn.Module):
    """Draws from a generator of its own, which nobody can put back."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.size = size
        self.generator = np.random.default_rng(0)

    def forward(self, x: Any) -> Any:
        noise = self.generator.standard_normal(tuple(x.shape)).astype("float32")
        return self.linear(x) + self.size * torch.from_numpy(noise)


@pytest.mark.parametrize("size", [1.0, 0.05])
def test_a_base_that_differs_from_itself_is_named_first(size: float) -> None:
    torch.manual_seed(0)
    base = Noisy(size)
    result = padiff.compare(base, copy.deepcopy(base), torch.randn(4, 8))
    assert not result.aligned
    assert "not deterministic" in result.notes[0]


def test_random_numbers_of_the_frameworks_are_put_back() -> None:
    torch.manual_seed(0)
    base = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 4)).train()
    result = padiff.compare(base, copy.deepcopy(base), torch.randn(4, 8))
    assert result.aligned, str(result)
    assert result.notes == ()


class Chaotic(torch.nn.Module):
    """Makes much of the last digit: a map that triples a distance, thirty times over."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = torch.nn.ModuleList([torch.nn.Linear(8, 8) for _ in range(30)])
        self.runs = 0

    def forward(self, x: Any) -> Any:
        self.runs += 1
        x = self.steps[0](x) * (1 + self.runs % 2 * 2.0**-23)  # as another kernel would
        for step in self.steps[1:]:
            x = torch.sin(6 * step(x))
        return x


def test_a_last_digit_that_grows_is_no_randomness() -> None:
    torch.manual_seed(0)
    base = Chaotic()
    result = padiff.compare(base, copy.deepcopy(base), torch.randn(4, 8))
    assert result.notes == ()
    assert result.aligned, str(result)
