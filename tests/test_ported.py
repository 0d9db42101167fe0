"""Ports as people write them, from torch to paddle: other nesting, fused projections, code instead of modules."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff


class Relative(torch.nn.Module):
    """Attention that projects a table of places with its own layers, and drops twice."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (torch.nn.Linear(8, 8) for _ in range(3))
        self.table_dropout, self.dropout = torch.nn.Dropout(0.2), torch.nn.Dropout(0.2)
        self.out = torch.nn.Linear(8, 8)

    def forward(self, x: Any, table: Any) -> Any:
        query, key, value = self.query(x), self.key(x), self.value(x)
        scores = query @ key.transpose(-1, -2)
        table = self.table_dropout(table)
        scores = scores + query @ self.key(table).T + (key @ self.query(table).T).transpose(-1, -2)
        return self.out(self.dropout(torch.softmax(scores, -1)) @ value)


class RelativeNet(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(5, 8)
        self.layers = torch.nn.ModuleList([Relative(), Relative()])

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = x + layer(x, self.table.weight)
        return x


class FusedRelative(paddle.nn.Layer):
    def __init__(self, mode: str) -> None:
        super().__init__()
        self.qkv, self.proj = paddle.nn.Linear(8, 24), paddle.nn.Linear(8, 8)
        self.attn_drop, self.pos_drop = paddle.nn.Dropout(0.2, mode=mode), paddle.nn.Dropout(0.2)

    def forward(self, x: Any, table: Any) -> Any:
        q, k, v = self.qkv(x).chunk(3, axis=-1)
        place_q, place_k, _ = self.qkv(self.pos_drop(table)).chunk(3, axis=-1)
        scores = paddle.matmul(q, k, transpose_y=True) + paddle.matmul(q, place_k, transpose_y=True)
        scores = scores + paddle.matmul(k, place_q, transpose_y=True).transpose([0, 2, 1])
        return self.proj(paddle.matmul(self.attn_drop(paddle.nn.functional.softmax(scores)), v))


class FusedRelativeNet(paddle.nn.Layer):
    def __init__(self, mode: str = "upscale_in_train") -> None:
        super().__init__()
        self.rel = paddle.nn.Embedding(5, 8)
        self.blocks = paddle.nn.LayerList([FusedRelative(mode), FusedRelative(mode)])

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = x + block(x, self.rel.weight)
        return x


@pytest.mark.parametrize("training", [False, True])
def test_a_dropout_behind_calls_without_partner(training: bool) -> None:
    """The fused projection is called again where base calls two of its three: what comes after finds its partner."""
    torch.manual_seed(0)
    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    base, right, wrong = RelativeNet().train(training), FusedRelativeNet(), FusedRelativeNet("downscale_in_infer")
    for model in (right, wrong):
        model.train() if training else model.eval()
    assert padiff.compare(base, right, x).aligned
    divergence = padiff.compare(base, wrong, x).divergence
    assert divergence is not None
    assert divergence.raw_path == "blocks.0.attn_drop"
    assert "dropout" in [cause.name for cause in divergence.causes[:2]]


def test_a_frozen_parameter_where_a_table_is_handed_on() -> None:
    """The table that base hands on as it is has one gradient for all its uses, raw's copies have one each: no fault."""
    torch.manual_seed(0)
    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    raw = FusedRelativeNet()
    raw.eval()
    raw.blocks[1].proj.bias.stop_gradient = True
    divergence = padiff.compare(RelativeNet().eval(), raw, x).divergence
    assert divergence is not None
    assert (divergence.raw_path, divergence.phase, divergence.comparison.name) == ("blocks.1.proj", "gradient", "bias")


class Pointing(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.energy = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6), torch.nn.Linear(6, 1)

    def forward(self, state: Any, memory: Any, keep: Any) -> Any:
        scores = self.energy(torch.tanh(self.query(state).unsqueeze(1) + self.key(memory))).squeeze(-1)
        weights = torch.softmax(scores.masked_fill(~keep, float("-inf")), -1)
        return torch.bmm(weights.unsqueeze(1), memory).squeeze(1)


class Decoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.cell = Pointing(), torch.nn.GRUCell(6, 6)

    def forward(self, memory: Any, keep: Any) -> Any:
        state = memory.mean(1)
        for _ in range(3):
            state = self.cell(self.attention(state, memory, keep), state)
        return state


class Seq(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.decoder, self.out = torch.nn.Embedding(9, 6), Decoder(), torch.nn.Linear(6, 4)

    def forward(self, ids: Any) -> Any:
        return self.out(self.decoder(self.embedding(ids), ids != 0))


class PaddlePointing(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.w_q, self.w_k, self.v = paddle.nn.Linear(6, 6), paddle.nn.Linear(6, 6), paddle.nn.Linear(6, 1)

    def forward(self, h: Any, memory: Any, mask: Any) -> Any:
        e = self.v(paddle.tanh(self.w_q(h)[:, None] + self.w_k(memory)))[:, :, 0]
        a = paddle.nn.functional.softmax(paddle.where(mask, e, paddle.full_like(e, -1e9)), -1)
        return paddle.matmul(a[:, None], memory)[:, 0]


class PaddleSeq(paddle.nn.Layer):
    """Without a decoder of its own."""

    def __init__(self, *, inverted: bool = False) -> None:
        super().__init__()
        self.emb, self.att = paddle.nn.Embedding(9, 6), PaddlePointing()
        self.gru, self.head = paddle.nn.GRUCell(6, 6), paddle.nn.Linear(6, 4)
        self.inverted = inverted

    def forward(self, ids: Any) -> Any:
        memory = self.emb(ids)
        mask = ids == 0 if self.inverted else ids != 0
        h = memory.mean(1)
        for _ in range(3):
            _, h = self.gru(self.att(h, memory, mask), h)
        return self.head(h)


def test_a_mask_given_the_wrong_way_round() -> None:
    """The attention may end elsewhere, and is in doubt; what it was given explains what it returns."""
    torch.manual_seed(0)
    ids = np.array([[1, 2, 3, 4], [5, 6, 0, 0], [7, 8, 1, 0]])
    assert padiff.compare(Seq(), PaddleSeq(), ids).aligned
    divergence = padiff.compare(Seq(), PaddleSeq(inverted=True), ids).divergence
    assert divergence is not None
    assert (divergence.raw_path, divergence.causes[0].name) == ("", "mask inverted")


class Encoding(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn, self.norm = torch.nn.MultiheadAttention(8, 2, batch_first=True), torch.nn.LayerNorm(8)

    def forward(self, x: Any) -> Any:
        y = self.norm(x)
        mask = torch.full((5, 5), float("-inf")).triu(1)
        return x + self.attn(y, y, y, need_weights=False, attn_mask=mask)[0]


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.scale = torch.nn.Sequential(Encoding(), Encoding()), torch.nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Any) -> Any:
        return self.blocks(x) * self.scale.exp()


class PaddleAttention(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.in_proj, self.out_proj = paddle.nn.Linear(8, 24), paddle.nn.Linear(8, 8)

    def forward(self, x: Any, mask: Any) -> Any:
        q, k, v = (t.reshape([0, 0, 2, 4]).transpose([0, 2, 1, 3]) for t in self.in_proj(x).chunk(3, axis=-1))
        w = paddle.nn.functional.softmax(paddle.matmul(q, k, transpose_y=True) / 2 + mask)
        return self.out_proj(paddle.matmul(w, v).transpose([0, 2, 1, 3]).flatten(2))


class PaddleBlock(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.ln, self.attn = paddle.nn.LayerNorm(8), PaddleAttention()

    def forward(self, x: Any, mask: Any) -> Any:
        return x + self.attn(self.ln(x), mask)


class Scale(paddle.nn.Layer):
    def __init__(self, *, followed: bool) -> None:
        super().__init__()
        self.factor, self.followed = self.create_parameter([1]), followed

    def forward(self, x: Any) -> Any:
        return x * (self.factor if self.followed else self.factor.detach()).exp()


class PaddleScaled(paddle.nn.Layer):
    def __init__(self, *, followed: bool = True) -> None:
        super().__init__()
        self.tower = paddle.nn.LayerList([PaddleBlock(), PaddleBlock()])
        self.last = Scale(followed=followed)

    def forward(self, x: Any) -> Any:
        mask = paddle.triu(paddle.full([5, 5], -np.inf), 1)
        for block in self.tower:
            x = block(x, mask)
        return self.last(x)


def test_a_parameter_that_is_detached_is_named_itself() -> None:
    """A mask that stands second on one side is not the other's second input, which is followed."""
    torch.manual_seed(0)
    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    assert padiff.compare(Scaled(), PaddleScaled(), x).aligned
    divergence = padiff.compare(Scaled(), PaddleScaled(followed=False), x).divergence
    assert divergence is not None
    assert (divergence.raw_path, divergence.phase, divergence.comparison.name) == ("last", "gradient", "factor")


class Looped(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = torch.nn.LSTMCell(6, 5)

    def forward(self, x: Any) -> Any:
        state = torch.zeros(2, 5), torch.zeros(2, 5)
        for step in range(3):
            state = self.cell(x[:, step], state)
        return state[0]


class OwnCell(paddle.nn.Layer):
    """An LSTM's cell, written out."""

    def __init__(self, bug: str) -> None:
        super().__init__()
        self.weight_ih, self.weight_hh = self.create_parameter([20, 6]), self.create_parameter([20, 5])
        self.bias_ih, self.bias_hh = self.create_parameter([20]), self.create_parameter([20])
        self.bug = bug

    def forward(self, x: Any, h: Any, c: Any) -> Any:
        linear, sigmoid = paddle.nn.functional.linear, paddle.nn.functional.sigmoid
        gates = linear(x, self.weight_ih.t(), self.bias_ih) + linear(h, self.weight_hh.t(), self.bias_hh)
        i, f, g, o = gates.split(4, axis=-1)
        if self.bug == "order":
            f, i = i, f
        c = sigmoid(f) * c + sigmoid(i) * paddle.tanh(g)
        return sigmoid(o) * (c if self.bug == "tanh" else paddle.tanh(c)), c


class PaddleLooped(paddle.nn.Layer):
    def __init__(self, bug: str = "") -> None:
        super().__init__()
        self.own = OwnCell(bug)

    def forward(self, x: Any) -> Any:
        h, c = paddle.zeros([2, 5]), paddle.zeros([2, 5])
        for step in range(3):
            h, c = self.own(x[:, step], h, c)
        return h


@pytest.mark.parametrize(
    ("bug", "part", "cause"),
    [("order", "", "gate order"), ("tanh", "cell's tanh", "missing activation")],
)
def test_a_cell_written_out(bug: str, part: str, cause: str) -> None:
    torch.manual_seed(0)
    x = np.random.default_rng(0).normal(size=(2, 3, 6)).astype("float32")
    assert padiff.compare(Looped(), PaddleLooped(), x).aligned
    divergence = padiff.compare(Looped(), PaddleLooped(bug), x).divergence
    assert divergence is not None
    assert divergence.raw_path == "own"
    assert divergence.op is not None
    assert divergence.op.base == "torch.lstm_cell"
    assert divergence.causes[0].name == cause
    assert part in divergence.op.base_part


class Perceptron(torch.nn.Module):
    """Layers in a list, and what bends in code."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(6, 6), torch.nn.Linear(6, 6), torch.nn.Linear(6, 4)])

    def forward(self, x: Any) -> Any:
        for place, layer in enumerate(self.layers):
            x = torch.relu(layer(x)) if place < 2 else layer(x)
        return x


class Boxes(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.predictor = torch.nn.Linear(5, 6), Perceptron()

    def forward(self, x: Any) -> Any:
        return torch.sigmoid(self.predictor(self.stem(x)))


class PaddleBoxes(paddle.nn.Layer):
    def __init__(self, *, bent: bool = True) -> None:
        super().__init__()
        linear, relu = paddle.nn.Linear, paddle.nn.ReLU
        self.first = linear(5, 6)
        last = [relu(), linear(6, 4)] if bent else [linear(6, 4)]
        self.box = paddle.nn.Sequential(linear(6, 6), relu(), linear(6, 6), *last)

    def forward(self, x: Any) -> Any:
        return paddle.nn.functional.sigmoid(self.box(self.first(x)))


def test_a_missing_activation_is_no_trip_of_a_loop() -> None:
    """The sequence has one member more than base's list, and that is right: what it lacks is named, not what it has."""
    torch.manual_seed(0)
    x = np.random.default_rng(0).normal(size=(3, 5)).astype("float32")
    assert padiff.compare(Boxes(), PaddleBoxes(), x).aligned
    divergence = padiff.compare(Boxes(), PaddleBoxes(bent=False), x).divergence
    assert divergence is not None
    assert divergence.raw_path == "box"
    assert divergence.causes[0].name == "missing activation"
    assert "calls alone" not in divergence.note
