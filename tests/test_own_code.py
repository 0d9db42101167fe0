"""What goes wrong in a module's own code is named by the op and by the lines of both sides, without being asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff
from padiff.align import same_thing
from tests.own_code import batch, model
from tests.twins import PAIRS

RIGHT = {
    "eps": ("add", "h = x * torch.rsqrt(mean_square + 1e-5)", "h = x * paddle.rsqrt(mean_square + 1e-5)"),
    "operands": ("matmul", "scores = q @ k.transpose(-1, -2)", "scores = q @ k.transpose([0, 1, 3, 2])"),
    "scale": ("mul", "scores = scores * 0.5", "scores = scores * 0.5"),
    "mask": (
        "triu",
        "mask = torch.ones(5, 5, dtype=torch.bool).triu(1)",
        "mask = paddle.triu(paddle.full([5, 5], -1e9), 1)",
    ),
    "axis": (
        "softmax",
        "weights = torch.nn.functional.softmax(scores, -1)",
        "weights = paddle.nn.functional.softmax(scores, -1)",
    ),
    "transpose": (
        "transpose",
        "context = context.transpose(1, 2)",
        "context = paddle.transpose(context, [0, 2, 1, 3])",
    ),
    "residual": ("add", "return out + x", "return out + x"),
}
"""Bug to what base does there, and its line in torch and in paddle."""

WRONG = {
    "eps": ("add", "h = x * torch.rsqrt(mean_square + 1e-3)", "h = x * paddle.rsqrt(mean_square + 1e-3)"),
    "operands": ("matmul", "scores = k @ q.transpose(-1, -2)", "scores = k @ q.transpose([0, 1, 3, 2])"),
    "scale": ("", 'scores = scores.masked_fill(mask, float("-inf"))', "scores = scores + mask"),
    "mask": (
        "triu",
        "mask = torch.ones(5, 5, dtype=torch.bool).triu(2)",
        "mask = paddle.triu(paddle.full([5, 5], -1e9), 2)",
    ),
    "axis": (
        "softmax",
        "weights = torch.nn.functional.softmax(scores, -2)",
        "weights = paddle.nn.functional.softmax(scores, -2)",
    ),
    "transpose": ("", "context = context.reshape(2, 5, 8)", "context = context.reshape([2, 5, 8])"),
    "residual": ("", "out = self.o(context)", "out = self.o(context)"),
}
"""Bug to what raw does there, "" where it lacks it, and its line in torch and in paddle."""


def thing(name: str) -> str:
    return same_thing(name) if name else ""


def text(line: Any) -> str:
    return "" if line is None else line.text


@pytest.mark.parametrize(("base", "raw", "level"), [*((*pair, "module") for pair in PAIRS), ("torch", "paddle", "op")])
@pytest.mark.parametrize("bug", list(RIGHT))
def test_names_op_and_lines(base: str, raw: str, bug: str, level: Any) -> None:
    result = padiff.compare(model(base), model(raw, bug), batch(), level=level)
    found = result.divergence
    assert found is not None
    assert (found.raw_path, found.phase) == ("second", "forward")
    assert found.op is not None
    right, wrong = RIGHT[bug], WRONG[bug]
    assert (thing(found.op.base), thing(found.op.raw)) == (right[0], wrong[0])
    places = {"torch": 1, "paddle": 2}
    assert text(found.op.base_line) == right[places[base]]
    assert text(found.op.raw_line) == wrong[places[raw]]
    assert [stack[-1].text for stack in found.source] == [right[places[base]], wrong[places[raw]]]


@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_what_raw_does_besides(base: str, raw: str) -> None:
    found = padiff.compare(model(base), model(raw, "extra"), batch()).divergence
    assert found is not None and found.op is not None
    assert (found.op.base, thing(found.op.raw)) == ("", "tanh")
    assert (
        text(found.op.raw_line)
        == {"torch": "context = context.tanh()", "paddle": "context = paddle.tanh(context)"}[raw]
    )


@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_gradients_that_stop(base: str, raw: str) -> None:
    found = padiff.compare(model(base), model(raw, "detach"), batch()).divergence
    assert found is not None and found.op is not None
    assert (found.raw_path, found.phase) == ("second", "backward")
    assert (found.op.base, found.op.raw.rpartition(".")[2]) == ("", "detach")
    assert text(found.op.raw_line) == "weights = weights.detach()"


class Skip(torch.nn.Module):
    """What a child returned is used twice, once around another."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep, self.up = (torch.nn.Linear(size, 4) for size in (4, 4, 8))

    def forward(self, x: Any) -> Any:
        skip = self.down(x)
        return self.up(torch.cat([self.deep(skip).tanh(), skip], -1))


class SkipThatStops(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep, self.up = (paddle.nn.Linear(size, 4) for size in (4, 4, 8))

    def forward(self, x: Any) -> Any:
        skip = self.down(x)
        deep = self.deep(skip).tanh()
        skip = skip.detach()
        return self.up(paddle.concat([deep, skip], -1))


def test_a_skip_that_stops() -> None:
    """The gradient that arrives at the child is base's, put there, and does not speak for the op that stops."""
    found = padiff.compare(Skip(), SkipThatStops(), torch.randn(3, 4)).divergence
    assert found is not None and found.op is not None
    assert (found.raw_path, found.phase) == ("", "backward")
    assert (found.op.base, found.op.raw) == ("", "paddle.Tensor.detach")
    assert text(found.op.raw_line) == "skip = skip.detach()"


@pytest.mark.parametrize(("base", "raw"), PAIRS)
@pytest.mark.parametrize("level", ["module", "op"])
def test_code_that_goes_another_way_is_right(base: str, raw: str, level: Any) -> None:
    result = padiff.compare(model(base), model(raw), batch(), level=level)
    assert result.aligned, str(result)
    assert all(one.agrees for one in result.comparisons)


class Views(torch.nn.Module):
    """Writes through a view."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)
        self.factor = factor

    def forward(self, x: Any) -> Any:
        y = x.clone()
        flat = y.view(-1)
        flat.mul_(self.factor)
        return self.fc(y)


def test_written_through_a_view() -> None:
    x = batch()[0, :, :4]
    found = padiff.compare(Views(2.0), Views(3.0), x).divergence
    assert found is not None and found.op is not None
    assert (found.op.base, found.op.raw) == ("torch.Tensor.mul_", "torch.Tensor.mul_")
    assert text(found.op.raw_line) == "flat.mul_(self.factor)"


class Halved(torch.autograd.Function):
    """An exponential whose gradient is off by half."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return torch.exp(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * torch.exp(ctx.saved_tensors[0]) * 0.5


class HalvedInPaddle(paddle.autograd.PyLayer):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return paddle.exp(x)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * paddle.exp(ctx.saved_tensor()[0]) * 0.5


class TorchExponential(torch.nn.Module):
    def __init__(self, wrong: bool = False) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)
        self.wrong = wrong

    def forward(self, x: Any) -> Any:
        h = self.fc(x)
        return (Halved.apply(h) if self.wrong else torch.exp(h)) + x


class PaddleExponential(paddle.nn.Layer):
    def __init__(self, wrong: bool = False) -> None:
        super().__init__()
        self.fc = paddle.nn.Linear(4, 4)
        self.wrong = wrong

    def forward(self, x: Any) -> Any:
        h = self.fc(x)
        return (HalvedInPaddle.apply(h) if self.wrong else paddle.exp(h)) + x


@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_a_backward_of_its_own(base: str, raw: str) -> None:
    build = {"torch": TorchExponential, "paddle": PaddleExponential}
    found = padiff.compare(build[base](), build[raw](wrong=True), batch()[0, :, :4]).divergence
    assert found is not None and found.op is not None
    assert found.phase == "backward"
    name = {"torch": "Halved", "paddle": "HalvedInPaddle"}[raw]
    assert (thing(found.op.base), found.op.raw) == ("exp", f"{name}.apply")
    assert text(found.op.raw_line) == f"return ({name}.apply(h) if self.wrong else {raw}.exp(h)) + x"


class OwnNorm(torch.nn.LayerNorm):
    """As libraries wrap the framework's layers: the same op, in their own code."""

    def forward(self, x: Any) -> Any:
        return torch.nn.functional.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


class TorchNormed(torch.nn.Module):
    def __init__(self, kind: type[torch.nn.LayerNorm], eps: float) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)
        self.norm = kind(4, eps=eps)

    def forward(self, x: Any) -> Any:
        return self.norm(self.fc(x)) + x


class PaddleNormed(paddle.nn.Layer):
    def __init__(self, eps: float) -> None:
        super().__init__()
        self.fc = paddle.nn.Linear(4, 4)
        self.norm = paddle.nn.LayerNorm(4, epsilon=eps)

    def forward(self, x: Any) -> Any:
        return self.norm(self.fc(x)) + x


@pytest.mark.parametrize("other", ["torch", "paddle"])
@pytest.mark.parametrize("swapped", [False, True])
def test_beside_a_layer_of_the_framework(other: str, swapped: bool) -> None:
    theirs = TorchNormed(torch.nn.LayerNorm, 1e-3) if other == "torch" else PaddleNormed(1e-3)
    ours = TorchNormed(OwnNorm, 1e-5)
    base, raw = (theirs, ours) if swapped else (ours, theirs)
    found = padiff.compare(base, raw, batch()[0, :, :4]).divergence
    assert found is not None and found.op is not None
    assert found.raw_path == "norm"
    assert (thing(found.op.base), thing(found.op.raw)) == ("layer_norm", "layer_norm")
    lines = [text(found.op.base_line), text(found.op.raw_line)]
    assert lines[swapped].startswith("return torch.nn.functional.layer_norm(")
    assert lines[not swapped] == "return self.norm(self.fc(x)) + x"
    assert found.causes[0].name == "eps"


class OwnAttention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (torch.nn.Linear(8, 8) for _ in range(4))
        self.head = torch.nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        q, k, v = (part(x).view(*x.shape[:2], 2, 4).transpose(1, 2) for part in (self.q_proj, self.k_proj, self.v_proj))
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return self.head(self.out_proj(mixed.transpose(1, 2).flatten(2)) + x)


class LayerAttention(paddle.nn.Layer):
    """The framework's, which only this side has: its code counts as the model's."""

    def __init__(self, masked: bool) -> None:
        super().__init__()
        self.attention = paddle.nn.MultiHeadAttention(8, 2)
        self.head = paddle.nn.Linear(8, 3)
        self.masked = masked

    def forward(self, x: Any) -> Any:
        mask = paddle.triu(paddle.full([5, 5], -1e9), 1) if self.masked else None
        return self.head(self.attention(x, x, x, mask) + x)


def test_inside_a_layer_of_the_framework_that_one_side_has() -> None:
    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    assert padiff.compare(OwnAttention().eval(), LayerAttention(False), x).aligned
    found = padiff.compare(OwnAttention().eval(), LayerAttention(True), x).divergence
    assert found is not None and found.op is not None
    assert (found.op.base, thing(found.op.raw)) == ("", "add")
    assert text(found.op.base_line).startswith("mixed = torch.nn.functional.scaled_dot_product_attention(")
    assert text(found.op.raw_line) == "product = product + attn_mask"
    assert found.causes[0].name == "mask"


def test_says_it_in_words() -> None:
    result = padiff.compare(model("torch"), model("paddle", "axis"), batch())
    told = str(result.divergence)
    assert "it starts with the op torch.nn.functional.softmax vs paddle.nn.functional.softmax" in told
    assert "weights = paddle.nn.functional.softmax(scores, -2)" in told
    plain = result.to_dict()["divergence"]["op"]
    assert plain["base"] == "torch.nn.functional.softmax"
    assert plain["raw_line"]["text"] == "weights = paddle.nn.functional.softmax(scores, -2)"


def test_a_rerun_that_fails_spoils_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr("padiff.engine.explaining.inside.first_op", fails)
    found = padiff.compare(model("torch"), model("torch", "axis"), batch()).divergence
    assert found is not None
    assert (found.raw_path, found.op) == ("second", None)


class Functional(torch.nn.Module):
    """A block whose activation is a function, and which has no dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = torch.nn.Linear(6, 8), torch.nn.Linear(8, 6)

    def forward(self, x: Any) -> Any:
        return x + self.fc2(torch.nn.functional.gelu(self.fc1(x)))


class WithDropout(paddle.nn.Layer):
    """The same with a dropout, which corresponds to nothing, behind the activation."""

    def __init__(self, activation: Any) -> None:
        super().__init__()
        self.linear1, self.linear2 = paddle.nn.Linear(6, 8), paddle.nn.Linear(8, 6)
        self.dropout, self.activation = paddle.nn.Dropout(0.1), activation

    def forward(self, x: Any) -> Any:
        return x + self.linear2(self.dropout(self.activation(self.linear1(x))))


def test_an_op_before_a_module_without_partner_is_not_the_fault_of_that_module() -> None:
    right, wrong = paddle.nn.functional.gelu, paddle.nn.functional.relu
    base = torch.nn.Sequential(Functional(), Functional()).eval()
    x = np.random.default_rng(0).normal(size=(3, 6)).astype("float32")
    raw = paddle.nn.Sequential(WithDropout(right), WithDropout(right))
    raw.eval()
    assert padiff.compare(base, raw, x).aligned
    raw[1].activation = wrong
    result = padiff.compare(base, raw, x)
    assert [one.raw_path for one in result.divergences] == ["1"], str(result)
    (found,) = result.divergences
    assert found.op is not None
    assert (found.op.base, found.op.raw) == ("torch.nn.functional.gelu", "paddle.nn.functional.relu")
    assert found.causes[0].name == "activation"


class Length(torch.nn.Module):
    """How long its inputs are."""

    def forward(self, x: Any) -> Any:
        return torch.sqrt(x.square().sum(-1, keepdim=True) + 1e-3)


class PaddleLength(paddle.nn.Layer):
    """The same, with another number in its code."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.length_of_nothing = number

    def forward(self, x: Any) -> Any:
        return paddle.sqrt((x * x).sum(-1, keepdim=True) + self.length_of_nothing)


@pytest.mark.parametrize("number", [1e-2, 1e-4])
def test_a_number_that_ops_of_two_frameworks_are_given(number: float) -> None:
    """They name their arguments otherwise, but each is given one."""
    base = torch.nn.Sequential(torch.nn.Linear(6, 6), Length())
    x = np.random.default_rng(0).normal(size=(3, 6)).astype("float32")
    assert padiff.compare(base, paddle.nn.Sequential(paddle.nn.Linear(6, 6), PaddleLength(1e-3)), x).aligned
    result = padiff.compare(base, paddle.nn.Sequential(paddle.nn.Linear(6, 6), PaddleLength(number)), x)
    assert [one.raw_path for one in result.divergences] == ["1"], str(result)
    cause = next(cause for cause in result.divergences[0].causes if cause.name == "eps")
    assert f"is given {number!r} in raw and 0.001 in base, and the same tensors" in cause.evidence
