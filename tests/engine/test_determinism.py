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
