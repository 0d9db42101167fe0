"""What a layer returns may be written afterwards, and be a view of something: its gradient is told nevertheless."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff

X = np.random.default_rng(0).normal(size=(3, 5, 6)).astype("float32")


class Writing(torch.nn.Module):
    """A linear layer returns a view of what it computed, where it is given three axes."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.first, self.last, self.how = torch.nn.Linear(6, 6), torch.nn.Linear(6, 4), how

    def forward(self, x: Any) -> Any:
        y = self.first(x)
        if self.how == "sum":
            late = torch.sin(x + y.sum())
            y += x
            y = y + late
        elif self.how == "part":
            y[:, :2] *= 2.0
        else:
            heads = y.view(3, 5, 2, 3).transpose(1, 2)
            heads /= 4.0
        return self.last(torch.tanh(y))


class Making(paddle.nn.Layer):
    def __init__(self, how: str, bug: bool = False) -> None:
        super().__init__()
        self.first, self.last = paddle.nn.Linear(6, 6), paddle.nn.Linear(6, 4)
        self.how, self.bug = how, bug

    def forward(self, x: Any) -> Any:
        y = self.first(x)
        if self.bug:
            y = y + (y - y.detach())
        if self.how == "sum":
            y = y + x + paddle.sin(x + y.sum())
        elif self.how == "part":
            y = paddle.concat([y[:, :2] * 2.0, y[:, 2:]], 1)
        else:
            y = y / 4.0
        return self.last(paddle.tanh(y))


@pytest.mark.parametrize("how", ["sum", "part", "heads"])
def test_a_view_that_is_written_has_its_gradient(how: str) -> None:
    torch.manual_seed(0)
    for base, raw in ((Writing(how), Making(how)), (Making(how), Writing(how))):
        result = padiff.compare(base, raw, X)
        assert result.aligned, str(result.divergence)
        assert any(one.phase == "backward" and one.raw_path == "first" for one in result.comparisons)


def test_a_gradient_that_is_wrong_behind_the_write_is_named() -> None:
    torch.manual_seed(0)
    for how in ("sum", "part", "heads"):
        found = padiff.compare(Writing(how), Making(how, bug=True), X).divergence
        assert found is not None and (found.raw_path, found.phase) == ("", "backward"), str(found)
