"""Layers of models built differently that are given more or less than base's: who made that is to blame, not the
layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import padiff
from padiff.records import Divergence


def first(result: padiff.Result) -> Divergence:
    assert result.divergence is not None
    return result.divergence


class Relative(nn.Module):
    """Projects a table of places."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.place = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Any, table: Any) -> Any:
        scores = self.query(x) @ (self.key(x) + self.place(table)).transpose(-1, -2)
        return torch.softmax(scores, -1) @ self.value(x)


class Repeating(nn.Module):
    """One table for each of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Relative(), Relative()])

    def forward(self, x: Any) -> Any:
        table = torch.sin(torch.arange(5.0)[:, None] * torch.arange(1.0, 9.0)).expand(len(x), -1, -1)
        for layer in self.layers:
            x = x + layer(x, table)
        return x


class Fused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.place, self.qkv = nn.Linear(8, 8), nn.Linear(8, 24)

    def forward(self, x: Any, table: Any) -> Any:
        q, k, v = self.qkv(x).chunk(3, -1)
        return torch.softmax(q @ (k + self.place(table)).transpose(-1, -2), -1) @ v


class Once(nn.Module):
    """One for all."""

    def __init__(self, *, sign: float = 1.0) -> None:
        super().__init__()
        self.blocks, self.sign = nn.Sequential(Fused(), Fused()), sign

    def forward(self, x: Any) -> Any:
        places = self.sign * torch.arange(5.0)
        table = torch.sin(places[:, None] * torch.arange(1.0, 9.0))
        for block in self.blocks:
            x = x + block(x, table)
        return x


def test_a_wrong_table_that_base_repeats() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 8)
    assert padiff.compare(Repeating(), Once(), x).aligned
    result = padiff.compare(Repeating(), Once(sign=-1.0), x)
    assert [one.raw_path for one in result.divergences] == [""]
    assert first(result).causes[0].name == "sign"


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Any, memory: Any) -> Any:
        scores = self.query(x) @ self.key(memory).transpose(-1, -2)
        return self.out(torch.softmax(scores, -1) @ self.value(memory))


class Decoding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(8), Attention()

    def forward(self, x: Any, memory: Any) -> Any:
        return x + self.attention(self.norm(x), memory)


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Decoding(), Decoding()])

    def forward(self, x: Any, memory: Any) -> Any:
        for layer in self.layers:
            x = layer(x, memory)
        return x


class Cross(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.o, self.kv, self.q = nn.Linear(8, 8), nn.Linear(8, 16), nn.Linear(8, 8)

    def forward(self, x: Any, memory: Any) -> Any:
        k, v = self.kv(memory).chunk(2, -1)
        return self.o(torch.softmax(self.q(x) @ k.transpose(-1, -2), -1) @ v)


class Block(nn.Module):
    def __init__(self, *, itself: bool) -> None:
        super().__init__()
        self.cross, self.ln, self.itself = Cross(), nn.LayerNorm(8), itself

    def forward(self, x: Any, memory: Any) -> Any:
        h = self.ln(x)
        return x + self.cross(h, h if self.itself else memory)


class Blocks(nn.Module):
    def __init__(self, *, itself: bool = False) -> None:
        super().__init__()
        self.stack = nn.ModuleList([Block(itself=itself), Block(itself=itself)])

    def forward(self, x: Any, memory: Any) -> Any:
        for block in self.stack:
            x = block(x, memory)
        return x


@pytest.mark.parametrize("length", [3, 7])
def test_what_attends_to_itself_where_base_attends_to_something_longer(length: int) -> None:
    """Its projection was given the wrong thing, by the block that calls it: the tensor is right where it is a query."""
    torch.manual_seed(0)
    inputs = {"x": torch.randn(2, 5, 8), "memory": torch.randn(2, length, 8)}
    assert padiff.compare(Decoder(), Blocks(), inputs).aligned
    result = padiff.compare(Decoder(), Blocks(itself=True), inputs)
    assert [one.raw_path for one in result.divergences] == ["stack.0", "stack.1"]


class Cropped(nn.Module):
    """A causal convolution that pads on both ends."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.act, self.out = nn.Conv1d(4, 4, 3, padding=2, groups=4), nn.SiLU(), nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        made = self.act(self.conv(x.transpose(1, 2))[..., : x.shape[1]])
        return self.out(made.transpose(1, 2))


class Padded(nn.Module):
    """One that is padded before it."""

    def __init__(self, *, act: bool = True) -> None:
        super().__init__()
        self.out, self.dw, self.act = nn.Linear(4, 4), nn.Conv1d(4, 4, 3, groups=4), act

    def forward(self, x: Any) -> Any:
        made = self.dw(nn.functional.pad(x.transpose(1, 2), (2, 0))).transpose(1, 2)
        return self.out(nn.functional.silu(made) if self.act else made)


def test_what_is_left_out_after_a_convolution_that_is_cropped() -> None:
    """The convolution returns the beginning of what base's does: that it ends elsewhere explains nothing."""
    torch.manual_seed(0)
    x = torch.randn(2, 6, 4)
    assert padiff.compare(nn.Sequential(Cropped()), nn.Sequential(Padded()), x).aligned
    result = padiff.compare(nn.Sequential(Cropped()), nn.Sequential(Padded(act=False)), x)
    assert [one.raw_path for one in result.divergences] == ["0"]
    assert "missing activation" in [cause.name for cause in first(result).causes]


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.score = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        return self.score(self.norm(x))


class Last(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head, self.ln = nn.Linear(8, 3), nn.LayerNorm(8)

    def forward(self, x: Any) -> Any:
        return self.head(self.ln(x)[:, -1:])


def test_a_head_that_is_given_the_last_place_only() -> None:
    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    found = first(padiff.compare(Tokens(), Last(), x))
    assert found.raw_path == ""
    assert "between its children ln" in found.note
    assert "slice" in [cause.name for cause in found.causes]
