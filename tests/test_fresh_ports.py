"""Ports in which something else is the author's own choice: what is fused, which way a mask is meant, in which order
arguments come, who is given which rows. None of that is a fault, and a fault beside it is named where it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch
from torch import nn

import padiff


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def named(base: Any, raw: Any, inputs: Any) -> str | None:
    """Where a fault is; None where there is none and all is aligned."""
    torch.manual_seed(0)
    result = padiff.compare(base, raw, inputs)
    if result.divergence is None:
        assert result.aligned, result.notes
        return None
    return result.divergence.raw_path


# --- a model's own tensor


class Margin(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 4)
        self.weight = nn.Parameter(torch.randn(5, 4))

    def forward(self, x: Any) -> Any:
        return nn.functional.linear(self.fc(x), self.weight)


class Head(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.randn(5, 4)), scale

    def forward(self, x: Any) -> Any:
        return x @ self.weight.T * self.scale


class WithHead(nn.Module):
    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(6, 4), Head(scale)

    def forward(self, x: Any) -> Any:
        return self.head(self.embed(x))


def test_a_part_that_holds_what_the_model_itself_holds() -> None:
    """Both are called ``weight``; the models are each other's partners all the same."""
    assert named(Margin(), WithHead(), numbers(3, 6)) is None
    assert named(Margin(), WithHead(2.0), numbers(3, 6)) == "head"


def test_a_model_that_raw_wraps() -> None:
    assert named(nn.Linear(4, 3), nn.Sequential(nn.Linear(4, 3)), numbers(2, 4)) is None


# --- inputs put together here, added up there; a call for each step here, one for all there


class Additive(nn.Module):
    """The state comes first in what is put together."""

    def __init__(self) -> None:
        super().__init__()
        self.attn, self.v = nn.Linear(4 + 6, 5), nn.Linear(5, 1, bias=False)

    def forward(self, state: Any, memory: Any, keep: Any) -> Any:
        states = state[:, None].expand(-1, memory.shape[1], -1)
        scores = self.v(torch.tanh(self.attn(torch.cat([states, memory], -1)))).squeeze(-1)
        return torch.softmax(scores.masked_fill(~keep, -1e9), -1)


class Stepwise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.attention, self.cell = nn.Embedding(9, 3), Additive(), nn.GRUCell(3 + 6, 4)
        self.out = nn.Linear(4, 7)

    def forward(self, ids: Any, memory: Any, lengths: Any) -> Any:
        keep = torch.arange(memory.shape[1])[None] < lengths[:, None]
        state, found = memory.mean(1)[:, :4], []
        for step in range(ids.shape[1]):
            word = self.words(ids[:, step])
            context = (self.attention(state, memory, keep)[..., None] * memory).sum(1)
            state = self.cell(torch.cat([word, context], -1), state)
            found.append(self.out(state))
        return torch.stack(found, 1)


class Bahdanau(nn.Module):
    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.key, self.query, self.energy = nn.Linear(6, 5), nn.Linear(4, 5, bias=False), nn.Linear(5, 1, bias=False)
        self.wrong = wrong

    def forward(self, state: Any, memory: Any, keys: Any, pad: Any) -> Any:
        scores = self.energy(torch.tanh(self.query(state)[:, None] + keys))[..., 0]
        scores = scores.masked_fill(pad, float("-inf"))
        return scores.softmax(-1) ** 2 if self.wrong else scores.softmax(-1)


class AllAtOnce(nn.Module):
    """Keys are made once, words are looked up together, and the mask says what is left out."""

    def __init__(self, wrong: bool = False) -> None:
        super().__init__()
        self.table, self.attend, self.rnn = nn.Embedding(9, 3), Bahdanau(wrong), nn.GRUCell(3 + 6, 4)
        self.head = nn.Linear(4, 7)

    def forward(self, ids: Any, memory: Any, lengths: Any) -> Any:
        pad = torch.arange(memory.shape[1])[None] >= lengths[:, None]
        keys, state, found = self.attend.key(memory), memory.mean(1)[:, :4], []
        for word in self.table(ids).unbind(1):
            weights = self.attend(state, memory, keys, pad)
            state = self.rnn(torch.cat([word, torch.einsum("bt,bth->bh", weights, memory)], -1), state)
            found.append(state)
        return self.head(torch.stack(found, 1))


@pytest.mark.parametrize("batch", [1, 3])
def test_inputs_that_are_put_together_here_and_added_up_there(batch: int) -> None:
    ids = np.random.default_rng(0).integers(0, 9, (batch, 4))
    inputs = (ids, numbers(batch, 5, 6), np.array([5, 3, 4][:batch]))
    assert named(Stepwise(), AllAtOnce(), inputs) is None
    assert named(Stepwise(), AllAtOnce(wrong=True), inputs) == "attend"


# --- names


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(x).chunk(3, -1)
        return x + self.out(torch.softmax(q @ k.transpose(1, 2), -1) @ v)


class Stages(nn.Module):
    """``mid_attn`` comes after the attention in the list."""

    def __init__(self) -> None:
        super().__init__()
        self.downs = nn.ModuleList([nn.Linear(8, 8), Attention()])
        self.mid1, self.mid_attn = nn.Linear(8, 8), Attention()

    def forward(self, x: Any) -> Any:
        for part in self.downs:
            x = part(x)
        return self.mid_attn(torch.relu(self.mid1(x)))


class Staged(nn.Module):
    """``enc_attn`` comes before the one in the list."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.enc, self.enc_attn = nn.Linear(8, 8), Attention()
        self.middle, self.scale = nn.ModuleList([nn.Linear(8, 8), Attention()]), scale

    def forward(self, x: Any) -> Any:
        x = self.enc_attn(self.enc(x)) * self.scale
        return self.middle[1](torch.relu(self.middle[0](x)))


def test_a_name_that_says_what_all_of_a_set_are() -> None:
    assert named(Stages(), Staged(), numbers(2, 5, 8)) is None
    assert named(Stages(), Staged(2.0), numbers(2, 5, 8)) == ""


class Relative(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv_net, self.r_net, self.o_net = (nn.Linear(8, n, bias=False) for n in (24, 8, 8))

    def forward(self, x: Any, places: Any, left_out: Any, memory: Any) -> Any:
        q, k, v = self.qkv_net(torch.cat([memory, x], 1)).chunk(3, -1)
        q = q[:, memory.shape[1] :]
        scores = q @ k.transpose(1, 2) + q @ self.r_net(places).T
        return self.o_net(torch.softmax(scores.masked_fill(left_out, -1e9), -1) @ v)


class RelativeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Relative(), Relative()])

    def forward(self, x: Any, memory: Any) -> Any:
        length, kept = x.shape[1], memory.shape[1]
        left_out = torch.ones(length, length + kept, dtype=torch.bool).triu(1 + kept)
        places = torch.sin(torch.arange(length + kept)[:, None] * torch.arange(1, 9) / 8.0)
        for layer in self.layers:
            x = x + layer(x, places, left_out, memory)
        return x


class Apart(nn.Module):
    """Query apart from keys and values; memory before places."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.q_proj, self.kv_proj = nn.Linear(8, 8, bias=False), nn.Linear(8, 16, bias=False)
        self.pos_proj, self.out_proj = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.scale = scale

    def forward(self, x: Any, memory: Any, places: Any, blocked: Any) -> Any:
        query = self.q_proj(x)
        key, value = self.kv_proj(torch.cat([memory, x], 1)).chunk(2, -1)
        scores = query @ key.transpose(1, 2) * self.scale + query @ self.pos_proj(places).T
        return self.out_proj(torch.softmax(scores + blocked * -1e9, -1) @ value)


class ApartNet(nn.Module):
    def __init__(self, scale: float = 1.0, diagonal: int = 1) -> None:
        super().__init__()
        self.blocks, self.diagonal = nn.ModuleList([Apart(scale), Apart(scale)]), diagonal

    def forward(self, x: Any, memory: Any) -> Any:
        length, kept = x.shape[1], memory.shape[1]
        blocked = torch.ones(length, length + kept, dtype=torch.bool).triu(self.diagonal + kept)
        places = torch.sin(torch.arange(length + kept)[:, None] * torch.arange(1, 9) / 8.0)
        for block in self.blocks:
            x = x + block(x, memory, places, blocked)
        return x


def test_arguments_in_another_order_and_keys_with_values() -> None:
    inputs = (numbers(2, 4, 8), numbers(2, 3, 8, seed=1))
    assert named(RelativeNet(), ApartNet(), inputs) is None
    assert named(RelativeNet(), ApartNet(2.0), inputs) == "blocks.0"
    assert named(RelativeNet(), ApartNet(diagonal=2), inputs) == ""


# --- tables


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 8)
        self.pos = nn.Parameter(torch.randn(1, 5, 8), requires_grad=False)

    def forward(self, x: Any) -> Any:
        return torch.relu(self.fc(x) + self.pos)


class Buffered(paddle.nn.Layer):
    def __init__(self, sign: float = 1.0) -> None:
        super().__init__()
        self.proj, self.sign = paddle.nn.Linear(6, 8), sign
        self.register_buffer("table", paddle.zeros([5, 8]))

    def forward(self, x: Any) -> Any:
        return paddle.nn.functional.relu(self.proj(x) + self.sign * self.table)


def test_a_parameter_that_nobody_trains_is_a_buffer_there() -> None:
    assert named(Frozen(), Buffered(), numbers(2, 5, 6)) is None
    assert named(Frozen(), Buffered(-1.0), numbers(2, 5, 6)) == ""


class Looked(nn.Module):
    """All places are looked up in a table that stays as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.places = nn.Linear(6, 8), nn.Embedding(5, 8)
        self.places.requires_grad_(False)

    def forward(self, x: Any) -> Any:
        return torch.relu(self.fc(x) + self.places(torch.arange(5)))


def test_an_embedding_that_nobody_trains_is_an_empty_buffer_there() -> None:
    assert named(Looked(), Buffered(), numbers(2, 5, 6)) is None
    assert named(Looked(), Buffered(-1.0), numbers(2, 5, 6)) == ""


# --- rows


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(8, 12), nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x: Any) -> Any:
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Routed(nn.Module):
    """Each expert is given its own tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(8, 3), nn.ModuleList(Expert() for _ in range(3))

    def forward(self, x: Any) -> Any:
        tokens = x.reshape(-1, 8)
        weights, chosen = torch.softmax(self.router(tokens), -1).topk(2, -1)
        found = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows, slots = torch.where(chosen == number)
            found = found.index_add(0, rows, weights[rows, slots, None] * expert(tokens[rows]))
        return found.view_as(x)


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.moe, self.head = Routed(), nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        return self.head(x + self.moe(x))


class Dense(nn.Module):
    """All experts are given all tokens."""

    def __init__(self, activation: Any, factor: float) -> None:
        super().__init__()
        self.scores = nn.Linear(8, 3)
        self.first = nn.ModuleList(nn.Linear(8, 24) for _ in range(3))
        self.second = nn.ModuleList(nn.Linear(12, 8) for _ in range(3))
        self.activation, self.factor = activation, factor

    def forward(self, x: Any) -> Any:
        probabilities = torch.softmax(self.scores(x), -1)
        weights, chosen = probabilities.topk(2, -1)
        combine = torch.zeros_like(probabilities).scatter(-1, chosen, weights * self.factor).flatten(0, 1)
        tokens = x.flatten(0, 1)
        found = torch.zeros_like(tokens)
        for number, (first, second) in enumerate(zip(self.first, self.second, strict=True)):
            gate, up = first(tokens).chunk(2, -1)
            found = found + combine[:, number, None] * second(self.activation(gate) * up)
        return found.reshape(x.shape)


class DenseNet(nn.Module):
    def __init__(self, activation: Any = nn.functional.silu, factor: float = 1.0) -> None:
        super().__init__()
        self.mlp, self.out = Dense(activation, factor), nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        return self.out(x + self.mlp(x))


def test_experts_that_are_given_all_rows() -> None:
    assert named(Sparse(), DenseNet(), numbers(2, 6, 8)) is None
    assert named(Sparse(), DenseNet(nn.functional.gelu), numbers(2, 6, 8)) == "mlp"
    assert named(Sparse(), DenseNet(factor=2.0), numbers(2, 6, 8)) == "mlp"


# --- masks that say the contrary, and what is repeated


class Keeping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.q, self.k, self.v, self.o = nn.LayerNorm(8), *(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Any, keep: Any) -> Any:
        y = self.norm(x)
        q, k, v = (part(y).unflatten(-1, (2, 4)).transpose(1, 2) for part in (self.q, self.k, self.v))
        scores = (q @ k.transpose(-1, -2) / 2).masked_fill(~keep[:, None, None, :], -1e9)
        return x + self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class KeepingNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.layers = nn.Embedding(9, 8), nn.ModuleList([Keeping(), Keeping()])

    def forward(self, ids: Any) -> Any:
        x, keep = self.words(ids), ids != 0
        for layer in self.layers:
            x = layer(x, keep)
        return x


class Padded(paddle.nn.Layer):
    """Is given what to leave out, or, with ``keeps``, what to leave in."""

    def __init__(self, scale: float, keeps: bool) -> None:
        super().__init__()
        self.norm, self.qkv, self.proj = paddle.nn.LayerNorm(8), paddle.nn.Linear(8, 24), paddle.nn.Linear(8, 8)
        self.scale, self.keeps = scale, keeps

    def forward(self, x: Any, pad: Any) -> Any:
        pad = paddle.logical_not(pad) if self.keeps else pad
        n, t, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape([n, t, 3, 2, 4]).transpose([2, 0, 3, 1, 4]).unbind(0)
        scores = paddle.matmul(q, k, transpose_y=True) * self.scale
        scores = paddle.where(pad[:, None, None, :], paddle.full_like(scores, -1e9), scores)
        y = paddle.matmul(paddle.nn.functional.softmax(scores), v)
        return x + self.proj(y.transpose([0, 2, 1, 3]).reshape([n, t, 8]))


class PaddedNet(paddle.nn.Layer):
    def __init__(self, scale: float = 0.5, keeps: bool = False) -> None:
        super().__init__()
        self.table = paddle.nn.Embedding(9, 8)
        self.blocks = paddle.nn.LayerList([Padded(scale, keeps), Padded(scale, keeps)])

    def forward(self, ids: Any) -> Any:
        x, pad = self.table(ids), ids == 0
        for block in self.blocks:
            x = block(x, pad)
        return x


def test_a_mask_that_says_the_contrary() -> None:
    """Another scale is the block's own fault; one that takes the mask for the contrary was given the wrong one."""
    ids = np.random.default_rng(0).integers(1, 9, (3, 6))
    ids[0, 4:], ids[1, 3:] = 0, 0
    assert named(KeepingNet(), PaddedNet(), ids) is None
    assert named(KeepingNet(), PaddedNet(scale=1.0), ids) == "blocks.0"
    assert named(KeepingNet(), PaddedNet(keeps=True), ids) == ""


class Field(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.colour = nn.Linear(3, 6), nn.Linear(9, 3)

    def forward(self, points: Any, directions: Any) -> Any:
        return self.colour(torch.cat([torch.relu(self.trunk(points)), directions], -1))


class Rays(nn.Module):
    """The direction of a ray is repeated for all its points."""

    def __init__(self) -> None:
        super().__init__()
        self.field = Field()

    def forward(self, origins: Any, directions: Any) -> Any:
        steps = torch.linspace(1.0, 2.0, 4)
        points = origins[:, None] + directions[:, None] * steps[:, None]
        return self.field(points, directions[:, None].expand(points.shape)).mean(1)


class OnceField(nn.Module):
    def __init__(self, activation: Any) -> None:
        super().__init__()
        self.base, self.rgb, self.activation = nn.Linear(3, 6), nn.Linear(9, 3), activation

    def forward(self, points: Any, direction: Any) -> Any:
        repeated = direction[:, None].expand(-1, points.shape[1], -1)
        return self.rgb(torch.cat([self.activation(self.base(points)), repeated], -1))


class OnceRays(nn.Module):
    def __init__(self, activation: Any = torch.relu) -> None:
        super().__init__()
        self.net = OnceField(activation)

    def forward(self, origins: Any, directions: Any) -> Any:
        points = origins[:, None] + directions[:, None] * torch.linspace(1.0, 2.0, 4)[:, None]
        return self.net(points, directions).mean(1)


def test_what_is_repeated_before_a_call_or_inside_of_it() -> None:
    inputs = (numbers(5, 3), numbers(5, 3, seed=1))
    assert named(Rays(), OnceRays(), inputs) is None
    assert named(Rays(), OnceRays(nn.functional.gelu), inputs) == "net"
