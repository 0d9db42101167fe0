"""A block that raw never calls: the other keeps its own, also where layers of attention add up to one of its layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import padiff

ROWS = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.q_proj, self.k_proj = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
        self.v_proj, self.out_proj, self.final_norm = nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8)
        self.fc1, self.fc2 = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Any) -> Any:
        y = self.norm(x)
        x = x + self.out_proj(torch.softmax(self.q_proj(y) @ self.k_proj(y).mT, -1) @ self.v_proj(y))
        return x + self.fc2(torch.relu(self.fc1(self.final_norm(x))))


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.norm = nn.ModuleList([Layer(), Layer()]), nn.LayerNorm(8)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.o, self.q, self.v = (nn.Linear(8, 8) for _ in range(3))
        self.k = nn.Linear(8, 8, bias=False)
        self.ln_a, self.ln_b = nn.LayerNorm(8), nn.LayerNorm(8)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))

    def forward(self, x: Any) -> Any:
        y = self.ln_a(x)
        x = x + self.o(torch.softmax(torch.einsum("bqd,bkd->bqk", self.q(y), self.k(y)), -1) @ self.v(y))
        return x + self.mlp(self.ln_b(x))


class Raw(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.units, self.ln, self.count = nn.ModuleList([Block(), Block()]), nn.LayerNorm(8), count

    def forward(self, x: Any) -> Any:
        for unit in self.units[: self.count]:
            x = unit(x)
        return self.ln(x)


def test_the_last_block_is_left_out() -> None:
    torch.manual_seed(0)
    base = Base()
    assert padiff.compare(base, Raw(2), ROWS).aligned
    result = padiff.compare(base, Raw(1), ROWS)
    sources = {entry.path: [source.path for source in entry.sources] for entry in result.plan.entries}
    assert sources["units.0.mlp.0.weight"] == ["layers.0.fc1.weight"]
    assert result.divergence is not None
    assert (result.divergence.phase, result.divergence.raw_path) == ("forward", ""), str(result.divergence)
