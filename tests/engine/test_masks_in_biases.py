"""Attention that adds its mask to a table of positions and hands both on: base repeats the mask, and leaves out with
another number. Nothing is wrong with that; a wrong table is, and a wrong scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import padiff

X = np.random.default_rng(0).normal(size=(2, 6, 8)).astype("float32")


class Attention(nn.Module):
    def __init__(self, *, table: bool) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))
        self.table = nn.Embedding(11, 2) if table else None
        self.scale, self.share = 0.5, 1.0

    def forward(self, x: Any, mask: Any, bias: Any = None) -> Any:
        q, k, v = (one(x).view(2, 6, 2, 4).transpose(1, 2) for one in (self.q, self.k, self.v))
        if bias is None and self.table is not None:
            places = torch.arange(6)
            bias = self.table(places[:, None] - places + 5).permute(2, 0, 1)[None] * self.share + mask
        found = (q @ k.mT * self.scale + bias).softmax(-1) @ v
        return self.o(found.transpose(1, 2).reshape(2, 6, 8)), bias


class Net(nn.Module):
    def __init__(self, least: float, *, repeated: bool) -> None:
        super().__init__()
        self.first, self.least, self.repeated = nn.Linear(8, 8), least, repeated
        self.blocks = nn.ModuleList([Attention(table=place == 0) for place in range(2)])

    def forward(self, x: Any) -> Any:
        mask = torch.zeros(2, 1, 1, 6)
        mask[0, ..., -2:] = self.least
        mask = mask.repeat(1, 1, 6, 1) if self.repeated else mask
        x, bias = self.first(x), None
        for block in self.blocks:
            added, bias = block(x, mask, bias)
            x = x + added
        return x


@pytest.mark.parametrize(
    ("bug", "place"),
    [("", None), ("share", "blocks.0"), ("scale", "blocks.1")],
)
@pytest.mark.parametrize("repeated", [True, False])
def test_masks_added_to_what_is_handed_on(bug: str, place: str | None, repeated: bool) -> None:
    torch.manual_seed(0)
    base = Net(float(torch.finfo(torch.float32).min), repeated=repeated)
    raw = Net(-1e4, repeated=False)
    if place is not None:
        setattr(raw.get_submodule(place), bug, 0.75)
    result = padiff.compare(base, raw, X)
    assert (result.divergence.raw_path if result.divergence else None) == place
    assert result.aligned == (place is None)
