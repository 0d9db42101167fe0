"""Experts with biases: layers in a list here, a stack of weights with a stack of biases beside it there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import padiff

WIDTH, INNER, EXPERTS = 16, 20, 3


class Stacked(nn.Module):
    def __init__(self, gated: bool) -> None:
        super().__init__()
        self.gated = gated
        self.router = nn.Linear(WIDTH, EXPERTS)
        inner = 2 * INNER if gated else INNER
        self.gate_up_proj = nn.Parameter(0.2 * torch.randn(EXPERTS, WIDTH, inner))
        self.gate_up_proj_bias = nn.Parameter(0.2 * torch.randn(EXPERTS, inner))
        self.down_proj = nn.Parameter(0.2 * torch.randn(EXPERTS, INNER, WIDTH))
        self.down_proj_bias = nn.Parameter(0.2 * torch.randn(EXPERTS, WIDTH))

    def forward(self, x: Any) -> Any:
        share = self.router(x).softmax(-1)
        hidden = torch.einsum("btd,edf->btef", x, self.gate_up_proj) + self.gate_up_proj_bias
        if self.gated:
            gate, up = hidden.chunk(2, -1)
            hidden = nn.functional.silu(gate) * up
        else:
            hidden = nn.functional.gelu(hidden)
        made = torch.einsum("btef,efd->bted", hidden, self.down_proj) + self.down_proj_bias
        return (made * share.unsqueeze(-1)).sum(2)


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(WIDTH, INNER), nn.Linear(WIDTH, INNER)
        self.down_proj = nn.Linear(INNER, WIDTH)

    def forward(self, x: Any) -> Any:
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Listed(nn.Module):
    def __init__(self, gated: bool, off: float = 1.0) -> None:
        super().__init__()
        self.off = off
        self.router = nn.Linear(WIDTH, EXPERTS)
        plain = (nn.Sequential(nn.Linear(WIDTH, INNER), nn.GELU(), nn.Linear(INNER, WIDTH)) for _ in range(EXPERTS))
        self.experts = nn.ModuleList((Gated() for _ in range(EXPERTS)) if gated else plain)

    def forward(self, x: Any) -> Any:
        share = self.off * self.router(x).softmax(-1)
        return sum(expert(x) * share[..., i : i + 1] for i, expert in enumerate(self.experts))


def twice(kind: Any, *args: Any, last: Any = None) -> nn.Module:
    return nn.Sequential(kind(*args), nn.LayerNorm(WIDTH), last or kind(*args))


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("kinds", [(Listed, Stacked), (Stacked, Listed)], ids=["list-stack", "stack-list"])
def test_stacks_of_biases_and_biases_of_layers_fill_each_other(kinds: tuple[Any, Any], gated: bool) -> None:
    torch.manual_seed(0)
    base, raw = (twice(kind, gated) for kind in kinds)
    result = padiff.compare(base, raw, torch.randn(2, 5, WIDTH))
    assert result.aligned, str(result)
    assert result.coverage["parameters"] == 1.0


def test_a_fault_among_them_is_named() -> None:
    torch.manual_seed(0)
    base, raw = twice(Stacked, True), twice(Listed, True, last=Listed(True, off=1.1))
    found = padiff.compare(base, raw, torch.randn(2, 5, WIDTH)).divergence
    assert found is not None
    assert (found.raw_path, found.phase) == ("2", "forward")
