"""A port that keeps channels last where base keeps them in the middle: that is not why it differs."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch
from torch import nn

import padiff

X = np.random.default_rng(0).normal(size=(3, 4, 10)).astype("float32")


class Points(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Conv1d(4, 6, 1), nn.Conv1d(6, 8, 1), nn.Conv1d(14, 5, 1)
        self.norm1, self.norm2 = nn.BatchNorm1d(6), nn.BatchNorm1d(8)

    def forward(self, x: Any) -> Any:
        local = self.norm1(self.first(x)).relu()
        local = local.transpose(2, 1).tanh().transpose(2, 1)
        x = self.norm2(self.second(local))
        whole = torch.max(x, 2, keepdim=True)[0].repeat(1, 1, x.shape[2])
        return self.out(torch.cat([whole, local], 1))


class Layer(paddle.nn.Layer):
    """A linear layer and its norm, on channels that come last."""

    def __init__(self, given: int, made: int, rectify: bool) -> None:
        super().__init__()
        self.norm, self.linear = paddle.nn.BatchNorm1D(made, data_format="NLC"), paddle.nn.Linear(given, made)
        self.rectify = rectify

    def forward(self, x: Any) -> Any:
        y = self.norm(self.linear(x))
        return paddle.nn.functional.relu(y) if self.rectify else y


class Port(paddle.nn.Layer):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.head, self.two, self.one = paddle.nn.Linear(14, 5), Layer(6, 8, bug == "relu"), Layer(4, 6, True)
        self.bug = bug

    def forward(self, x: Any) -> Any:
        local = self.one(x.transpose([0, 2, 1])).tanh()
        x = self.two(local)
        whole = x.mean(1, keepdim=True) if self.bug == "mean" else x.max(1, keepdim=True)
        return self.head(paddle.concat([whole.expand(x.shape), local], -1)).transpose([0, 2, 1])


def compared(bug: str) -> padiff.Result:
    base, raw = Points().eval(), Port(bug)
    raw.eval()
    return padiff.compare(base, raw, X)


@pytest.mark.parametrize(
    ("bug", "path", "cause", "line"),
    [
        ("mean", "", "reduction", "whole = x.mean("),
        ("relu", "two", "extra activation", "return paddle.nn.functional.relu(y)"),
    ],
)
def test_the_op_that_is_wrong(bug: str, path: str, cause: str, line: str) -> None:
    assert compared("").aligned
    found = compared(bug).divergence
    assert found is not None and found.op is not None and found.op.raw_line is not None
    assert (found.raw_path, found.phase) == (path, "forward"), str(found)
    assert found.op.raw_line.text.startswith(line), str(found)
    assert found.causes[0].name == cause
