"""Modules of one model that return more than the other's: of whom that is told, and where it is nothing."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

import padiff


class Attention(torch.nn.Module):
    """With or without what it has attended by, as another kernel has it."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(8, 24), torch.nn.Linear(8, 8)
        self.returns = True

    def forward(self, x: Any) -> Any:
        query, key, value = self.qkv(x).chunk(3, -1)
        weights = torch.softmax(query @ key.transpose(-1, -2) / 8**0.5, -1)
        return self.out(weights @ value), weights if self.returns else None


class Block(torch.nn.Module):
    """Takes up the weights, or not; returns them, or not."""

    def __init__(self, use: str) -> None:
        super().__init__()
        self.norm, self.attn = torch.nn.LayerNorm(8), Attention()
        self.pool = torch.nn.Identity()
        self.use = use

    def forward(self, x: Any) -> Any:
        out, weights = self.attn(self.norm(x))
        if self.use == "given" and weights is not None:
            out = out + self.pool(weights).mean()
        return (x + out, weights) if self.use == "returned" else x + out


class Hybrid(torch.nn.Module):
    """One layer of many attends."""

    def __init__(self, use: str = "") -> None:
        super().__init__()
        self.first, self.block, self.last = torch.nn.Linear(8, 8), Block(use), torch.nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        found = self.block(self.first(x))
        return (self.last(found[0]), found[1]) if isinstance(found, tuple) else self.last(found)


def pair(side: str, use: str = "") -> tuple[Any, Any]:
    torch.manual_seed(0)
    base = Hybrid(use)
    raw = copy.deepcopy(base)
    (raw if side == "base" else base).block.attn.returns = False
    return base, raw


X = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")


@pytest.mark.parametrize("side", ["base", "raw"])
@pytest.mark.parametrize("tolerance", ["auto", (1e-5, 1e-5)])
def test_what_one_module_returns_besides_and_nobody_takes_is_nothing(side: str, tolerance: Any) -> None:
    result = padiff.compare(*pair(side), X, tolerance=tolerance)
    assert result.aligned, result.divergence
    assert [(one.side, one.path) for one in result.unmatched] == [(side, "block.attn")]


@pytest.mark.parametrize("side", ["base", "raw"])
def test_a_fault_beside_it_is_named_where_it_is(side: str) -> None:
    base, raw = pair(side)
    raw.last.register_forward_hook(lambda module, args, out: out * 1.01)
    found = padiff.compare(base, raw, X).divergence
    assert found is not None
    assert found.raw_path == "last"


@pytest.mark.parametrize("side", ["base", "raw"])
@pytest.mark.parametrize("use", ["given", "returned"])
def test_what_is_taken_up_is_told_of_who_returns_it(side: str, use: str) -> None:
    found = padiff.compare(*pair(side, use), X).divergence
    assert found is not None
    assert found.raw_path == "block.attn"
    assert f"exists in {side} only" in str(found.comparison.outcome.message)
