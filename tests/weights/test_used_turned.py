"""Linear layers whose weight is kept, and used, the other way round than their framework does: heads beside a table."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch
from torch import nn

import padiff

WORDS, WIDTH = 23, 8
IDS = np.random.default_rng(0).integers(0, WORDS, size=(2, 5))


class Model(nn.Module):
    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(WORDS, WIDTH), nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.lm_head.weight = self.embed.weight

    def forward(self, ids: Any) -> Any:
        return self.lm_head(self.norm(self.embed(ids)))


class Head(paddle.nn.Linear):
    factor = 1.0

    def forward(self, x: Any) -> Any:
        return paddle.matmul(x, self.weight, transpose_y=True) * self.factor


class Port(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = paddle.nn.Embedding(WORDS, WIDTH), paddle.nn.LayerNorm(WIDTH)
        self.lm_head = Head(WORDS, WIDTH, bias_attr=False)

    def forward(self, ids: Any) -> Any:
        return self.lm_head(self.norm(self.table(ids)))


@pytest.mark.parametrize("tied", [True, False])
def test_a_head_that_keeps_its_weight_like_a_table(tied: bool) -> None:
    base, raw = Model(tied), Port()
    assert padiff.compare(base, raw, IDS).aligned
    assert np.array_equal(raw.lm_head.weight.numpy(), base.lm_head.weight.detach().numpy())
    raw.lm_head.factor = 1.1
    found = padiff.compare(base, raw, IDS).divergence
    assert found is not None
    assert (found.phase, found.raw_path) == ("forward", "lm_head"), str(found)


def test_a_matrix_that_fits_as_its_layer_stores_it_is_turned() -> None:
    base = nn.Linear(WIDTH, WORDS, bias=False)
    raw = paddle.nn.Linear(WIDTH, WORDS, bias_attr=False)
    assert padiff.compare(base, raw, torch.randn(3, WIDTH).numpy()).aligned
    assert np.array_equal(raw.weight.numpy(), base.weight.detach().numpy().T)
