"""Ports whose modules are cut otherwise than base's: what is wrong is told of whose code it is, not of a module without
partner beside it, nor of one around it that hands on."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff

WIDTH = 6
ROWS = np.random.default_rng(0).normal(size=(3, 5, WIDTH)).astype("float32")


class Mlp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.mix, self.act = torch.nn.Linear(WIDTH, 8), torch.nn.Linear(8, 8), torch.nn.GELU()
        self.fc2, self.drop = torch.nn.Linear(8, WIDTH), torch.nn.Dropout(0.0)

    def forward(self, x: Any) -> Any:
        x = self.act(self.mix(self.fc1(x)))
        return self.drop(self.fc2(x))


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp = torch.nn.LayerNorm(WIDTH), Mlp()

    def forward(self, x: Any) -> Any:
        return x + self.mlp(self.norm(x))


class Base(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stages = torch.nn.ModuleList(torch.nn.Sequential(Block()) for _ in range(3))
        self.head = torch.nn.Linear(WIDTH, 3)

    def forward(self, x: Any) -> Any:
        for stage in self.stages:
            x = stage(x)
        return self.head(x)


class Turned(paddle.nn.Layer):
    """A layer with its own way of holding places."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = paddle.nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        return self.inner(x.transpose([1, 0, 2])).transpose([1, 0, 2])


class Inner(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.mix, self.act = paddle.nn.Linear(WIDTH, 8), Turned(), paddle.nn.GELU()
        self.fc2, self.drop, self.bug = paddle.nn.Linear(8, WIDTH), paddle.nn.Dropout(0.0), ""

    def forward(self, x: Any) -> Any:
        if self.bug == "early":
            return self.drop(self.fc2(self.mix(self.act(self.fc1(x)))))
        if self.bug == "first":
            return self.drop(self.fc2(self.mix(self.fc1(self.act(x)))))
        return self.drop(self.fc2(self.act(self.mix(self.fc1(x)))))


class Wrapped(paddle.nn.Layer):
    """Around the layers of a block, where base has nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp = paddle.nn.LayerNorm(WIDTH), Inner()

    def forward(self, x: Any) -> Any:
        return self.mlp(self.norm(x))


class Port(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.inside, self.bug = Wrapped(), ""

    def forward(self, x: Any) -> Any:
        found = self.inside(x)
        if self.bug == "no residual":
            return found
        return x + (found.detach() if self.bug == "detached" else found)


class Raw(paddle.nn.Layer):
    def __init__(self, bug: str = "", at: int = 1, order: tuple[int, ...] = (0, 1, 2)) -> None:
        super().__init__()
        self.levels = paddle.nn.LayerList([paddle.nn.Sequential(Port()) for _ in range(3)])
        self.out, self.order = paddle.nn.Linear(WIDTH, 3), order
        self.levels[at][0].bug = self.levels[at][0].inside.mlp.bug = bug

    def forward(self, x: Any) -> Any:
        for place in self.order:
            x = self.levels[place](x)
        return self.out(x)


def test_nothing_is_wrong() -> None:
    torch.manual_seed(0)
    result = padiff.compare(Base(), Raw(), ROWS)
    assert result.aligned, str(result)


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize(
    ("bug", "phase", "inside"),
    [
        ("early", "forward", ".inside.mlp"),
        ("first", "forward", ".inside.mlp"),
        ("no residual", "forward", ""),
        ("detached", "backward", ""),
    ],
)
def test_whose_code_it_is(bug: str, phase: str, inside: str, at: int) -> None:
    torch.manual_seed(0)
    found = padiff.compare(Base(), Raw(bug, at), ROWS).divergence
    assert found is not None
    assert (found.phase, found.raw_path) == (phase, f"levels.{at}.0{inside}"), str(found)


@pytest.mark.parametrize("order", [(0, 1), (1, 2), (0, 2)])
def test_a_block_that_is_left_out(order: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    result = padiff.compare(Base(), Raw(order=order), ROWS)
    assert result.divergence is not None and result.plan is not None
    assert (result.divergence.phase, result.divergence.raw_path) == ("forward", ""), str(result.divergence)
    for entry in result.plan.entries:
        if entry.path.startswith("levels"):
            assert {one.path.split(".")[1] for one in entry.sources} == {entry.path.split(".")[1]}, str(entry)
