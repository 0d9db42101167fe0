"""Rows of a table that one author's layer adds up, and the other's code."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch
from torch import nn

import padiff

INPUTS = {"ids": np.random.default_rng(0).integers(0, 9, size=(3, 4)), "user": np.array([2, 0, 1])}


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag, self.users = nn.EmbeddingBag(9, 6, mode="mean"), nn.Embedding(3, 6)
        self.fc, self.out = nn.Linear(12, 8), nn.Linear(8, 2)

    def forward(self, ids: Any, user: Any) -> Any:
        return self.out(self.fc(torch.cat([self.bag(ids), self.users(user)], -1)).tanh())


class Port(paddle.nn.Layer):
    def __init__(self, bug: str = "") -> None:
        super().__init__()
        self.bug = bug
        self.last, self.first = paddle.nn.Linear(8, 2), paddle.nn.Linear(12, 8)
        self.who, self.table = paddle.nn.Embedding(3, 6), paddle.nn.Embedding(9, 6)

    def forward(self, ids: Any, user: Any) -> Any:
        rows = self.table(ids)
        rows = rows.sum(1) if self.bug == "sum" else rows.mean(1)
        found = self.first(paddle.concat([rows, self.who(user)], -1))
        return self.last(paddle.nn.functional.relu(found) if self.bug == "activation" else paddle.tanh(found))


def test_a_table_may_be_added_up_outside() -> None:
    torch.manual_seed(0)
    assert padiff.compare(Base(), Port(), INPUTS).aligned
    assert padiff.compare(Port(), Base(), INPUTS).aligned


@pytest.mark.parametrize(("bug", "line"), [("sum", "self.table(ids)"), ("activation", "relu(found)")])
def test_the_table_is_not_blamed_for_what_is_done_with_its_rows(bug: str, line: str) -> None:
    torch.manual_seed(0)
    found = padiff.compare(Base(), Port(bug), INPUTS).divergence
    assert found is not None
    assert (found.raw_path, found.phase) == ("", "forward")
    assert line in str(found)
