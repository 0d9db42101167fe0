"""Whether a model draws is guessed before it runs: a wrong guess that it doesn't takes a run of base."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.localise.counted import counting

import padiff

X = np.random.default_rng(0).standard_normal((4, 8)).astype("float32")


class Dropped(torch.nn.Module):
    """A layer that is left out by chance, as encoders have it; nothing but its code says so."""

    def __init__(self, chance: float) -> None:
        super().__init__()
        self.first, self.second, self.chance = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), chance

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        if self.training and torch.rand([]) < self.chance:
            return x
        return self.second(x)


@pytest.mark.parametrize("chance", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("train", [True, False])
def test_code_that_draws_is_listened_to_at_once(chance: float, train: bool) -> None:
    base, raw = Dropped(chance).train(train), Dropped(chance).train(train)
    with counting(base, raw) as runs:
        result = padiff.compare(base, raw, X)
    assert result.aligned, str(result)
    assert runs.plain() == (2.0, 1.0)
