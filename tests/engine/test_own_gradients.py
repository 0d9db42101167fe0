"""Parameters that get no gradient are places of their own; what follows from another place is none."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff


class Block(torch.nn.Module):
    """Two branches beside each other, of which one may stop gradients at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.left, self.right = torch.nn.LayerNorm(8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        h = self.norm(x)
        return x + self.left(h).tanh() + self.right(h)


class Tied(torch.nn.Module):
    """A table that is the head's weight, too."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(11, 8)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(3))
        self.head = torch.nn.Linear(8, 11, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: Any) -> Any:
        x = self.table(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class PaddleBlock(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.left, self.right = paddle.nn.LayerNorm(8), paddle.nn.Linear(8, 8), paddle.nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        h = self.norm(x)
        return x + self.left(h).tanh() + self.right(h)


class PaddleTied(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.table = paddle.nn.Embedding(11, 8)
        self.blocks = paddle.nn.LayerList([PaddleBlock() for _ in range(3)])

    def forward(self, ids: Any) -> Any:
        x = self.table(ids)
        for block in self.blocks:
            x = block(x)
        return x @ self.table.weight.T


IDS = np.random.default_rng(0).integers(0, 11, (2, 5))


def stops(module: Any) -> None:
    """What the module returns is followed no further."""
    inner = module.forward
    module.forward = lambda x: inner(x).detach()


def off(module: Any) -> None:
    inner = module.forward
    module.forward = lambda x: inner(x) * 1.1


def doubles(module: Any) -> None:
    module.weight.register_hook(lambda gradient: gradient * 2)


def frozen(module: Any) -> None:
    module.weight.requires_grad_(False)


def places(raw: Any, base: Any | None = None) -> list[tuple[str, str]]:
    result = padiff.compare(Tied() if base is None else base, raw, IDS)
    return [(one.raw_path, one.phase) for one in result.divergences]


def test_a_frozen_weight_beside_something_else() -> None:
    raw = Tied()
    off(raw.blocks[0].right)
    frozen(raw.blocks[2].left)
    doubles(raw.blocks[1].left)
    right = [("blocks.0.right", "forward"), ("blocks.2.left", "gradient"), ("blocks.1.left", "gradient")]
    assert places(raw) == right  # gradients in the order of backward


@pytest.mark.parametrize("who", ["base", "raw"])
def test_a_frozen_weight_where_precisions_differ(who: str) -> None:
    """Rounding in a gradient that cancels is further apart than it is predicted to be, and is no place."""
    base, raw = Tied().double(), Tied()
    frozen((base if who == "base" else raw).blocks[1].right)
    assert places(raw, base) == [("blocks.1.right", "gradient")]


@pytest.mark.parametrize("plant", [off, stops])
def test_a_tied_weight_is_no_place_beside_what_uses_it(plant: Any) -> None:
    raw = Tied()
    plant(raw.head if plant is off else raw.blocks[1])
    phase = "forward" if plant is off else "backward"
    assert places(raw) == [("head" if plant is off else "blocks.1", phase)]


def test_a_tied_weight_is_one_place() -> None:
    raw = Tied()
    doubles(raw.head)
    assert places(raw) == [("head", "gradient")]


@pytest.mark.parametrize("branch", ["left", "right"])
def test_a_branch_that_stops_is_not_its_blocks_code(branch: str) -> None:
    raw = Tied()
    stops(getattr(raw.blocks[1], branch))
    assert places(raw) == [(f"blocks.1.{branch}", "backward")]


def test_in_paddle() -> None:
    raw = PaddleTied()
    raw.blocks[2].left.weight.stop_gradient = True
    raw.blocks[0].right.weight.register_hook(lambda gradient: gradient * 2)
    assert places(raw) == [("blocks.2.left", "gradient"), ("blocks.0.right", "gradient")]
