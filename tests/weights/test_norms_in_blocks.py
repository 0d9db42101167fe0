"""At rest, names tell the norms of every block apart, not only those of the first."""

from __future__ import annotations

from typing import Any

from torch import nn

import padiff


def named(**children: Any) -> nn.Module:
    made = nn.Module()
    for name, child in children.items():
        made.add_module(name, child)
    return made


def theirs() -> nn.Module:
    output = named(dense=nn.Linear(8, 8), LayerNorm=nn.LayerNorm(8))
    return named(
        attention=named(query=nn.Linear(8, 8), output=output),
        intermediate=named(dense=nn.Linear(8, 12)),
        output=named(dense=nn.Linear(12, 8), LayerNorm=nn.LayerNorm(8)),
    )


def ours() -> nn.Module:
    return named(
        self_attn=named(q_proj=nn.Linear(8, 8), out_proj=nn.Linear(8, 8)),
        linear1=nn.Linear(8, 12),
        linear2=nn.Linear(12, 8),
        norm1=nn.LayerNorm(8),
        norm2=nn.LayerNorm(8),
    )


def test_every_block_is_told() -> None:
    base = named(layer=nn.ModuleList([theirs() for _ in range(3)]))
    raw = named(layers=nn.ModuleList([ours() for _ in range(3)]))
    found = {entry.path: entry.sources[0].path for entry in padiff.plan_weights(base, raw).entries}
    for block in range(3):
        assert found[f"layers.{block}.norm1.weight"] == f"layer.{block}.attention.output.LayerNorm.weight"
        assert found[f"layers.{block}.norm2.weight"] == f"layer.{block}.output.LayerNorm.weight"
