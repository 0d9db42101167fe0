"""Experts in stacks of matrices that the other author keeps with inputs and outputs in each other's place."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff

EXPERTS, WIDE, INNER = 4, 8, 12


class Experts(torch.nn.Module):
    """Outputs before inputs; gate and up in one."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj = torch.nn.Parameter(torch.randn(EXPERTS, 2 * INNER, WIDE) * 0.3)
        self.down_proj = torch.nn.Parameter(torch.randn(EXPERTS, WIDE, INNER) * 0.3)

    def forward(self, x: Any, weights: Any) -> Any:
        gate, up = torch.einsum("bld,ehd->belh", x, self.gate_up_proj).chunk(2, -1)
        made = torch.einsum("belh,edh->beld", torch.nn.functional.silu(gate) * up, self.down_proj)
        return torch.einsum("beld,ble->bld", made, weights)


class Mixture(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.router, self.experts = torch.nn.Linear(5, WIDE), torch.nn.Linear(WIDE, EXPERTS), Experts()

    def forward(self, x: Any) -> Any:
        x = self.embed(x)
        return x + self.experts(x, self.router(x).softmax(-1))


class Dense(paddle.nn.Layer):
    def __init__(self, *, fused: bool, turned: bool, wrong: bool) -> None:
        super().__init__()
        self.fused, self.turned, self.wrong = fused, turned, wrong
        rows = 2 * INNER if fused else INNER
        self.w1 = self.create_parameter(self.laid(WIDE, rows))
        if not fused:
            self.w3 = self.create_parameter(self.laid(WIDE, rows))
        self.w2 = self.create_parameter(self.laid(INNER, WIDE))

    def laid(self, given: int, made: int) -> list[int]:
        return [EXPERTS, given, made] if self.turned else [EXPERTS, made, given]

    def by(self, x: Any, weight: Any) -> Any:
        return paddle.einsum("beld,edm->belm" if self.turned else "beld,emd->belm", x, weight)

    def forward(self, x: Any, weights: Any) -> Any:
        x = x.unsqueeze(1).tile([1, EXPERTS, 1, 1])
        gate, up = self.by(x, self.w1).chunk(2, -1) if self.fused else (self.by(x, self.w1), self.by(x, self.w3))
        gate, up = (up, gate) if self.wrong else (gate, up)
        made = self.by(paddle.nn.functional.silu(gate) * up, self.w2)
        return (made * weights.transpose([0, 2, 1]).unsqueeze(-1)).sum(1)


class Port(paddle.nn.Layer):
    def __init__(self, **how: bool) -> None:
        super().__init__()
        self.fc, self.route = paddle.nn.Linear(5, WIDE), paddle.nn.Linear(WIDE, EXPERTS)
        self.moe = Dense(**how)

    def forward(self, x: Any) -> Any:
        x = self.fc(x)
        return x + self.moe(x, paddle.nn.functional.softmax(self.route(x), -1))


@pytest.mark.parametrize(("fused", "turned"), list(itertools.product([True, False], repeat=2)))
def test_stacks_of_matrices_either_way_round(fused: bool, turned: bool) -> None:
    torch.manual_seed(0)
    base, x = Mixture(), np.random.default_rng(0).normal(size=(2, 3, 5)).astype("float32")
    raw = Port(fused=fused, turned=turned, wrong=False)
    result = padiff.compare(base, raw, x)
    assert result.aligned, str(result)
    down = base.experts.down_proj.detach().numpy()
    assert np.array_equal(raw.moe.w2.numpy(), down.transpose(0, 2, 1) if turned else down)
    found = padiff.compare(base, Port(fused=fused, turned=turned, wrong=True), x).divergence
    assert found is not None
    assert found.raw_path == "moe"
