"""A mask that the model is given and does not hand on is the model's own doing; one that says the same in another
shape, or something that base's code hands through and never uses, is no reason for what goes wrong inside."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff

ROWS, HEADS, LONG, WIDE = 2, 2, 6, 8
X = np.random.default_rng(0).normal(size=(ROWS, LONG, WIDE)).astype("float32")
MASK = np.ones((ROWS, LONG), dtype="int64")
MASK[0, -2:] = 0


class Attend(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (torch.nn.Linear(WIDE, WIDE) for _ in range(4))
        self.scale = 0.5

    def forward(self, x: Any, mask: Any, places: Any = None) -> Any:
        shape = (ROWS, LONG, HEADS, WIDE // HEADS)
        q, k, v = (one(x).view(shape).transpose(1, 2) for one in (self.q, self.k, self.v))
        scores = q @ k.transpose(-2, -1) * self.scale + mask
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(ROWS, LONG, WIDE))


class Trunk(torch.nn.Module):
    def __init__(self, count: int, *, through: bool = False) -> None:
        super().__init__()
        self.first, self.through = torch.nn.Linear(WIDE, WIDE), through
        self.blocks = torch.nn.ModuleList([Attend() for _ in range(count)])

    def forward(self, x: Any, mask: Any = None, places: Any = None) -> Any:
        seen = mask[:, None, None, :].expand(ROWS, 1, LONG, LONG)
        added = torch.zeros(ROWS, 1, LONG, LONG).masked_fill(seen == 0, torch.finfo(torch.float32).min)
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x, added, places=places if self.through else None)
        return x


class Base(torch.nn.Module):
    def __init__(self, count: int, *, through: bool = False) -> None:
        super().__init__()
        self.trunk, self.head = Trunk(count, through=through), torch.nn.Linear(WIDE, 3)
        self.through = through

    def forward(self, x: Any, mask: Any) -> Any:
        places = torch.arange(LONG) if self.through else None
        return self.head(self.trunk(x, mask=mask, places=places))


class Attention(paddle.nn.Layer):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (paddle.nn.Linear(WIDE, WIDE) for _ in range(4))
        self.form, self.bug = form, ""

    def forward(self, x: Any, mask: Any = None) -> Any:
        shape = [ROWS, LONG, HEADS, WIDE // HEADS]
        q, k, v = (one(x).reshape(shape).transpose([0, 2, 1, 3]) for one in (self.q, self.k, self.v))
        scores = paddle.matmul(q, k, transpose_y=True) * (0.75 if self.bug == "scale" else 0.5)
        if self.form == "folded":
            scores = (scores.reshape([ROWS * HEADS, LONG, LONG]) + mask).reshape([ROWS, HEADS, LONG, LONG])
        else:
            scores = scores + mask
        shares = paddle.nn.functional.softmax(scores)
        shares = shares * 1.25 if self.bug == "shares" else shares
        return self.o(paddle.matmul(shares, v).transpose([0, 2, 1, 3]).reshape([ROWS, LONG, WIDE]))


class Stack(paddle.nn.Layer):
    def __init__(self, count: int, form: str) -> None:
        super().__init__()
        self.first, self.form = paddle.nn.Linear(WIDE, WIDE), form
        self.blocks = paddle.nn.LayerList([Attention(form) for _ in range(count)])

    def forward(self, x: Any, mask: Any = None) -> Any:
        mask = paddle.ones([ROWS, LONG]) if mask is None else mask.astype("float32")
        if self.form == "folded":
            mask = mask.unsqueeze([1, 2]).expand([ROWS, HEADS, LONG, LONG]).reshape([ROWS * HEADS, LONG, LONG])
        else:
            mask = mask.unsqueeze([1, 2])
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x, (1.0 - mask) * -1e4)
        return x


class Raw(paddle.nn.Layer):
    def __init__(self, count: int, form: str = "") -> None:
        super().__init__()
        self.trunk, self.head, self.bug = Stack(count, form), paddle.nn.Linear(WIDE, 3), ""

    def forward(self, x: Any, mask: Any) -> Any:
        return self.head(self.trunk(x) if self.bug == "kept back" else self.trunk(x, mask))


def compared(base: Any, raw: Any) -> Any:
    return padiff.compare(base, raw, {"x": X, "mask": MASK})


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
    paddle.seed(0)


@pytest.mark.parametrize("form", ["", "folded"])
@pytest.mark.parametrize("through", [False, True])
def test_masks_in_other_shapes_agree(form: str, through: bool) -> None:
    result = compared(Base(2, through=through), Raw(2, form))
    assert result.aligned, str(result.divergence)


@pytest.mark.parametrize("form", ["", "folded"])
def test_a_mask_that_is_not_handed_on(form: str) -> None:
    raw = Raw(2, form)
    raw.bug = "kept back"
    found = compared(Base(2), raw).divergence
    assert (found.raw_path, found.phase) == ("", "forward")
    assert found.causes[0].name.startswith("mask")


@pytest.mark.parametrize("form", ["", "folded"])
@pytest.mark.parametrize("bug", ["scale", "shares"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_mask_in_another_shape_is_no_excuse(form: str, bug: str, count: int) -> None:
    raw = Raw(count, form)
    raw.trunk.blocks[0].bug = bug
    found = compared(Base(count), raw).divergence
    assert (found.raw_path, found.phase) == ("trunk.blocks.0", "forward")


@pytest.mark.parametrize("place", [0, 1])
def test_what_base_hands_through_and_never_uses_is_no_excuse(place: int) -> None:
    raw = Base(2)
    raw.trunk.blocks[place].scale = 0.75
    found = compared(Base(2, through=True), raw).divergence
    assert (found.raw_path, found.phase) == (f"trunk.blocks.{place}", "forward")
