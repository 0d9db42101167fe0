"""A table that raw makes itself, where base keeps it in an embedding that is not learnt: it is compared, not filled."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff

ROWS = np.random.default_rng(0).normal(size=(2, 6, 8)).astype("float32")


def waves(base: float) -> Any:
    angles = np.arange(6)[:, None] / base ** (np.arange(4) / 4)
    return np.concatenate([np.sin(angles), np.cos(angles)], -1).astype("float32")


class Base(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.positions = torch.nn.Embedding.from_pretrained(torch.from_numpy(waves(100.0)))
        self.into, self.out = torch.nn.Linear(8, 8), torch.nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        return self.out(torch.tanh(self.into(x) + self.positions(torch.arange(6))))


class Raw(paddle.nn.Layer):
    def __init__(self, base: float, kept: bool) -> None:
        super().__init__()
        self.fc1, self.fc2 = paddle.nn.Linear(8, 8), paddle.nn.Linear(8, 3)
        self.register_buffer("where", paddle.to_tensor(waves(base)), persistable=kept)

    def forward(self, x: Any) -> Any:
        return self.fc2(paddle.tanh(self.fc1(x) + self.where))


@pytest.mark.parametrize("kept", [True, False])
def test_a_wrong_table_shows(kept: bool) -> None:
    torch.manual_seed(0)
    assert padiff.compare(Base(), Raw(100.0, kept), ROWS).aligned
    found = padiff.compare(Base(), Raw(1000.0, kept), ROWS).divergence
    assert found is not None
    assert (found.phase, found.raw_path) == ("forward", ""), str(found)
