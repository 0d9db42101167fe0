"""One author adds the residual inside of attention, the other around it: what is lost after it is not told of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import padiff


class Attention(torch.nn.Module):
    def __init__(self, *, adds: bool) -> None:
        super().__init__()
        self.adds = adds
        if adds:
            self.qkv, self.out = torch.nn.Linear(8, 24), torch.nn.Linear(8, 8)
        else:
            self.q, self.k, self.v, self.out = (torch.nn.Linear(8, 8) for _ in "qkvo")

    def forward(self, x: Any, residual: Any = None) -> Any:
        query, key, value = self.qkv(x).chunk(3, -1) if self.adds else (self.q(x), self.k(x), self.v(x))
        made = self.out(torch.softmax(query @ key.transpose(-1, -2), -1) @ value)
        return residual + made if self.adds else made


class Block(torch.nn.Module):
    def __init__(self, *, adds: bool) -> None:
        super().__init__()
        self.n1, self.n2 = torch.nn.LayerNorm(8), torch.nn.LayerNorm(8)
        self.att, self.fc = Attention(adds=adds), torch.nn.Linear(8, 8)
        self.adds, self.lost = adds, False

    def forward(self, x: Any) -> Any:
        x = self.att(self.n1(x), x) if self.adds else x + self.att(self.n1(x))
        made = self.fc(self.n2(x))
        return x + (made.detach() if self.lost else made)


def test_a_gradient_lost_behind_attention() -> None:
    torch.manual_seed(0)
    base = torch.nn.Sequential(*(Block(adds=True) for _ in range(3)))
    raw = torch.nn.Sequential(*(Block(adds=False) for _ in range(3)))
    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    assert padiff.compare(base, raw, x).aligned
    raw[1].lost = True
    found = padiff.compare(base, raw, x).divergence
    assert found is not None
    assert (found.raw_path, found.phase) == ("1", "backward")
    assert found.causes[0].name == "no gradient"
