"""One thing kept in different ways: recurrent layers, shared modules, biases beside their weights, named experts."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff
from padiff.errors import WeightError

WIDTH, HIDDEN = 12, 8
X = np.random.default_rng(0).normal(size=(2, 5, WIDTH)).astype("float32")


def same_weights(result: padiff.Result) -> None:
    assert result.aligned, str(result)
    assert result.coverage["parameters"] == 1.0
    assert result.coverage["outputs"] == 1.0


# --- recurrent layers: two in one, two of one, two cells


class Stacked(torch.nn.Module):
    def __init__(self, kind: str = "LSTM") -> None:
        super().__init__()
        self.rnn = getattr(torch.nn, kind)(WIDTH, HIDDEN, 2, batch_first=True)
        self.head = torch.nn.Linear(HIDDEN, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.rnn(x)[0])


class PaddleStacked(paddle.nn.Layer):
    def __init__(self, kind: str = "LSTM") -> None:
        super().__init__()
        self.rnn = getattr(paddle.nn, kind)(WIDTH, HIDDEN, 2)
        self.head = paddle.nn.Linear(HIDDEN, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.rnn(x)[0])


class Single(torch.nn.Module):
    def __init__(self, kind: str = "LSTM", names: tuple[str, str] = ("lower", "upper")) -> None:
        super().__init__()
        self.names = names
        for name, size in zip(names, (WIDTH, HIDDEN), strict=True):
            setattr(self, name, getattr(torch.nn, kind)(size, HIDDEN, batch_first=True))
        self.out = torch.nn.Linear(HIDDEN, 3)

    def forward(self, x: Any) -> Any:
        for name in self.names:
            x = getattr(self, name)(x)[0]
        return self.out(x)


class Cells(torch.nn.Module):
    def __init__(self, kind: str = "LSTM") -> None:
        super().__init__()
        self.cells = torch.nn.ModuleList(
            [getattr(torch.nn, f"{kind}Cell")(WIDTH, HIDDEN), getattr(torch.nn, f"{kind}Cell")(HIDDEN, HIDDEN)]
        )
        self.last = torch.nn.Linear(HIDDEN, 3)

    def forward(self, x: Any) -> Any:
        states: list[Any] = [None, None]
        found = []
        for step in x.unbind(1):
            for place, cell in enumerate(self.cells):
                states[place] = cell(step, states[place])
                step = states[place][0] if isinstance(states[place], tuple) else states[place]
            found.append(step)
        return self.last(torch.stack(found, 1))


RECURRENT = [Stacked, PaddleStacked, Single, Cells]


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("raw", RECURRENT, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("base", RECURRENT, ids=lambda cls: cls.__name__)
def test_recurrent(base: Any, raw: Any, kind: str) -> None:
    base_model, raw_model = base(kind), raw(kind)
    same_weights(padiff.compare(base_model, raw_model, X))
    weight = next(p for p in raw_model.parameters() if list(p.shape)[-1] == WIDTH)
    with torch.no_grad(), paddle.no_grad():
        weight[0, 0] = weight[0, 0] + 1.0
    assert not padiff.compare(base_model, raw_model, X, weights="keep").aligned


# --- one module for several


class Loop(torch.nn.Module):
    """One block, called again and again."""

    def __init__(self, times: int = 3) -> None:
        super().__init__()
        self.inp = torch.nn.Linear(WIDTH, WIDTH)
        self.block = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, WIDTH)
        )
        self.out = torch.nn.Linear(WIDTH, 4)
        self.times = times

    def forward(self, x: Any) -> Any:
        x = self.inp(x)
        for _ in range(self.times):
            x = self.block(x)
        return self.out(x)


class Row(torch.nn.Module):
    """As many blocks as calls; all of them one, or each its own."""

    def __init__(self, one: bool) -> None:
        super().__init__()
        self.first = torch.nn.Linear(WIDTH, WIDTH)
        blocks = [
            torch.nn.Sequential(torch.nn.Linear(WIDTH, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, WIDTH))
            for _ in range(3)
        ]
        self.blocks = torch.nn.ModuleList([blocks[0]] * 3 if one else blocks)
        self.last = torch.nn.Linear(WIDTH, 4)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def test_a_shared_block_fills_its_copies() -> None:
    base, raw = Loop(), Row(one=False)
    result = padiff.compare(base, raw, X)
    same_weights(result)
    for block in raw.blocks:
        assert torch.equal(block[0].weight, base.block[0].weight)
        assert torch.equal(block[2].bias, base.block[2].bias)
    assert len(result.notes) == 4
    assert result.notes[0] == (
        "base keeps block.0.weight once, raw 3 times (blocks.0.0.weight, blocks.1.0.weight, blocks.2.0.weight): "
        "the sum of their gradients is compared, and after an optimizer's step they part"
    )
    raw.blocks[1][0].weight.data += 1
    assert not padiff.compare(base, raw, X, weights="keep").aligned


def test_a_list_of_one_module_thrice() -> None:
    """Its calls pair in order, whichever side has one for all."""
    same_weights(padiff.compare(Loop(), Row(one=True), X))
    same_weights(padiff.compare(Row(one=True), Loop(), X))
    base, raw = Row(one=True), Row(one=False)
    result = padiff.compare(base, raw, X)
    same_weights(result)
    assert result.coverage["calls"] == 1.0
    assert result.unmatched == ()
    raw.blocks[2][0].bias.data += 1
    found = padiff.compare(base, raw, X, weights="keep").divergence
    assert found is not None
    assert found.raw_path == "blocks.2.0"
    same_weights(padiff.compare(raw := Row(one=True), Row(one=True), X))
    equal = Row(one=False)
    for block in equal.blocks:
        block.load_state_dict(raw.blocks[0].state_dict())
    assert padiff.compare(equal, Row(one=True), X, phase="forward").aligned


def test_copies_that_differ_do_not_fit_into_one() -> None:
    with pytest.raises(WeightError, match=r"raw ties blocks\.0\.0\.weight and blocks\.1\.0\.weight"):
        padiff.compare(Row(one=False), Row(one=True), X)
    result = padiff.compare(Row(one=False), Loop(), X)
    assert not result.aligned
    assert "base blocks.1.0.weight (parameter): raw has no place for it" in {str(one) for one in result.unmatched}


class Words(torch.nn.Module):
    def __init__(self, tied: bool, names: tuple[str, str, str] = ("embed", "body", "head")) -> None:
        super().__init__()
        self.names = names
        setattr(self, names[0], torch.nn.Embedding(11, WIDTH))
        setattr(self, names[1], torch.nn.Linear(WIDTH, WIDTH))
        setattr(self, names[2], torch.nn.Linear(WIDTH, 11, bias=False))
        if tied:
            getattr(self, names[2]).weight = getattr(self, names[0]).weight

    def forward(self, x: Any) -> Any:
        embed, body, head = (getattr(self, name) for name in self.names)
        return head(torch.tanh(body(embed(x))))


@pytest.mark.parametrize("names", [("embed", "body", "head"), ("wte", "mid", "out")])
def test_tied_in_base_only(names: tuple[str, str, str]) -> None:
    """Forward is equal; backward is, in sum; and the result says what training will make of it."""
    tokens = np.random.default_rng(0).integers(0, 11, (2, 5))
    base, raw = Words(tied=True), Words(tied=False, names=names)
    result = padiff.compare(base, raw, tokens)
    same_weights(result)
    assert result.notes == (
        f"base keeps embed.weight once, raw 2 times ({names[0]}.weight, {names[2]}.weight): the sum of their "
        "gradients is compared, and after an optimizer's step they part",
    )
    optimizers = tuple(torch.optim.SGD(model.parameters(), lr=0.5) for model in (base, raw))
    found = padiff.compare(base, raw, tokens, optimizers=optimizers).divergence
    assert found is not None
    assert found.phase == "weight"


# --- biases


class Attention(torch.nn.Module):
    """``how``: separate or fused projections; ``biased``: which of them have a bias, and where it is kept."""

    def __init__(self, how: str, biased: str = "qkv", names: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")) -> None:
        super().__init__()
        self.how, self.names = how, names
        if how == "separate":
            for part, name in zip("qkv", names, strict=True):
                setattr(self, name, torch.nn.Linear(WIDTH, WIDTH, bias=part in biased))
        else:
            self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH, bias=how == "fused" and bool(biased))
        if how == "beside":
            for part in biased:
                self.register_parameter(f"{part}_bias", torch.nn.Parameter(torch.randn(WIDTH)))
            if "k" not in biased:
                self.register_buffer("k_bias", torch.zeros(WIDTH), persistent=False)
        self.proj = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        if self.how == "separate":
            q, k, v = (getattr(self, name)(x) for name in self.names)
        elif self.how == "fused":
            q, k, v = self.qkv(x).chunk(3, -1)
        else:
            bias = torch.cat([self.q_bias, self.k_bias, self.v_bias])
            q, k, v = torch.nn.functional.linear(x, self.qkv.weight, bias).chunk(3, -1)
        return self.proj((q @ k.transpose(1, 2)).softmax(-1) @ v)


def blocks(*arguments: Any, **more: Any) -> Any:
    return torch.nn.Sequential(*(Attention(*arguments, **more) for _ in range(2)))


@pytest.mark.parametrize(
    ("base", "raw"),
    [
        (("beside", "qv"), ("separate", "qv")),
        (("separate", "qv"), ("beside", "qv")),
        (("beside", "qv"), ("fused", "qkv")),
        (("beside", "qv"), ("separate", "qv", ("query", "key", "value"))),
        (("separate", "qv", ("query", "key", "value")), ("beside", "qv")),
        (("beside", "qkv"), ("fused", "qkv")),
        (("fused", "qkv"), ("beside", "qkv")),
        (("separate", "qkv"), ("beside", "qkv")),
    ],
    ids=str,
)
def test_biases_beside_the_fused_weight(base: Any, raw: Any) -> None:
    same_weights(padiff.compare(blocks(*base), blocks(*raw), X))


@pytest.mark.parametrize("names", [("q_proj", "k_proj", "v_proj"), ("wq", "wk", "wv")])
def test_a_bias_without_home_is_named(names: tuple[str, ...]) -> None:
    with pytest.raises(WeightError) as caught:
        padiff.compare(blocks("separate", "qkv"), blocks("separate", "", names), X)
    text = str(caught.value)
    assert "parameter 0.q_proj.bias of base, shape [12], has no partner" in text
    assert f"raw module 0.{names[0]} (Linear) has no such parameter" in text
    for path in ("0.k_proj.bias", "0.v_proj.bias", "1.q_proj.bias", "1.k_proj.bias", "1.v_proj.bias"):
        assert f"{path} [12]" in text
    with pytest.raises(WeightError) as caught:
        padiff.compare(blocks("separate", ""), blocks("separate", "qkv", names), X)
    text = str(caught.value)
    assert f"parameter 0.{names[0]}.bias of raw, shape [12], has no partner" in text
    assert "base module 0.q_proj (Linear) has no such parameter" in text
    assert f"1.{names[2]}.bias [12]" in text


def test_a_weight_of_another_width_is_named_with_both_shapes() -> None:
    """Its bias fits, so the layers belong together."""
    base = torch.nn.Sequential(torch.nn.Linear(12, 10, bias=False), torch.nn.Tanh(), torch.nn.Linear(10, 12))
    wide = torch.nn.Sequential(OrderedDict(up=torch.nn.Linear(12, 16, bias=False), down=torch.nn.Linear(16, 12)))
    with pytest.raises(WeightError) as caught:
        padiff.compare(base, wide, X)
    assert "weight of base module 2 (Linear) has shape [12, 10], which does not fit" in str(caught.value)


def test_of_joined_layers_the_one_without_a_bias_is_named() -> None:
    """And the others' biases don't go into those of the next block, which they add up to."""
    names = ("query", "key", "value")
    for base, raw, said in (
        (("fused",), ("separate", "qv", names), "0.qkv.bias of base, shape [36], has no partner: raw module 0.key"),
        (("separate", "qv", names), ("fused",), "0.qkv.bias of raw, shape [36], has no partner: base module 0.key"),
    ):
        with pytest.raises(WeightError) as caught:
            padiff.compare(blocks(*base), blocks(*raw), X)
        text = str(caught.value)
        assert f"parameter {said} (Linear) has no such parameter; the same is true of 1.qkv.bias [36]\n" in text


# --- experts under names


class Experts(torch.nn.Module):
    def __init__(self, names: tuple[str, ...] | None) -> None:
        super().__init__()
        self.router = torch.nn.Linear(WIDTH, 3, bias=False)
        self.names = names
        if names is None:
            self.w_up = torch.nn.Parameter(torch.randn(3, WIDTH, HIDDEN) * 0.3)
            self.w_down = torch.nn.Parameter(torch.randn(3, HIDDEN, WIDTH) * 0.3)
        else:
            self.experts = torch.nn.ModuleDict()
            for name in names:
                up, down = torch.nn.Linear(WIDTH, HIDDEN, bias=False), torch.nn.Linear(HIDDEN, WIDTH, bias=False)
                self.experts[name] = torch.nn.ModuleDict({"up": up, "down": down})

    def forward(self, x: Any) -> Any:
        shares = self.router(x).softmax(-1).unbind(-1)
        made = []
        for place in range(3):
            if self.names is None:
                made.append(torch.tanh(x @ self.w_up[place]) @ self.w_down[place])
            else:
                expert = self.experts[self.names[place]]
                made.append(expert["down"](torch.tanh(expert["up"](x))))
        return sum(share[..., None] * one for share, one in zip(shares, made, strict=True))


EXPERTS = [("a", "b", "c"), ("0", "1", "2"), ("maths", "code", "talk"), None]


@pytest.mark.parametrize("raw", EXPERTS, ids=str)
@pytest.mark.parametrize("base", EXPERTS, ids=str)
def test_experts_under_names(base: Any, raw: Any) -> None:
    same_weights(padiff.compare(Experts(base), torch.nn.Sequential(Experts(raw)), X))


class Square(torch.nn.Module):
    """Experts that return as much as they are given, in one tensor, either way round, or in a list."""

    def __init__(self, kept: str) -> None:
        super().__init__()
        self.kept = kept
        if kept == "list":
            self.experts = torch.nn.ModuleList([torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3)])
        else:
            self.experts = torch.nn.Parameter(torch.randn(3, WIDTH, WIDTH) * 0.3)

    def forward(self, x: Any) -> Any:
        if self.kept == "list":
            return sum(torch.tanh(expert(x)) * place for place, expert in enumerate(self.experts))
        how = "bni,eio->bneo" if self.kept == "in, out" else "bni,eoi->bneo"
        return (torch.tanh(torch.einsum(how, x, self.experts)) * torch.arange(3.0)[:, None]).sum(-2)


@pytest.mark.parametrize("kept", ["in, out", "out, in"])
def test_square_experts_in_one_tensor(kept: str) -> None:
    torch.manual_seed(0)
    for base, raw in ((kept, "list"), ("list", kept)):
        same_weights(padiff.compare(Square(base), torch.nn.Sequential(Square(raw)), X))


# --- tensors of a user's own module


class Mixes(torch.nn.Module):
    """Tensors of one size, which base keeps with axes of length one and uses at once."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("time_decay", "time_first"):
            setattr(self, name, torch.nn.Parameter(torch.rand(WIDTH)))
        for name in ("time_mix_key", "time_mix_value", "time_mix_receptance"):
            setattr(self, name, torch.nn.Parameter(torch.rand(1, 1, WIDTH)))
        self.key, self.value, self.receptance = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Any) -> Any:
        key, value, rest = x * self.time_mix_key, x * self.time_mix_value, x * self.time_mix_receptance
        key, value, rest = self.key(key), self.value(value), self.receptance(rest)
        return torch.tanh(key * -self.time_decay.exp() + self.time_first) * value + rest


class Forgetful(torch.nn.Module):
    """Uses each when it is needed, and one of them not at all."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("mix_r", "mix_k", "mix_v", "decay", "first"):
            setattr(self, name, torch.nn.Parameter(torch.rand(WIDTH)))
        self.w_r, self.w_k, self.w_v = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Any) -> Any:
        key, value, rest = self.w_k(x * self.mix_k), self.w_v(x * self.mix_v), self.w_r(x * self.mix_r)
        return torch.tanh(key * -self.decay.exp()) * value + rest


def test_names_tell_tensors_with_axes_of_length_one() -> None:
    torch.manual_seed(0)
    result = padiff.compare(Mixes(), torch.nn.Sequential(Forgetful()), X)
    sources = {entry.path: entry.sources[0].path for entry in result.plan.entries}
    assert (sources["0.first"], sources["0.mix_r"]) == ("time_first", "time_mix_receptance")


class Written(torch.nn.Module):
    """A convolution whose weight is kept as its size and its direction, by a layer or by code."""

    def __init__(self, *, layer: bool) -> None:
        super().__init__()
        self.last = torch.nn.Linear(WIDTH, 3)
        if layer:
            self.conv = torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv1d(5, WIDTH, 3), dim=2)
        else:
            self.weight_v = torch.nn.Parameter(torch.randn(WIDTH, 5, 3))
            self.weight_g, self.bias = torch.nn.Parameter(torch.ones(1, 1, 3)), torch.nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Any) -> Any:
        if hasattr(self, "conv"):
            made = self.conv(x)
        else:
            weight = self.weight_g * self.weight_v / self.weight_v.norm(dim=(0, 1), keepdim=True)
            made = torch.nn.functional.conv1d(x, weight, self.bias)
        return self.last(made.transpose(1, 2))


def test_a_weight_by_its_size_and_direction() -> None:
    torch.manual_seed(0)
    for layer in (True, False):
        same_weights(padiff.compare(Written(layer=layer), torch.nn.Sequential(Written(layer=not layer)), X))


# --- lists


class Pre(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        return self.second(torch.tanh(self.first(x)))


class Blocks(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([torch.nn.ModuleDict({"attn": Pre(), "mlp": Pre()}) for _ in range(3)])

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = x + block["attn"](x)
            x = x + block["mlp"](x)
        return x


class Sorts(torch.nn.Module):
    """The same, kept sort by sort; the last of one sort is forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.b, self.a = (torch.nn.ModuleList([Pre() for _ in range(3)]) for _ in range(2))

    def forward(self, x: Any) -> Any:
        for place in range(3):
            x = x + self.a[place](x)
            x = x + self.b[min(place, 1)](x)
        return x


def test_a_member_that_is_not_used_stands_among_its_peers() -> None:
    torch.manual_seed(0)
    result = padiff.compare(Blocks(), Sorts(), X)
    sources = {entry.path: entry.sources[0].path for entry in result.plan.entries}
    assert all(path.startswith("a") == (".attn." in source) for path, source in sources.items())
    assert result.divergence is not None
    assert (result.divergence.raw_path, result.divergence.phase) == ("", "forward")


def test_what_base_has_nothing_for_is_told() -> None:
    torch.manual_seed(0)
    base, raw = (
        torch.nn.Sequential(
            *(torch.nn.Linear(WIDTH, WIDTH) for _ in range(6)),
            torch.nn.Linear(WIDTH, 5, bias=bias),
            torch.nn.Linear(5, 3),
        )
        for bias in (False, True)
    )
    torch.nn.init.zeros_(raw[6].bias)
    result = padiff.compare(base, torch.nn.Sequential(raw), X)
    assert result.aligned
    assert "raw uses 1 parameter that base has nothing for (0.6.bias)" in result.notes[0]
