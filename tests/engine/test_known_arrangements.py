"""Pictures here, rows of places there: what is wrong comes in the arrangement in which everything else agrees, so that
nothing else goes wrong when base's is put in its place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff
from padiff.engine.free.trips import with_trips


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc, self.drop_path1 = torch.nn.LayerNorm(6), torch.nn.Linear(6, 6), torch.nn.Identity()
        self.norm2, self.fc2, self.drop_path2 = torch.nn.LayerNorm(6), torch.nn.Linear(6, 6), torch.nn.Identity()

    def forward(self, x: Any) -> Any:
        x = x + self.drop_path1(torch.tanh(self.fc(self.norm(x))))
        return x + self.drop_path2(torch.tanh(self.fc2(self.norm2(x))))


class Pictures(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = torch.nn.Sequential(*(Block() for _ in range(4))), torch.nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.blocks(x).mean((1, 2)))


class PortedBlock(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc, self.drop_path = paddle.nn.LayerNorm(6), paddle.nn.Linear(6, 6), paddle.nn.Identity()
        self.norm2, self.fc2, self.bug = paddle.nn.LayerNorm(6), paddle.nn.Linear(6, 6), False

    def forward(self, x: Any) -> Any:
        x = x + self.drop_path(paddle.tanh(self.fc(self.norm(x))))
        y = self.drop_path(paddle.tanh(self.fc2(self.norm2(x))))
        return y if self.bug else x + y


class Rows(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = paddle.nn.LayerList([PortedBlock() for _ in range(4)]), paddle.nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        x = x.flatten(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


@pytest.mark.parametrize("seed", [2, 3])
def test_a_missing_residual_is_all_that_is_listed(seed: int) -> None:
    torch.manual_seed(seed)
    base, raw = Pictures(), Rows()
    raw.blocks[2].bug = True
    x = np.random.default_rng(seed).standard_normal((2, 4, 4, 6)).astype("float32")
    found = padiff.compare(base, raw, x).divergences
    assert [(one.phase, one.raw_path) for one in found] == [("forward", "blocks.2")]


def test_what_other_blocks_call_as_often_is_no_trip() -> None:
    """Base has two modules for what raw calls twice, in all blocks; the second of the calls has a partner."""
    torch.manual_seed(0)
    base, raw = Pictures(), Rows()
    raw.blocks[2].bug = True
    result = padiff.compare(base, raw, np.random.default_rng(0).standard_normal((2, 4, 4, 6)).astype("float32"))
    step = result.steps[0]
    ours = {call.path: call for call in step.base.calls}
    theirs = {call.path: call for call in step.raw.calls}  # of several the last
    more = tuple((ours[f"blocks.{n}.drop_path2"], theirs[f"blocks.{n}.drop_path"]) for n in range(4))
    told = with_trips(result.divergences, replace(step, pairs=(*step.pairs, *more)))
    assert [one.note for one in told] == [one.note for one in result.divergences]
