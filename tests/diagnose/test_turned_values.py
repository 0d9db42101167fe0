"""Values with their places last, where base has them first: what is wrong is named, not how they lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch
from torch import nn

import padiff

X = np.random.default_rng(0).normal(size=(2, 7, 6)).astype("float32")


class Fused(nn.Module):
    """Values are twice as wide as queries and keys, and each head has its own three beside each other."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.all, self.out = 5, nn.Linear(6, 80), nn.Linear(40, 6)
        self.bias = nn.Parameter(torch.randn(5, 7, 7))

    def forward(self, x: Any) -> Any:
        q, k, v = self.all(x).view(2, 7, 5, 16).permute(0, 2, 1, 3).split([4, 4, 8], -1)
        weights = (q @ k.transpose(-1, -2) * 0.5 + self.bias).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class Separate(paddle.nn.Layer):
    """Places come last throughout, as in a picture."""

    def __init__(self, bug: str = "") -> None:
        super().__init__()
        self.out, self.v = paddle.nn.Conv1D(40, 6, 1), paddle.nn.Conv1D(6, 40, 1)
        self.k, self.q = paddle.nn.Conv1D(6, 20, 1), paddle.nn.Conv1D(6, 20, 1)
        self.bias, self.bug = self.create_parameter([5, 7, 7]), bug

    def forward(self, x: Any) -> Any:
        x = x.transpose([0, 2, 1])
        q, k, v = (layer(x).reshape([2, 5, -1, 7]) for layer in (self.q, self.k, self.v))
        scores = q.transpose([0, 1, 3, 2]) @ k * (0.25 if self.bug == "scale" else 0.5)  # scale
        bias = self.bias * 0.5 if self.bug == "bias" else self.bias  # bias
        weights = paddle.nn.functional.softmax(scores + bias, -1)
        return self.out((v @ weights.transpose([0, 1, 3, 2])).flatten(1, 2)).transpose([0, 2, 1])


def test_unequal_parts_that_lie_head_by_head() -> None:
    torch.manual_seed(0)
    result = padiff.compare(Fused(), Separate(), X)
    assert result.aligned, str(result)


@pytest.mark.parametrize("bug", ["scale", "bias"])
def test_how_values_lie_is_not_named(bug: str) -> None:
    torch.manual_seed(0)
    place = padiff.compare(Fused(), Separate(bug), X).divergence
    assert place is not None and place.raw_path == ""
    assert place.op is not None and place.op.raw_line is not None
    assert place.op.raw_line.text.endswith(f"# {bug}"), str(place)
