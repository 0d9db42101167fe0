"""A mask of ones and zeros where base's is added to scores: nothing was made of it, or it is made where it is used."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import padiff

KEEP = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
X = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, hidden: Any, mask: Any) -> Any:
        scores = self.query(hidden) @ self.key(hidden).transpose(-1, -2) * 8**-0.5
        return self.out(torch.softmax(scores + mask, -1) @ self.value(hidden))


class Model(nn.Module):
    """Base adds its mask, which has a row for each query."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.norm = nn.ModuleList(Attention() for _ in range(3)), nn.LayerNorm(8)

    def forward(self, x: Any) -> Any:
        mask = ((1.0 - KEEP[:, None].float()) * -3e38).expand(2, 5, 5)
        for layer in self.layers:
            x = x + layer(x, mask)
        return self.norm(x)


class Attend(nn.Module):
    """Adds the mask as it is, or makes of it what is added."""

    def __init__(self, within: bool, scale: float) -> None:
        super().__init__()
        self.q, self.k, self.v, self.proj = (nn.Linear(8, 8) for _ in range(4))
        self.drop = nn.Dropout(0.0)
        self.within, self.scale = within, scale

    def forward(self, x: Any, keep: Any) -> Any:
        q, k, v = self.q(x), self.k(x), self.v(x)
        scores = torch.einsum("bqd,bkd->bqk", q, k) * self.scale
        weights = torch.softmax(scores + ((1.0 - keep) * -1e9 if self.within else keep), -1)
        return self.proj(torch.einsum("bqk,bkd->bqd", self.drop(weights), v))


class Port(nn.Module):
    def __init__(self, bug: str, within: bool = False, scale: float = 8**-0.5, wrong: int = -1) -> None:
        super().__init__()
        scales = [scale if wrong in (-1, place) else 8**-0.5 for place in range(3)]
        self.blocks, self.ln = nn.ModuleList(Attend(within, one) for one in scales), nn.LayerNorm(8)
        self.bug = bug

    def forward(self, x: Any) -> Any:
        keep = KEEP[:, None].float()
        if self.bug == "factor":
            keep = 1.0 - keep
        elif self.bug != "as it is":
            keep = (1.0 - keep) * -1e9
        for block in self.blocks:
            x = x + block(x, keep)
        return self.ln(x)


@pytest.mark.parametrize("bug", ["as it is", "factor"])
def test_a_mask_that_is_added_as_it_is_is_its_makers_fault(bug: str) -> None:
    torch.manual_seed(0)
    assert padiff.compare(Model(), Port(""), X).aligned
    found = padiff.compare(Model(), Port(bug), X).divergence
    assert found is not None and (found.raw_path, found.phase) == ("", "forward"), str(found)
    assert found.causes[0].name == "mask" and "ones and zeros" in found.causes[0].evidence


def test_a_mask_that_is_turned_where_it_is_used_excuses_nobody() -> None:
    torch.manual_seed(0)
    assert padiff.compare(Model(), Port("as it is", within=True), X).aligned
    for wrong, place in ((-1, "blocks.0"), (1, "blocks.1")):
        found = padiff.compare(Model(), Port("as it is", within=True, scale=0.7, wrong=wrong), X).divergence
        assert found is not None and (found.raw_path, found.phase) == (place, "forward"), str(found)
