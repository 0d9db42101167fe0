"""A module's own code that hands a child more or fewer numbers than base's: the code is at fault, not the child."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff
from padiff.align import same_thing
from tests.twins import PAIRS

X = np.random.RandomState(0).randn(2, 5, 8).astype("float32")


class TorchBlock(torch.nn.Module):
    def __init__(self, bug: str = "") -> None:
        super().__init__()
        self.norm, self.gate = torch.nn.LayerNorm(8), torch.nn.Linear(8, 8)
        self.inner = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh())
        self.bug = bug

    def forward(self, x: Any) -> Any:
        pooled = x = self.norm(x)
        if self.bug != "squeeze":
            pooled = pooled.mean(1, keepdim=True)
        gate = torch.sigmoid(self.gate(pooled))
        inner = self.inner(x[:, 1:] if self.bug == "slice" else x)
        if self.bug == "slice":
            inner = torch.cat([inner[:, :1], inner], 1)
        return x + inner * gate


class PaddleBlock(paddle.nn.Layer):
    def __init__(self, bug: str = "") -> None:
        super().__init__()
        self.norm, self.gate = paddle.nn.LayerNorm(8), paddle.nn.Linear(8, 8)
        self.inner = paddle.nn.Sequential(paddle.nn.Linear(8, 8), paddle.nn.Tanh())
        self.bug = bug

    def forward(self, x: Any) -> Any:
        pooled = x = self.norm(x)
        if self.bug != "squeeze":
            pooled = pooled.mean(1, keepdim=True)
        gate = paddle.nn.functional.sigmoid(self.gate(pooled))
        inner = self.inner(x[:, 1:] if self.bug == "slice" else x)
        if self.bug == "slice":
            inner = paddle.concat([inner[:, :1], inner], 1)
        return x + inner * gate


class TorchNet(torch.nn.Module):
    def __init__(self, bug: str = "") -> None:
        super().__init__()
        self.first, self.second, self.head = TorchBlock(), TorchBlock(bug), torch.nn.Linear(8, 3)
        self.bug = bug

    def forward(self, x: Any) -> Any:
        x = self.second(self.first(x))
        return self.head(x if self.bug == "pool" else x.mean(1))


class PaddleNet(paddle.nn.Layer):
    def __init__(self, bug: str = "") -> None:
        super().__init__()
        self.first, self.second, self.head = PaddleBlock(), PaddleBlock(bug), paddle.nn.Linear(8, 3)
        self.bug = bug

    def forward(self, x: Any) -> Any:
        x = self.second(self.first(x))
        return self.head(x if self.bug == "pool" else x.mean(1))


NETS = {"torch": TorchNet, "paddle": PaddleNet}
FOUND = {
    "squeeze": ("second", "mean", "", "gate = "),
    "slice": ("second", "", "getitem", "inner = self.inner(x[:, 1:]"),
    "pool": ("", "mean", "", "return self.head("),
}
"""Bug to its place, base's op, raw's op, and how raw's line begins."""


@pytest.mark.parametrize(("base", "raw"), PAIRS)
@pytest.mark.parametrize("bug", list(FOUND))
def test_the_code_is_named_and_not_the_child(bug: str, base: str, raw: str) -> None:
    path, mine, theirs, line = FOUND[bug]
    result = padiff.compare(NETS[base](), NETS[raw](bug), X)
    found = result.divergence
    assert found is not None
    assert (found.raw_path, found.phase, len(result.divergences)) == (path, "forward", 1)
    assert found.op is not None and found.op.raw_line is not None
    assert [same_thing(name) if name else "" for name in (found.op.base, found.op.raw)] == [mine, theirs]
    assert found.op.raw_line.text.startswith(line)
