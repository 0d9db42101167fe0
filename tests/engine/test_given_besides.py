"""Models built differently, as people port them: what calls are given besides, or begin with, hides no place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import padiff
from padiff.records import Divergence

KEEP = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, hidden: Any, mask: Any) -> Any:
        scores = self.query(hidden) @ self.key(hidden).transpose(-1, -2) * 8**-0.5
        scores = scores.masked_fill(mask == 0, -1e9) if mask.dtype == torch.int64 else scores + mask
        return self.out(torch.softmax(scores, -1) @ self.value(hidden))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm = Attention(), nn.LayerNorm(8)
        self.up, self.act, self.down = nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)

    def forward(self, hidden: Any, mask: Any) -> Any:
        hidden = self.norm(hidden + self.attention(hidden, mask))
        return hidden + self.down(self.act(self.up(hidden)))


class Embeddings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.word, self.norm, self.dropout = nn.Embedding(11, 8), nn.LayerNorm(8), nn.Dropout(0.1)

    def forward(self, ids: Any, keep: Any) -> Any:
        return self.dropout(self.norm(self.word(ids)) * keep.unsqueeze(-1))


class Encoder(nn.Module):
    """Base: a mask of whole numbers, or one that is added."""

    def __init__(self, *, added: bool = False) -> None:
        super().__init__()
        self.embeddings = Embeddings()
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.added = added

    def forward(self, ids: Any, keep: Any) -> Any:
        hidden = self.embeddings(ids, keep)
        mask = keep[:, None, :] * keep[:, :, None]
        if self.added:
            mask = torch.where(keep[:, None, :].expand(-1, 5, -1).bool(), 0.0, -1e9)
        for layer in self.layers:
            hidden = layer(hidden, mask)
        return hidden


class Heads(nn.Module):
    """The same attention, fused, with a mask that is true or false, or added."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.qkv, self.proj, self.drop, self.scale = nn.Linear(8, 24), nn.Linear(8, 8), nn.Dropout(0.0), scale

    def forward(self, x: Any, mask: Any) -> Any:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = (q @ k.transpose(-1, -2)) * self.scale
        scores = torch.where(mask, scores, -1e9) if mask.dtype == torch.bool else scores + mask
        return self.proj(self.drop(torch.softmax(scores, -1)) @ v)


class Block(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.attn, self.ln = Heads(scale), nn.LayerNorm(8)
        self.fc1, self.fc2 = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Any, mask: Any) -> Any:
        x = self.ln(x + self.attn(x, mask))
        return x + self.fc2(nn.functional.gelu(self.fc1(x)))


class Idle(nn.Module):
    """Hands on what it is given, as a tensor of its own."""

    def forward(self, x: Any) -> Any:
        return x.clone()


class Port(nn.Module):
    def __init__(self, *, scale: float = 8**-0.5, form: str = "bool", kept: bool = True) -> None:
        super().__init__()
        self.tok, self.ln, self.drop = nn.Embedding(11, 8), nn.LayerNorm(8), Idle()
        self.blocks = nn.ModuleList([Block(scale), Block(scale)])
        self.form, self.kept = form, kept

    def forward(self, ids: Any, keep: Any) -> Any:
        x = self.ln(self.tok(ids))
        x = self.drop(x * keep[..., None] if self.kept else x)
        if self.form == "bool":
            mask = (keep[:, None, :] * keep[:, :, None]).bool()
        elif self.form == "rolled":
            mask = keep.roll(1, 1).bool()[:, None, :]
        else:
            mask = torch.where(keep.bool() != (self.form == "inverted"), 0.0, -1e9)[:, None, :]
        for block in self.blocks:
            x = block(x, mask)
        return x


def compared(base: nn.Module, raw: nn.Module) -> padiff.Result:
    torch.manual_seed(0)
    for parameter in base.parameters():
        parameter.data.copy_(torch.randn_like(parameter) * 0.5)
    ids = np.random.default_rng(0).integers(0, 11, (2, 5))
    return padiff.compare(base.eval(), raw.eval(), {"ids": ids, "keep": KEEP.numpy()})


def first(result: padiff.Result) -> Divergence:
    assert result.divergence is not None
    return result.divergence


def test_the_port_is_right() -> None:
    assert compared(Encoder(), Port()).aligned


def test_a_mask_in_another_dtype_is_no_excuse() -> None:
    """All blocks are wrong, so that none shows that the mask doesn't matter; but it says the same."""
    found = first(compared(Encoder(), Port(scale=0.5)))
    assert (found.raw_path, found.phase) == ("blocks.0.attn", "forward")


def test_a_mask_of_another_shape_that_leaves_out_the_wrong() -> None:
    result = compared(Encoder(added=True), Port(form="inverted"))
    assert [one.raw_path for one in result.divergences] == [""]
    assert first(result).causes[0].name == "mask inverted"


def test_a_mask_of_truths_that_leaves_out_the_wrong() -> None:
    result = compared(Encoder(added=True), Port(form="rolled"))
    assert [one.raw_path for one in result.divergences] == [""]


def test_what_is_left_out_before_a_module_that_does_nothing() -> None:
    """A module without a partner hands on what it is given: it is not who made it."""
    result = compared(Encoder(), Port(kept=False))
    assert first(result).raw_path == ""


class Placed(nn.Module):
    """Adds the places inside of its attention."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm = PlacedAttention(), nn.LayerNorm(8)

    def forward(self, hidden: Any, places: Any) -> Any:
        return self.norm(hidden + self.attention(hidden, places))


class PlacedAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, hidden: Any, places: Any) -> Any:
        query, key = self.query(hidden + places), self.key(hidden + places)
        return self.out(torch.softmax(query @ key.transpose(-1, -2), -1) @ self.value(hidden))


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        return self.o(torch.softmax(self.q(q) @ self.k(k).transpose(-1, -2), -1) @ self.v(v))


class Around(nn.Module):
    """Adds them before."""

    def __init__(self) -> None:
        super().__init__()
        self.attn, self.ln = Plain(), nn.LayerNorm(8)

    def forward(self, x: Any, pos: Any) -> Any:
        q = x + pos
        return self.ln(x + self.attn(q, q, x))


class Picture(nn.Module):
    """Rows of places from a picture, row by row or, wrongly, column by column."""

    def __init__(self, block: type[nn.Module], *, turned: bool = False) -> None:
        super().__init__()
        self.project = nn.Conv2d(3, 8, 1)
        self.blocks = nn.ModuleList([block(), block()])
        self.register_buffer("places", torch.randn(12, 8))
        self.turned = turned

    def forward(self, picture: Any) -> Any:
        x = self.project(picture)
        x = (x.transpose(2, 3) if self.turned else x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x, self.places)
        return x


@pytest.mark.parametrize("turned", [False, True])
def test_rows_in_another_order_before_a_block_that_may_begin_elsewhere(turned: bool) -> None:
    """What is wrong inside of it is right once it is given what base's is: it was given the wrong thing."""
    torch.manual_seed(0)
    base, raw = Picture(Placed), Picture(Around, turned=turned)
    raw.load_state_dict({"places": base.places}, strict=False)
    result = padiff.compare(base, raw, torch.randn(2, 3, 3, 4))
    assert [one.raw_path for one in result.divergences] == ([""] if turned else []), str(result)


class Tables(nn.Module):
    """Two norms before anything else: of the tokens, and of a table that the blocks are given besides."""

    def __init__(self, eps: float, *, named: bool) -> None:
        super().__init__()
        norms = nn.LayerNorm(8, eps), nn.LayerNorm(8, eps)
        self.named = named
        if named:
            self.tokens, self.table = nn.Embedding(11, 8), nn.Embedding(5, 8)
            self.token_norm, self.table_norm = norms
            self.mix, self.head = Adding(), nn.Linear(8, 3)
        else:
            self.a, self.b, self.c, self.d = nn.Embedding(11, 8), nn.Embedding(5, 8), *norms
            self.body = nn.Sequential(Summing(), nn.Linear(8, 3))

    def forward(self, ids: Any) -> Any:
        if self.named:
            x = self.token_norm(self.tokens(ids)) * 2
            return self.head(self.mix(x, self.table_norm(self.table.weight)))
        x = self.c(self.a(ids)) * 2
        return self.body[1](self.body[0](x, self.d(self.b.weight)))


class Adding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Any, table: Any) -> Any:
        return self.first(x) + self.second(table)


class Summing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Any, table: Any) -> Any:
        return self.left(x).add(self.right(table))


@pytest.mark.parametrize("eps", [1e-5, 1e-2])
def test_of_two_doubtful_norms_the_one_that_returned_what_is_wrong(eps: float) -> None:
    torch.manual_seed(0)
    ids = np.random.default_rng(0).integers(0, 11, (2, 5))
    result = padiff.compare(Tables(1e-5, named=True), Tables(eps, named=False), ids)
    assert result.aligned == (eps == 1e-5)
    if not result.aligned:
        assert first(result).raw_path == "c"
        assert first(result).causes[0].name == "eps"


WINDOW = torch.ones(5, 5).tril().bool() & ~torch.ones(5, 5).tril(-3).bool()
"""What a position sees of what is before it."""


def added(seen: Any) -> Any:
    return torch.where(seen, 0.0, -1e9)


class Windows(nn.Module):
    """Base: the first block is given a mask with a window, the second one without."""

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(11, 8)
        self.layers = nn.ModuleList([Layer(), Layer()])

    def forward(self, ids: Any, keep: Any) -> Any:
        hidden = self.word(ids)
        seen = torch.ones(5, 5).tril().bool() & keep[:, None].bool()
        for layer, mask in zip(self.layers, (added(seen & WINDOW), added(seen)), strict=True):
            hidden = layer(hidden, mask)
        return hidden


class WindowedHeads(Heads):
    """Makes its window itself."""

    def __init__(self, scale: float, *, window: bool) -> None:
        super().__init__(scale)
        self.window = window

    def forward(self, x: Any, mask: Any) -> Any:
        return super().forward(x, mask + added(WINDOW) if self.window else mask)


class WindowedBlock(Block):
    def __init__(self, bug: str, *, window: bool) -> None:
        super().__init__(1.0)
        self.attn = WindowedHeads(0.5 if bug == "scale" else 8**-0.5, window=window and bug != "window")
        self.relu = bug == "relu"

    def forward(self, x: Any, mask: Any) -> Any:
        x = self.ln(x + self.attn(x, mask))
        return x + self.fc2((torch.relu if self.relu else nn.functional.gelu)(self.fc1(x)))


class Windowed(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.tok, self.bug = nn.Embedding(11, 8), bug
        self.blocks = nn.ModuleList([WindowedBlock(bug, window=True), WindowedBlock(bug, window=False)])

    def forward(self, ids: Any, keep: Any) -> Any:
        x = self.tok(ids) * (2.0 if self.bug == "embedding" else 1.0)
        mask = added(torch.ones(5, 5).tril().bool() & keep[:, None].bool())
        for block in self.blocks:
            x = block(x, mask)
        return x


@pytest.mark.parametrize(
    ("bug", "path", "cause"),
    [
        ("embedding", "", "scale"),
        ("relu", "blocks.0", "activation"),
        ("scale", "blocks.0.attn", "scale"),
        ("window", "", "mask"),
    ],
)
def test_a_mask_that_is_made_in_two_places_explains_nothing_else(bug: str, path: str, cause: str) -> None:
    assert compared(Windows(), Windowed("")).aligned
    found = first(compared(Windows(), Windowed(bug)))
    assert (found.raw_path, found.phase) == (path, "forward")
    assert cause in {one.name for one in found.causes}
    assert bug == "window" or "mask" not in {one.name for one in found.causes}


class Places(nn.Module):
    """Base: attention to a few places; it is given what is left out, too, and a mask that marks those seen by all."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Any, mask: Any, out: Any, seen: Any) -> Any:
        scores = self.query(x) @ self.key(x).transpose(-1, -2) * 8**-0.5
        near = torch.ones(5, 5).tril(1).triu(-1).bool() & (mask == 0)[:, None] | seen[:, None]
        shares = torch.softmax(scores.masked_fill(~near, -1e9), -1)
        return (shares @ self.value(x)).masked_fill(out.unsqueeze(-1), 0.0)


class NearAndFar(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.word, self.layers = nn.Embedding(11, 8), nn.ModuleList([Places(), Places()])

    def forward(self, ids: Any, keep: Any) -> Any:
        x, most = self.word(ids), torch.finfo(torch.float32).max
        seen = torch.arange(5).expand(2, 5) == 0
        mask = torch.where(keep == 0, -most, torch.where(seen, most, 0.0))
        for layer in self.layers:
            x = x + layer(x, mask, mask < 0, seen)
        return x


class Band(nn.Module):
    """Raw: the same with what is left in, and without the rest."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.width = nn.Linear(8, 24), width

    def forward(self, x: Any, keep: Any, seen: Any) -> Any:
        q, k, v = self.qkv(x).chunk(3, -1)
        near = torch.ones(5, 5).tril(self.width).triu(-1).bool() | seen[:, None]
        scores = torch.where(near & keep[:, None], q @ k.mT * 8**-0.5, -1e9)
        return torch.softmax(scores, -1) @ v * keep.unsqueeze(-1)


class Bands(nn.Module):
    def __init__(self, width: int = 1) -> None:
        super().__init__()
        self.tok, self.blocks = nn.Embedding(11, 8), nn.ModuleList([Band(width), Band(width)])

    def forward(self, ids: Any, keep: Any) -> Any:
        x = self.tok(ids)
        for block in self.blocks:
            x = x + block(x, keep > 0, torch.arange(5).expand(2, 5) == 0)
        return x


def test_a_mask_of_three_kinds_of_places_excuses_no_window() -> None:
    assert compared(NearAndFar(), Bands()).aligned
    found = first(compared(NearAndFar(), Bands(2)))
    assert (found.raw_path, found.phase) == ("blocks.0", "forward")


class Biased(nn.Module):
    """Hands on its bias of positions, with the mask added."""

    def __init__(self, wrong: str) -> None:
        super().__init__()
        self.query, self.value, self.wrong = nn.Linear(8, 8), nn.Linear(8, 8), wrong
        self.bias = nn.Parameter(torch.randn(5, 5))

    def forward(self, hidden: Any, mask: Any, bias: Any) -> Any:
        if bias is None:
            bias = self.bias * (1.01 if self.wrong == "bias" else 1.0) + mask
        scores = self.query(hidden) @ hidden.transpose(-1, -2) * (1.01 if self.wrong == "scale" else 1.0)
        return torch.softmax(scores + bias, -1) @ self.value(hidden), bias


class Biases(nn.Module):
    def __init__(self, least: float, **wrong: str) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Biased(wrong.get(name, "")) for name in ("first", "second"))
        self.head, self.least = nn.Linear(8, 2), least

    def forward(self, hidden: Any) -> Any:
        mask, bias = torch.full((5, 5), self.least).triu(1), None
        for block in self.blocks:
            hidden, bias = block(hidden, mask, bias)
        return self.head(hidden)


def test_scores_that_are_handed_on_with_another_number_where_both_leave_out() -> None:
    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    base = Biases(torch.finfo(torch.float32).min)
    assert padiff.compare(base, Biases(-1e4), x).aligned
    for wrong, path in (({"first": "bias"}, "blocks.0"), ({"second": "scale"}, "blocks.1")):
        found = padiff.compare(base, Biases(-1e4, **wrong), x).divergence
        assert found is not None
        assert (found.raw_path, found.phase) == (path, "forward"), str(found)


class Kept(torch.nn.Module):
    """Multiplies by a mask that it is given."""

    def forward(self, x: Any, mask: Any) -> Any:
        return x * mask[..., None].to(x.dtype)


class Counting(torch.nn.Module):
    """Makes a mask of ones and zeros, in a dtype of its own."""

    def __init__(self, dtype: torch.dtype, first: int = 1) -> None:
        super().__init__()
        self.linear, self.kept, self.dtype, self.first = torch.nn.Linear(6, 6), Kept(), dtype, first

    def forward(self, x: Any) -> Any:
        mask = (torch.arange(x.shape[1]) >= self.first).to(self.dtype)
        return self.kept(self.linear(x), mask)


def test_a_mask_of_whole_numbers_is_the_same_as_one_of_measured_ones() -> None:
    x = np.random.default_rng(0).normal(size=(2, 5, 6)).astype("float32")
    for base, raw in ((torch.float32, torch.int64), (torch.int64, torch.float32), (torch.float32, torch.bool)):
        assert padiff.compare(Counting(base), Counting(raw), x).aligned
        found = padiff.compare(Counting(base), Counting(raw, first=2), x).divergence
        assert found is not None and (found.raw_path, found.phase) == ("", "forward"), str(found)
