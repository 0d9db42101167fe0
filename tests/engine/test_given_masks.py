"""Attention that base masks itself and that raw is given a mask for: a wrong mask is the doing of who makes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff

ROWS = np.random.default_rng(0).normal(size=(2, 6, 8)).astype("float32")


class Causal(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (torch.nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Any) -> Any:
        q, k, v = (one(x).view(2, 6, 2, 4).transpose(1, 2) for one in (self.q, self.k, self.v))
        found = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(found.transpose(1, 2).reshape(2, 6, 8))


class Base(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.blocks = torch.nn.Linear(8, 8), torch.nn.ModuleList([Causal() for _ in range(5)])

    def forward(self, x: Any) -> Any:
        x = self.into(x)
        for block in self.blocks:
            x = x + block(x)
        return x


class Masked(paddle.nn.Layer):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.q, self.kv, self.o, self.bug = (
            paddle.nn.Linear(8, 8),
            paddle.nn.Linear(8, 16),
            paddle.nn.Linear(8, 8),
            bug,
        )

    def forward(self, x: Any, mask: Any) -> Any:
        q = self.q(x).reshape([2, 6, 2, 4])
        k, v = (one.reshape([2, 6, 2, 4]) for one in self.kv(x).chunk(2, axis=-1))
        scores = paddle.einsum("bqhd,bkhd->bhqk", q, k) * 0.5
        mask = ~mask if self.bug == "inside" else mask
        scores = paddle.where(mask, scores, paddle.full_like(scores, -1e30))
        found = paddle.einsum("bhqk,bkhd->bqhd", paddle.nn.functional.softmax(scores, axis=-1), v)
        return self.o(found.flatten(2))


class Raw(paddle.nn.Layer):
    def __init__(self, bug: str = "") -> None:
        super().__init__()
        self.layers, self.bug = paddle.nn.LayerList([Masked(bug) for _ in range(5)]), bug
        self.first = paddle.nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        mask = paddle.tril(paddle.ones([6, 6], dtype="bool"), 1 if self.bug == "around" else 0)
        for layer in self.layers:
            x = x + layer(x, mask)
        return x


@pytest.mark.parametrize(
    ("bug", "paths"), [("", []), ("around", [""]), ("inside", [f"layers.{block}" for block in range(5)])]
)
def test_who_makes_the_mask(bug: str, paths: list[str]) -> None:
    torch.manual_seed(0)
    result = padiff.compare(Base(), Raw(bug), ROWS)
    assert [one.raw_path for one in result.divergences] == paths, str(result)
    if bug == "around":
        assert result.divergence is not None
        assert any("tril" in line.text for line in result.divergence.source[1])
        assert result.divergence.causes[0].name == "mask"


class Handed(torch.nn.Module):
    """Attention that is handed its mask through a block."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (torch.nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Any, mask: Any = None) -> Any:
        scores = self.q(x) @ self.k(x).transpose(1, 2)
        scores = scores if mask is None else scores + mask[: x.shape[1], : x.shape[1]]
        return self.o(torch.softmax(scores, -1) @ self.v(x))


class HandedBlock(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn, self.norm = Handed(), torch.nn.LayerNorm(8)

    def forward(self, x: Any, mask: Any = None) -> Any:
        return x + self.attn(self.norm(x), mask=mask)


class HandedTower(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([HandedBlock() for _ in range(4)])
        self.register_buffer("mask", torch.full((9, 9), float("-inf")).triu(1), persistent=False)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x, mask=self.mask)
        return x


class HandedBase(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tower = HandedTower()

    def forward(self, x: Any) -> Any:
        return self.tower(x)


class HandedAttention(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.out = paddle.nn.Linear(8, 8)
        self.value, self.key, self.query = (paddle.nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Any, bias: Any = None) -> Any:
        scores = paddle.matmul(self.query(x), self.key(x), transpose_y=True)
        scores = scores if bias is None else scores + bias
        return self.out(paddle.matmul(paddle.nn.functional.softmax(scores), self.value(x)))


class HandedLayer(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.ln, self.attention = paddle.nn.LayerNorm(8), HandedAttention()

    def forward(self, x: Any, bias: Any = None) -> Any:
        return x + self.attention(self.ln(x), bias)


class HandedRaw(paddle.nn.Layer):
    def __init__(self, without: int = -1, filled: float = -1e9) -> None:
        super().__init__()
        self.layers, self.without, self.filled = (
            paddle.nn.LayerList([HandedLayer() for _ in range(4)]),
            without,
            filled,
        )

    def forward(self, x: Any) -> Any:
        bias = paddle.triu(paddle.full([x.shape[1], x.shape[1]], self.filled), 1)
        for place, layer in enumerate(self.layers):
            x = layer(x, None if place == self.without else bias)
        return x


@pytest.mark.parametrize("without", [0, 2])
def test_a_block_that_is_handed_no_mask(without: int) -> None:
    """Its likes are: the code that calls it is to blame, not the attention inside, which has nothing to add; so it is
    where the other model leaves it out."""
    torch.manual_seed(0)
    assert padiff.compare(HandedBase(), HandedRaw(), ROWS).aligned
    for base, raw, path in ((HandedBase(), HandedRaw(without), ""), (HandedRaw(without), HandedBase(), "tower")):
        found = padiff.compare(base, raw, ROWS).divergence
        assert found is not None
        assert (found.raw_path, found.phase, found.causes[0].name) == (path, "forward", "mask")


@pytest.mark.parametrize("filled", [1e9, -1e-4, 1.0])
def test_what_leaves_nothing_out_is_made_by_who_gives_it(filled: float) -> None:
    """The attention inside adds what it is given, as base's does."""
    torch.manual_seed(0)
    found = padiff.compare(HandedBase(), HandedRaw(filled=filled), ROWS).divergence
    assert found is not None
    assert (found.raw_path, found.phase) == ("", "forward")


class Words(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.blocks = torch.nn.Embedding(9, 8), torch.nn.ModuleList([HandedBlock() for _ in range(2)])

    def forward(self, ids: Any, mask: Any) -> Any:
        x, added = self.words(ids), (1.0 - mask.float())[:, None, :] * torch.finfo(torch.float32).min
        for block in self.blocks:
            x = block(x, mask=added.expand(-1, 6, -1)[0])
        return x


class Spoken(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.layers = paddle.nn.Embedding(9, 8), paddle.nn.LayerList([HandedLayer() for _ in range(2)])

    def forward(self, ids: Any, mask: Any = None) -> Any:
        x, bias = self.table(ids), (1.0 - mask.astype("float32")).unsqueeze(1) * -1e4
        for layer in self.layers:
            x = layer(x, bias.expand([2, 6, 6])[0])
        return x


class Around(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Words()

    def forward(self, ids: Any, mask: Any) -> Any:
        return self.inner(ids, mask=mask)


class Twice(paddle.nn.Layer):
    def __init__(self, *, twice: bool) -> None:
        super().__init__()
        self.core, self.twice = Spoken(), twice

    def forward(self, ids: Any, mask: Any) -> Any:
        return self.core(ids, mask=ids if self.twice else mask)


@pytest.mark.parametrize("twice", [False, True])
def test_a_tensor_that_is_handed_on_in_the_place_of_a_mask_as_well(twice: bool) -> None:
    torch.manual_seed(0)
    ids, mask = np.random.default_rng(1).integers(2, 9, size=(2, 6)), np.ones((2, 6), dtype="int64")
    mask[:, -2:] = 0
    result = padiff.compare(Around(), Twice(twice=twice), {"ids": ids, "mask": mask})
    assert [one.raw_path for one in result.divergences][:1] == ([""] if twice else []), str(result)
