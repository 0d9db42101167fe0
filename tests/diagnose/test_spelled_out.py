"""What one side does in one op and the other step by step: the step that differs is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff
from padiff.align import same_thing
from padiff.capture.held import HostValue
from padiff.diagnose.likes import Event, Inside
from padiff.diagnose.spelled_out import spelled_out
from padiff.records import Call, Slot
from tests.twins import PAIRS

RANDOM = np.random.RandomState(0)
F, P = torch.nn.functional, paddle.nn.functional


def numbers(*shape: int) -> Any:
    return RANDOM.randn(*shape).astype("float32")


QUERY, KEY, VALUE = numbers(2, 4, 5, 6), numbers(2, 2, 7, 6), numbers(2, 2, 7, 6)
WHOLE = numbers(2, 4, 7, 6), numbers(2, 4, 7, 6), numbers(2, 4, 7, 6)
KEPT = np.tri(5, 7, dtype=bool)
X, WEIGHT, BIAS, MATRIX = numbers(3, 8), numbers(8), numbers(8), numbers(8, 8)


def of_torch(function: Callable[..., Any], *given: Any, **options: Any) -> Any:
    return function(
        *(torch.from_numpy(one) if isinstance(one, np.ndarray) else one for one in given), **options
    ).numpy()


def of_paddle(function: Callable[..., Any], *given: Any, **options: Any) -> Any:
    return function(*map(paddle.to_tensor, given), **options).numpy()


STATE, CELL, INTO, BACK = numbers(3, 5), numbers(3, 5), numbers(20, 8), numbers(20, 5)
BIASES = numbers(20), numbers(20)


def of_cell(function: Callable[..., Any], gates: int) -> tuple[tuple[Any, ...], Any]:
    """What a cell with so many gates is given, and what it returns."""
    held = tuple(one[: 5 * gates] for one in (INTO, BACK, *BIASES))
    state = tuple(map(torch.from_numpy, (STATE, CELL))) if gates == 4 else torch.from_numpy(STATE)
    found = function(torch.from_numpy(X), state, *map(torch.from_numpy, held))
    return (X, STATE, *((CELL,) if gates == 4 else ()), *held), (found[0] if gates == 4 else found).numpy()


LSTM, GRU, TANH, RELU = (
    of_cell(getattr(torch, name), gates)
    for name, gates in (("lstm_cell", 4), ("gru_cell", 3), ("rnn_tanh_cell", 1), ("rnn_relu_cell", 1))
)
SHAPE = {"normalized_shape": (8,)}
ADDED = np.where(KEPT, 0, -1e9).astype("float32")
TURNED = tuple(np.ascontiguousarray(one.swapaxes(1, 2)) for one in WHOLE)
ADDS, PRODUCT, ROWS = numbers(2, 1, 7), (numbers(2, 5, 6), numbers(2, 6, 7)), numbers(3, 8)
ATTEND, NORM = F.scaled_dot_product_attention, F.layer_norm
OPS: list[tuple[str, tuple[Any, ...], dict[str, Any], Any]] = [
    ("torch", (QUERY, KEY, VALUE, KEPT), {}, of_torch(ATTEND, QUERY, KEY, VALUE, KEPT, enable_gqa=True)),
    ("torch", (QUERY, KEY, VALUE, ADDED), {"scale": 0.3},
     of_torch(ATTEND, QUERY, KEY, VALUE, ADDED, enable_gqa=True, scale=0.3)),
    ("torch", WHOLE, {"is_causal": True}, of_torch(ATTEND, *WHOLE, is_causal=True)),
    ("paddle", TURNED, {"is_causal": True}, of_paddle(P.scaled_dot_product_attention, *TURNED, is_causal=True)),
    ("torch.layer_norm", (X, WEIGHT, BIAS), {**SHAPE, "eps": 1e-3}, of_torch(NORM, X, (8,), WEIGHT, BIAS, 1e-3)),
    ("torch.layer_norm", (X,), SHAPE, of_torch(NORM, X, (8,))),
    ("torch.layer_norm", (X, BIAS), {**SHAPE, "weight": None}, of_torch(NORM, X, (8,), None, BIAS)),
    ("torch.rms_norm", (X, WEIGHT), SHAPE, of_torch(F.rms_norm, X, (8,), WEIGHT)),
    ("torch.linear", (X, MATRIX, BIAS), {}, of_torch(F.linear, X, MATRIX, BIAS)),
    ("paddle.linear", (X, MATRIX, BIAS), {}, of_paddle(P.linear, X, MATRIX, BIAS)),
    ("torch.gelu", (X,), {}, of_torch(F.gelu, X)),
    ("torch.gelu", (X,), {"approximate": "tanh"}, of_torch(F.gelu, X, approximate="tanh")),
    ("paddle.gelu", (X,), {"approximate": True}, of_paddle(P.gelu, X, approximate=True)),
    ("torch.silu", (X,), {}, of_torch(F.silu, X)),
    ("paddle.swish", (X,), {}, of_paddle(P.swish, X)),
    ("paddle.swiglu", (X,), {}, of_paddle(P.swiglu, X)),
    ("paddle.swiglu", (X, X + 1), {}, of_paddle(P.swiglu, X, X + 1)),
    ("torch.softmax", (X,), {"dim": 0}, of_torch(F.softmax, X, dim=0)),
    ("torch.normalize", (X,), {}, of_torch(F.normalize, X)),
    ("torch.norm", (X,), {"p": 2, "dim": (0, 1), "keepdim": True}, of_torch(torch.norm, X, 2, (0, 1), keepdim=True)),
    ("paddle.norm", (X,), {"dim": -1}, of_paddle(paddle.linalg.norm, X, axis=-1)),
    ("torch.addmm", (BIAS, X, MATRIX), {"alpha": 0.5, "beta": 2},
     of_torch(torch.addmm, BIAS, X, MATRIX, alpha=0.5, beta=2)),
    ("torch.baddbmm", (ADDS, *PRODUCT), {"alpha": 0.5}, of_torch(torch.baddbmm, ADDS, *PRODUCT, alpha=0.5)),
    ("paddle.addmm", (ROWS, X, MATRIX), {"alpha": 0.5}, of_paddle(paddle.addmm, ROWS, X, MATRIX, alpha=0.5)),
    ("torch.addcmul", (BIAS, X, WEIGHT), {"value": 3}, of_torch(torch.addcmul, BIAS, X, WEIGHT, value=3)),
    ("torch.lstm_cell", LSTM[0], {}, LSTM[1]),
    ("torch.gru_cell", GRU[0], {}, GRU[1]),
    ("torch.rnn_tanh_cell", TANH[0], {}, TANH[1]),
    ("torch.rnn_relu_cell", RELU[0], {}, RELU[1]),
]  # fmt: skip
"""Framework and op (attention, if none is named), its tensors, what else it is given, what it returns."""


def event_of(kind: str, tensors: tuple[Any, ...], options: dict[str, Any], returned: Any) -> Event:
    slots = tuple(Slot(str(n), n, HostValue(one)) for n, one in enumerate(tensors))
    made = (Slot("", 99, HostValue(returned)),)
    return Event(Call(0, -1, 0, "", kind, 0, slots, made, options=tuple(options.items())), same_thing(kind))


@pytest.mark.parametrize(("op", "tensors", "options", "returned"), OPS)
def test_the_steps_lead_to_what_the_op_returns(
    op: str, tensors: tuple[Any, ...], options: dict[str, Any], returned: Any
) -> None:
    framework, _, name = op.partition(".")
    kind = f"{framework}.nn.functional.{name or 'scaled_dot_product_attention'}"
    event = event_of(kind, tensors, options, returned)
    found = spelled_out((Inside((event,), 99), Inside((), 99)), ((event,), ()))
    assert found is not None
    steps = found[0].events
    assert len(steps) > 1
    assert steps[-1].call.outputs == event.call.outputs
    assert all(step.part for step in steps)


def test_steps_that_lead_elsewhere_are_not_taken() -> None:
    event = event_of("torch.nn.functional.silu", (X,), {}, X * 1.01)
    assert spelled_out((Inside((event,), 99), Inside((), 99)), ((event,), ())) is None


# ------------------------------------------------------------------ attention and a norm, in one op here, in many there


class TorchFused(torch.nn.Module):
    share = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.o, self.norm = (*(torch.nn.Linear(8, 8) for _ in range(3)), torch.nn.LayerNorm(8))

    def forward(self, x: Any) -> Any:
        x = self.norm(x)
        q, k = (part(x).view(2, 5, 2, 4).transpose(1, 2) for part in (self.q, self.k))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, k, dropout_p=self.share, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(2, 5, 8))


class PaddleFused(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.o, self.norm = (*(paddle.nn.Linear(8, 8) for _ in range(3)), paddle.nn.LayerNorm(8))

    def forward(self, x: Any) -> Any:
        x = self.norm(x)
        q, k = (part(x).reshape([2, 5, 2, 4]) for part in (self.q, self.k))
        y = paddle.nn.functional.scaled_dot_product_attention(q, k, k, is_causal=True)
        return self.o(y.reshape([2, 5, 8]))


class TorchNorm(torch.nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.weight, self.bias = torch.nn.Parameter(torch.ones(8)), torch.nn.Parameter(torch.zeros(8))
        self.bug = bug

    def forward(self, x: Any) -> Any:
        centred = x - x.mean(-1, keepdim=True)
        variance = centred.pow(2).mean(-1, keepdim=True)
        variance = variance + (1e-2 if self.bug == "eps" else 1e-5)
        normal = centred / variance.sqrt()
        return normal * self.weight + self.bias


class PaddleNorm(paddle.nn.Layer):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.weight = self.create_parameter([8], default_initializer=paddle.nn.initializer.Constant(1.0))
        self.bias = self.create_parameter([8], is_bias=True)
        self.bug = bug

    def forward(self, x: Any) -> Any:
        centred = x - x.mean(-1, keepdim=True)
        variance = (centred * centred).mean(-1, keepdim=True)
        variance = variance + (1e-2 if self.bug == "eps" else 1e-5)
        normal = centred * variance.rsqrt()
        return normal * self.weight + self.bias


class TorchSpelled(torch.nn.Module):
    share = 0.0

    def __init__(self, bug: str) -> None:
        super().__init__()
        self.q, self.k, self.o, self.norm = (*(torch.nn.Linear(8, 8) for _ in range(3)), TorchNorm(bug))
        self.bug = bug

    def forward(self, x: Any) -> Any:
        x = self.norm(x)
        q, k = (part(x).view(2, 5, 2, 4).transpose(1, 2) for part in (self.q, self.k))
        scores = k @ q.transpose(-1, -2) if self.bug == "operands" else q @ k.transpose(-1, -2)
        if self.bug != "scale":
            scores = scores * (0.6 if self.bug == "factor" else 0.5)
        mask = torch.ones(5, 5, dtype=torch.bool).triu(1)
        if self.bug != "mask":
            scores = scores.masked_fill(mask, float("-inf"))
        weights = torch.nn.functional.softmax(scores, -2 if self.bug == "axis" else -1)
        weights = torch.nn.functional.dropout(weights, self.share) if self.share else weights
        y = weights @ (q if self.bug == "values" else k)
        return self.o(y.transpose(1, 2).reshape(2, 5, 8))


class PaddleSpelled(paddle.nn.Layer):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.q, self.k, self.o, self.norm = (*(paddle.nn.Linear(8, 8) for _ in range(3)), PaddleNorm(bug))
        self.bug = bug

    def forward(self, x: Any) -> Any:
        x = self.norm(x)
        q, k = (part(x).reshape([2, 5, 2, 4]).transpose([0, 2, 1, 3]) for part in (self.q, self.k))
        scores = k @ q.transpose([0, 1, 3, 2]) if self.bug == "operands" else q @ k.transpose([0, 1, 3, 2])
        if self.bug != "scale":
            scores = scores * (0.6 if self.bug == "factor" else 0.5)
        mask = paddle.triu(paddle.full([5, 5], -1e9), 1)
        if self.bug != "mask":
            scores = scores + mask
        weights = paddle.nn.functional.softmax(scores, -2 if self.bug == "axis" else -1)
        y = weights @ (q if self.bug == "values" else k)
        return self.o(y.transpose([0, 2, 1, 3]).reshape([2, 5, 8]))


FUSED = {"torch": TorchFused, "paddle": PaddleFused}
SPELLED = {"torch": TorchSpelled, "paddle": PaddleSpelled}
FOUND = {
    "eps": ("norm", "eps", ("variance = variance + (1e-2",) * 2),
    "operands": ("", "scores", ("scores = k @ q.transpose(-1", "scores = k @ q.transpose([0")),
    "factor": ("", "scale", ("scores = scores * (0.6",) * 2),
    "scale": ("", "scale", ("scores = scores.masked_fill", "scores = scores + mask")),
    "mask": ("", "mask", ("weights = torch.nn", "weights = paddle.nn")),
    "axis": ("", "softmax", ("weights = torch.nn", "weights = paddle.nn")),
    "values": ("", "weighted sum", ("y = weights @ (q",) * 2),
}
"""Bug to its place, the step of base's op, and how raw's line begins, in torch and in paddle."""


@pytest.mark.parametrize(("base", "raw"), PAIRS)
@pytest.mark.parametrize("bug", list(FOUND))
def test_the_line_that_differs_from_a_step_is_named(bug: str, base: str, raw: str) -> None:
    found = padiff.compare(FUSED[base](), SPELLED[raw](bug), numbers(2, 5, 8)).divergence
    path, part, lines = FOUND[bug]
    assert found is not None and found.op is not None and found.op.raw_line is not None
    assert (found.raw_path, found.phase, found.op.base_part) == (path, "forward", part)
    assert found.op.raw_line.text.startswith(lines[raw == "paddle"])


@pytest.mark.parametrize("bug", ["factor", "mask"])
def test_the_line_where_weights_are_dropped_besides(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TorchFused, "share", 0.2)
    monkeypatch.setattr(TorchSpelled, "share", 0.2)
    assert padiff.compare(TorchFused(), TorchSpelled(""), numbers(2, 5, 8)).aligned
    found = padiff.compare(TorchFused(), TorchSpelled(bug), numbers(2, 5, 8)).divergence
    _, part, lines = FOUND[bug]
    assert found is not None and found.op is not None and found.op.raw_line is not None
    assert found.op.base_part == part
    assert found.op.raw_line.text.startswith(lines[0])


@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_the_other_way_round(base: str, raw: str) -> None:
    found = padiff.compare(SPELLED[base]("factor"), FUSED[raw](), numbers(2, 5, 8)).divergence
    assert found is not None and found.op is not None and found.op.base_line is not None
    assert (found.op.raw_part, found.op.base_part) == ("scale", "")
    assert found.op.base_line.text.startswith("scores = scores * (0.6")
    assert str(found.op).endswith(f"vs {raw}.nn.functional.scaled_dot_product_attention (its scale)")


@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_what_is_the_same_is_the_same(base: str, raw: str) -> None:
    assert padiff.compare(FUSED[base](), SPELLED[raw](""), numbers(2, 5, 8)).aligned


# ------------------------------------------------------------------ a layer of the framework's beside code


class Layered(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attn = torch.nn.LayerNorm(16), torch.nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x: Any) -> Any:
        x = self.norm(x)
        return self.attn(x, x, x, need_weights=False)[0]


class OwnAttention(torch.nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.qkv, self.proj, self.bug = torch.nn.Linear(16, 48), torch.nn.Linear(16, 16), bug

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(x).reshape(2, 5, 3, 4, 4).permute(2, 0, 3, 1, 4).unbind(0)
        scores = q @ k.transpose(-1, -2)
        scores = scores * (0.6 if self.bug == "factor" else 0.5)
        weights = scores.softmax(-2 if self.bug == "axis" else -1)
        y = weights @ (q if self.bug == "values" else v)
        return self.proj(y.transpose(1, 2).reshape(2, 5, 16))


class Coded(torch.nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.norm, self.attn = torch.nn.LayerNorm(16), OwnAttention(bug)

    def forward(self, x: Any) -> Any:
        return self.attn(self.norm(x))


@pytest.mark.parametrize(
    ("bug", "part", "line"),
    [
        ("factor", "scale", "scores = scores * (0.6"),
        ("axis", "softmax", "weights = scores.softmax("),
        ("values", "weighted sum", "y = weights @ (q"),
    ],
)
def test_attention_of_the_frameworks(bug: str, part: str, line: str) -> None:
    x = numbers(2, 5, 16)
    assert padiff.compare(Layered(), Coded(""), x).aligned
    found = padiff.compare(Layered(), Coded(bug), x).divergence
    assert found is not None and found.op is not None
    assert (found.raw_path, found.op.base_part) == ("attn", part)
    assert found.op.base == "torch.nn.functional.multi_head_attention_forward"
    assert found.op.base_line is not None and found.op.base_line.text.startswith("return self.attn(")
    assert found.op.raw_line is not None and found.op.raw_line.text.startswith(line)


def test_a_softmax_that_is_left_out_is_left_out_as_a_whole() -> None:
    class Missing(TorchSpelled):
        def forward(self, x: Any) -> Any:
            x = self.norm(x)
            q, k = (part(x).view(2, 5, 2, 4).transpose(1, 2) for part in (self.q, self.k))
            scores = q @ k.transpose(-1, -2) * 0.5
            weights = scores if self.bug else scores.softmax(-1)
            return self.o((weights @ k).transpose(1, 2).reshape(2, 5, 8))

    found = padiff.compare(Missing(""), Missing("softmax"), numbers(2, 5, 8)).divergence
    assert found is not None and found.op is not None
    assert (found.op.base, found.op.base_part, found.op.raw) == ("torch.Tensor.softmax", "", "")


def test_a_layer_that_was_given_another_forward() -> None:
    """Its class is the framework's, its code is not."""
    linear = torch.nn.Linear(8, 8)

    def forward(x: Any) -> Any:
        y = torch.nn.functional.linear(x, linear.weight, linear.bias)
        return y * 1.1

    linear.forward = forward  # type: ignore[method-assign]
    base = torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Linear(8, 8))
    found = padiff.compare(base, torch.nn.Sequential(torch.nn.Tanh(), linear), numbers(3, 8)).divergence
    assert found is not None and found.op is not None and found.op.raw_line is not None
    assert (found.raw_path, found.op.base, found.op.raw) == ("1", "", "torch.Tensor.mul")
    assert found.op.raw_line.text == "return y * 1.1"


class Embeddings(torch.nn.Module):
    """What one author keeps in a module of its own and the other in the model's code."""

    def __init__(self, sign: float) -> None:
        super().__init__()
        self.patches, self.places, self.sign = torch.nn.Linear(6, 8), torch.nn.Parameter(torch.randn(5, 8)), sign

    def forward(self, x: Any) -> Any:
        x = self.patches(x)
        return x + self.places * self.sign


class Apart(torch.nn.Module):
    def __init__(self, sign: float = 1.0) -> None:
        super().__init__()
        self.embeddings, self.norm, self.head = Embeddings(sign), torch.nn.LayerNorm(8), torch.nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.norm(self.embeddings(x)))


class Together(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches, self.places = torch.nn.Linear(6, 8), torch.nn.Parameter(torch.randn(5, 8))
        self.norm, self.head = torch.nn.LayerNorm(8), torch.nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        x = self.patches(x)
        x = x + self.places * 1.0
        return self.head(self.norm(x))


def test_the_module_in_whose_code_the_op_is_has_no_partner() -> None:
    x = numbers(2, 5, 6)
    assert padiff.compare(Together(), Apart(), x).aligned
    found = padiff.compare(Together(), Apart(0.9), x).divergence
    assert found is not None and found.op is not None and found.op.raw_line is not None
    assert (found.base_path, found.raw_path, found.raw_kind) == ("", "embeddings", "Embeddings")
    assert found.op.raw_line.text == "return x + self.places * self.sign"


class Activated(torch.nn.Module):
    """Turns what it has made, and goes on with it."""

    def __init__(self, activation: Any) -> None:
        super().__init__()
        self.conv, self.out, self.activation = torch.nn.Conv1d(4, 4, 1), torch.nn.Linear(4, 4), activation

    def forward(self, x: Any) -> Any:
        made = self.activation(self.conv(x))
        return self.out(made.transpose(1, 2))


class Bare(torch.nn.Module):
    def __init__(self, activation: Any) -> None:
        super().__init__()
        self.proj, self.pw, self.activation = torch.nn.Linear(4, 4), torch.nn.Conv1d(4, 4, 1), activation

    def forward(self, x: Any) -> Any:
        made = self.pw(x)
        if self.activation is not None:
            made = self.activation(made)
        return self.proj(made.permute(0, 2, 1))


@pytest.mark.parametrize(
    ("base", "raw", "op", "cause"),
    [
        ("gelu", None, "torch.nn.functional.gelu, which raw does not do", "missing activation"),
        ("silu", "sigmoid", "torch.nn.functional.silu (its product), which raw does not do", "activation"),
        ("gelu", "tanh", "torch.nn.functional.gelu vs torch.Tensor.tanh", "activation"),
    ],
)
def test_what_only_moves_numbers_does_not_stand_for_an_op(base: str, raw: str | None, op: str, cause: str) -> None:
    """Raw goes on by turning what base makes new numbers of."""
    torch.manual_seed(0)
    functions = torch.nn.functional
    models = Activated(getattr(functions, base)), Bare(raw and getattr(functions, raw))
    found = padiff.compare(*models, torch.randn(2, 4, 5)).divergence
    assert found is not None
    assert found.raw_path == ""
    assert str(found.op) == op
    assert found.causes[0].name == cause
