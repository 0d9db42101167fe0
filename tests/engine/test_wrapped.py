"""A module that one side wraps is still one author's: what it is given is held against what base's is given."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import padiff


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        return self.linear(x.reshape(1, -1, 8)).reshape(-1, 8)


class Block(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.first, self.second, self.scale = nn.Linear(8, 8), Inner(), scale

    def forward(self, x: Any) -> Any:
        return x + self.second(self.first(x) * self.scale)


class Net(nn.Module):
    def __init__(self, scale: float = 0.5, *, wrapped: bool = False) -> None:
        super().__init__()
        blocks = [Block(0.5), Block(scale)]
        self.blocks = nn.ModuleList([nn.Sequential(block) if wrapped else block for block in blocks])
        self.head = nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.mark.parametrize("wrapped", [False, True])
def test_what_a_block_hands_to_its_child_is_the_blocks_doing(wrapped: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 8)
    assert padiff.compare(Net(), Net(wrapped=wrapped), (x,)).aligned
    found = padiff.compare(Net(), Net(1.0, wrapped=wrapped), (x,)).divergence
    assert found is not None
    assert found.raw_path == ("blocks.1.0" if wrapped else "blocks.1")
    assert found.base_path == "blocks.1"
