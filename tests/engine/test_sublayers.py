"""Blocks whose parts one author writes with their norms and sums, and the other without: who calls them in the wrong
order, leaves out what comes last or gives them too little is named."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import padiff

ROWS = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(1))
MEMORY = torch.randn(3, 7, 8, generator=torch.Generator().manual_seed(2))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, hidden: Any, memory: Any = None) -> Any:
        memory = hidden if memory is None else memory
        weights = torch.softmax(self.query(hidden) @ self.key(memory).mT, -1)
        return weights @ self.value(memory)


class Local(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer_norm, self.wide, self.back = nn.LayerNorm(8), nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, hidden: Any) -> Any:
        return self.back(torch.tanh(self.wide(self.layer_norm(hidden))))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.feed, self.feed_norm = nn.Linear(8, 8), nn.LayerNorm(8)
        self.attention_norm, self.attention = nn.LayerNorm(8), Attention()
        self.local, self.final_norm = Local(), nn.LayerNorm(8)

    def forward(self, hidden: Any, memory: Any) -> Any:
        hidden = hidden + 0.5 * torch.relu(self.feed(self.feed_norm(hidden)))
        hidden = hidden + self.attention(self.attention_norm(hidden), memory)
        hidden = hidden + self.local(hidden)
        return self.final_norm(hidden)


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.norm = nn.LayerNorm(8)

    def forward(self, rows: Any, memory: Any) -> Any:
        for layer in self.layers:
            rows = layer(rows, memory)
        return self.norm(rows)


class Half(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.lin = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        return x + 0.5 * torch.relu(self.lin(self.norm(x)))


class Att(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.q, self.kv = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 16)

    def forward(self, x: Any, memory: Any = None) -> Any:
        y = self.norm(x)
        k, v = self.kv(y if memory is None else memory).chunk(2, -1)
        return x + torch.softmax(torch.einsum("bqd,bkd->bqk", self.q(y), k), -1) @ v


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.a, self.b = nn.LayerNorm(8), nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x: Any) -> Any:
        return x + self.b(torch.tanh(self.a(self.norm(x))))


class Block(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.feed, self.att, self.conv, self.norm, self.bug = Half(), Att(), Conv(), nn.LayerNorm(8), bug

    def forward(self, x: Any, memory: Any) -> Any:
        x = self.feed(x)
        if self.bug == "order":
            return self.norm(self.att(self.conv(x), memory))
        x = self.conv(self.att(x) if self.bug == "memory" else self.att(x, memory))
        return x if self.bug == "norm" else self.norm(x)


class Raw(nn.Module):
    def __init__(self, bug: str = "") -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(bug), Block(bug)])
        self.norm = nn.LayerNorm(8)

    def forward(self, rows: Any, memory: Any) -> Any:
        for block in self.blocks:
            rows = block(rows, memory)
        return self.norm(rows)


def pair(bug: str = "") -> tuple[Base, Raw]:
    torch.manual_seed(0)
    base = Base()
    for name, weight in base.named_parameters():
        if "norm" in name:
            nn.init.normal_(weight, 1.0, 0.3)
    return base, Raw(bug)


def test_the_parts_belong_together() -> None:
    assert padiff.compare(*pair(), (ROWS, MEMORY)).aligned


@pytest.mark.parametrize("bug", ["order", "norm", "memory"])
def test_who_calls_them_is_named(bug: str) -> None:
    result = padiff.compare(*pair(bug), (ROWS, MEMORY))
    found = result.divergence
    assert found is not None
    assert (found.phase, found.raw_path, found.base_path) == ("forward", "blocks.0", "layers.0"), str(found)
    assert "blocks.1" in {one.raw_path for one in result.divergences}


@pytest.mark.parametrize("bug", ["order", "norm"])
def test_norms_keep_to_their_modules(bug: str) -> None:
    """Whoever uses them in another order, or never."""
    plan = padiff.plan_weights(*pair(bug), (ROWS, MEMORY))
    found = {entry.path: entry.sources[0].path for entry in plan.entries}
    for block in range(2):
        for raw, base in (("conv.norm", "local.layer_norm"), ("att.norm", "attention_norm"), ("norm", "final_norm")):
            assert found[f"blocks.{block}.{raw}.weight"] == f"layers.{block}.{base}.weight"
    assert found["norm.weight"] == "norm.weight"
