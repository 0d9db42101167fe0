"""Places in models built differently that only a careful look names: not the module around, but the one itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import padiff
from tests.twins import TorchScaleGradient

Change = Callable[[Any], Any]


class Gated(torch.nn.Module):
    """Base's: the activation before its gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = torch.nn.Linear(8, 16), torch.nn.Linear(8, 16)
        self.down_proj, self.act_fn, self.drop = torch.nn.Linear(16, 8), torch.nn.SiLU(), torch.nn.Dropout(0.1)

    def forward(self, x: Any) -> Any:
        return x + self.down_proj(self.drop(self.act_fn(self.gate_proj(x)) * self.up_proj(x)))


class OwnSilu(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x * torch.sigmoid(x)


class GatedLater(torch.nn.Module):
    """Raw's: the activation after its gate, under other names."""

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w3 = torch.nn.Linear(8, 16), torch.nn.Linear(8, 16)
        self.w2, self.silu, self.dropped = torch.nn.Linear(16, 8), OwnSilu(), torch.nn.Dropout(0.1)
        self.last: Change = lambda x: x

    def forward(self, x: Any) -> Any:
        gate, up = self.w1(x), self.w3(x)
        return self.last(x + self.w2(self.dropped(self.silu(gate) * up)))


class Stack(torch.nn.Module):
    def __init__(self, block: Callable[[], torch.nn.Module]) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([block() for _ in range(4)])
        self.head = torch.nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def inputs() -> np.ndarray:
    return np.random.default_rng(3).standard_normal((2, 5, 8)).astype("float32")


def pair() -> tuple[Any, Any]:
    torch.manual_seed(0)
    base, raw = Stack(Gated).eval(), Stack(GatedLater).eval()
    clean = padiff.compare(base, raw, inputs())
    assert clean.aligned, str(clean.divergence)
    return base, raw


def gelu(raw: Any) -> None:
    raw.blocks[1].silu.forward = torch.nn.functional.gelu


def scaled(raw: Any) -> None:
    forward = raw.blocks[2].dropped.forward
    raw.blocks[2].dropped.forward = lambda x: TorchScaleGradient.apply(forward(x))


def cut(raw: Any) -> None:
    raw.blocks[2].silu.forward = lambda x: (x * torch.sigmoid(x)).detach()


def rolled(raw: Any) -> None:
    raw.blocks[3].last = lambda x: torch.roll(x, 1, 1)


CASES: dict[str, tuple[Callable[[Any], None], str, str]] = {
    "an activation that base calls earlier": (gelu, "blocks.1.silu", "forward"),
    "a gradient through an idle dropout": (scaled, "blocks.2.dropped", "backward"),
    "a gradient cut in an activation that base calls earlier": (cut, "blocks.2.silu", "backward"),
    "an order that a mean forgets": (rolled, "blocks.3", "forward"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_module_itself_is_named(case: str) -> None:
    plant, path, phase = CASES[case]
    base, raw = pair()
    plant(raw)
    found = padiff.compare(base, raw, inputs()).divergence
    assert found is not None
    assert (found.raw_path, found.phase) == (path, phase)
