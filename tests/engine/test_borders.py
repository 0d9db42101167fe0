"""Two authors draw the border of a module at different places, and one of them has made a mistake elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff

WIDTH, EXPERTS, KERNEL = 8, 3, 4
ROWS = np.random.default_rng(0).normal(size=(2, 6, WIDTH)).astype("float32")


class Gate(torch.nn.Module):
    """Returns shares; the other author's returns scores."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = torch.nn.Linear(WIDTH, EXPERTS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.scores(x), -1)


class TorchMixture(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()
        self.experts = torch.nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH) * 0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = torch.tanh(torch.einsum("bni,eio->bneo", x, self.experts))
        return (made * self.gate(x)[..., None]).sum(-2)


class TorchBlock(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.mixture = torch.nn.Linear(WIDTH, WIDTH), TorchMixture()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x + torch.sin(self.first(x))
        return h + self.mixture(h)


class TorchModel(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([TorchBlock() for _ in range(2)])
        self.scale = torch.nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return torch.tanh(x) * self.scale


class Scores(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.linear = paddle.nn.Linear(WIDTH, EXPERTS)

    def forward(self, x: Any) -> Any:
        return self.linear(x)


class PaddleMixture(paddle.nn.Layer):
    shares: Callable[[Any], Any] = staticmethod(paddle.nn.functional.softmax)

    def __init__(self) -> None:
        super().__init__()
        self.router = Scores()
        self.stack = self.create_parameter([EXPERTS, WIDTH, WIDTH])

    def forward(self, x: Any) -> Any:
        shares = self.shares(self.router(x))
        made = paddle.tanh(paddle.einsum("bni,eio->bneo", x, self.stack))
        return paddle.einsum("bneo,bne->bno", made, shares)


class PaddleBlock(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = paddle.nn.Linear(WIDTH, WIDTH), PaddleMixture()

    def forward(self, x: Any) -> Any:
        h = x + paddle.sin(self.a(x))
        return h + self.b(h)


class ForgetfulBlock(PaddleBlock):
    """Adds to what it was given, not to what it made of that."""

    def forward(self, x: Any) -> Any:
        h = x + paddle.sin(self.a(x))
        return x + self.b(h)


class PaddleModel(paddle.nn.Layer):
    def __init__(self, block: Callable[[], Any] = PaddleBlock) -> None:
        super().__init__()
        self.layers = paddle.nn.LayerList([block() for _ in range(2)])
        self.gain = self.create_parameter([WIDTH])

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return paddle.tanh(x) * self.gain


def base() -> Any:
    torch.manual_seed(0)
    return TorchModel()


def test_a_gate_may_return_scores() -> None:
    assert padiff.compare(base(), PaddleModel(), ROWS).aligned


def test_what_ends_elsewhere_is_not_blamed_for_what_comes_after() -> None:
    result = padiff.compare(base(), PaddleModel(ForgetfulBlock), ROWS)
    assert [one.raw_path for one in result.divergences] == ["layers.0", "layers.1"]
    assert result.divergence is not None
    assert result.divergence.phase == "forward"


def test_what_ends_elsewhere_is_not_blamed_for_what_is_wrong_around_it() -> None:
    raw = PaddleModel()
    raw.layers[1].b.shares = lambda scores: paddle.nn.functional.softmax(scores / 2)
    result = padiff.compare(base(), raw, ROWS)
    assert [one.raw_path for one in result.divergences] == ["layers.1.b"]


class TorchCausal(torch.nn.Module):
    """Pads on both sides, and crops."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv1d(WIDTH, WIDTH, KERNEL, padding=KERNEL - 1)
        self.inner, self.out = torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = torch.tanh(self.conv(x.transpose(1, 2))[..., : x.shape[1]]).transpose(1, 2)
        return self.out(torch.nn.functional.silu(self.inner(made)))


class PaddleCausal(paddle.nn.Layer):
    """Pads before."""

    left = KERNEL - 1
    activation: Callable[[Any], Any] = staticmethod(paddle.nn.functional.silu)

    def __init__(self) -> None:
        super().__init__()
        self.taps = paddle.nn.Conv1D(WIDTH, WIDTH, KERNEL)
        self.up, self.down = paddle.nn.Linear(WIDTH, 2 * WIDTH), paddle.nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        padded = paddle.nn.functional.pad(
            x.transpose([0, 2, 1]), [self.left, KERNEL - 1 - self.left], data_format="NCL"
        )
        made = paddle.tanh(self.taps(padded)).transpose([0, 2, 1])
        return self.down(self.activation(self.up(made)))


def causal() -> tuple[Any, Any]:
    torch.manual_seed(0)
    return TorchCausal(), PaddleCausal()


def test_a_convolution_may_be_padded_before_or_cropped_after() -> None:
    result = padiff.compare(*causal(), ROWS)
    assert result.aligned
    assert result.coverage["parameters"] == 1


def test_a_convolution_padded_before_is_not_blamed_for_what_comes_after() -> None:
    one, other = causal()
    other.activation = paddle.nn.functional.relu
    result = padiff.compare(one, other, ROWS)
    assert [place.raw_path for place in result.divergences] == [""]


def test_a_convolution_padded_on_the_wrong_side_is_seen() -> None:
    one, other = causal()
    other.left = 0
    result = padiff.compare(one, other, ROWS)
    assert result.divergence is not None
    assert result.divergence.raw_path in ("taps", "")


class TorchAttention(torch.nn.Module):
    """Adds what it made to what it is given besides; its projections lie head by head in one."""

    def __init__(self) -> None:
        super().__init__()
        self.query_key_value, self.dense = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> Any:
        q, k, v = self.query_key_value(x).unflatten(-1, (2, 3, 4)).transpose(1, 2).unbind(-2)
        weights = torch.softmax(torch.zeros(1).baddbmm(q.flatten(0, 1), k.flatten(0, 1).mT, alpha=0.5), -1)
        made = (weights @ v.flatten(0, 1)).unflatten(0, (2, 2)).transpose(1, 2).flatten(2)
        return residual + self.dense(made), weights


class TorchLayer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.attention, self.up, self.down = (
            TorchAttention(),
            torch.nn.Linear(WIDTH, 2 * WIDTH),
            torch.nn.Linear(2 * WIDTH, WIDTH),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, _ = self.attention(self.norm1(x), x)
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))


class PaddleAttention(paddle.nn.Layer):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (paddle.nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.scale = 0.25 if bug == "scale" else 0.5

    def forward(self, x: Any) -> Any:
        q, k, v = (one(x).reshape([2, 6, 2, 4]).transpose([0, 2, 1, 3]) for one in (self.q, self.k, self.v))
        scores = paddle.matmul(q, k, transpose_y=True)
        scores = scores * self.scale
        return self.o((paddle.nn.functional.softmax(scores, -1) @ v).transpose([0, 2, 1, 3]).flatten(2))


class PaddleForward(paddle.nn.Layer):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.a, self.b, self.bug = paddle.nn.Linear(WIDTH, 2 * WIDTH), paddle.nn.Linear(2 * WIDTH, WIDTH), bug

    def forward(self, x: Any) -> Any:
        return self.b(paddle.nn.functional.gelu(self.a(x), approximate=self.bug == "gelu"))


class PaddleLayer(paddle.nn.Layer):
    """Adds outside of its attention, and what it should not."""

    def __init__(self, bug: str) -> None:
        super().__init__()
        self.ln1, self.ln2, self.bug = paddle.nn.LayerNorm(WIDTH), paddle.nn.LayerNorm(WIDTH), bug
        self.attn, self.ffn = PaddleAttention(bug), PaddleForward(bug)

    def forward(self, x: Any) -> Any:
        normed = self.ln1(x)
        x = (normed if self.bug == "residual" else x) + self.attn(normed)
        return x + self.ffn(self.ln2(x))


@pytest.mark.parametrize(
    ("bug", "path", "op"),
    [
        ("gelu", "1.ffn", "paddle.nn.functional.gelu"),
        ("residual", "1", "paddle.Tensor.__add__"),
        ("scale", "1.attn", "paddle.Tensor.__mul__"),
    ],
)
def test_a_residual_that_is_added_inside_or_outside(bug: str, path: str, op: str) -> None:
    """What base's attention returns is never what raw's does; the layers in it tell how the projections lie."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(TorchLayer(), TorchLayer())
    assert padiff.compare(model, paddle.nn.Sequential(PaddleLayer(""), PaddleLayer("")), ROWS).aligned
    result = padiff.compare(model, paddle.nn.Sequential(PaddleLayer(""), PaddleLayer(bug)), ROWS)
    assert result.divergence is not None and result.divergence.op is not None
    assert (result.divergence.raw_path, result.divergence.phase) == (path, "forward")
    assert result.divergence.op.raw == op


class Router(torch.nn.Module):
    """Returns scores, and keeps what is added to them when experts are chosen."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(EXPERTS, WIDTH))
        self.register_buffer("correction", torch.randn(EXPERTS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.weight)


class TorchRouted(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router, self.shared = Router(), torch.nn.Linear(WIDTH, WIDTH)
        self.stack = torch.nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH) * 0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.router(x).sigmoid()
        chosen = (scores + self.router.correction).topk(2)[1]
        weights = scores.gather(-1, chosen)
        weights = weights / weights.sum(-1, keepdim=True)
        made = torch.zeros_like(x)
        for place in range(2):
            made = made + weights[..., place, None] * (self.stack[chosen[..., place]] @ x[..., None])[..., 0]
        return made + self.shared(x)


class Choice(paddle.nn.Layer):
    """Chooses, too."""

    def __init__(self, bug: str) -> None:
        super().__init__()
        self.weight, self.bug = self.create_parameter([EXPERTS, WIDTH]), bug
        self.register_buffer("bias", paddle.zeros([EXPERTS]))

    def forward(self, x: Any) -> Any:
        scores = paddle.matmul(x, self.weight.T)
        scores = paddle.nn.functional.softmax(scores, -1) if self.bug == "softmax" else paddle.sigmoid(scores)
        chosen = (scores + self.bias).topk(2)[1]
        weights = scores.take_along_axis(chosen, -1)
        return chosen, weights / weights.sum(-1, keepdim=True)


class PaddleRouted(paddle.nn.Layer):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.gate, self.common, self.bug = Choice(bug), paddle.nn.Linear(WIDTH, WIDTH), bug
        self.experts = paddle.nn.LayerList([paddle.nn.Linear(WIDTH, WIDTH, bias_attr=False) for _ in range(EXPERTS)])

    def forward(self, x: Any) -> Any:
        chosen, weights = self.gate(x)
        made = paddle.zeros_like(x)
        for place, expert in enumerate(self.experts):
            made = made + expert(x) * (weights * (chosen == place).astype("float32")).sum(-1, keepdim=True)
        return made if self.bug == "shared" else made + self.common(x)


@pytest.mark.parametrize(("bug", "path"), [("softmax", "1.gate"), ("shared", "1")])
def test_a_router_that_chooses_too(bug: str, path: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), TorchRouted())
    right = padiff.compare(model, paddle.nn.Sequential(paddle.nn.Linear(WIDTH, WIDTH), PaddleRouted("")), ROWS)
    assert right.aligned, str(right.divergence)
    raw = paddle.nn.Sequential(paddle.nn.Linear(WIDTH, WIDTH), PaddleRouted(bug))
    found = padiff.compare(model, raw, ROWS).divergence
    assert found is not None
    assert (found.raw_path, found.phase) == (path, "forward")


class TorchStage(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(WIDTH, WIDTH), torch.nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(torch.tanh(self.linear(x)))


class PaddleStage(paddle.nn.Layer):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.fc, self.ln, self.bug = paddle.nn.Linear(WIDTH, WIDTH), paddle.nn.LayerNorm(WIDTH), bug

    def forward(self, x: Any) -> Any:
        made = self.ln(paddle.tanh(self.fc(x)))
        return paddle.nn.functional.relu(made) if self.bug else made


def test_who_rectifies_what_is_handed_on_is_wrong_himself() -> None:
    """Nobody rectifies after it: the next stage is given what this one returned, on both sides."""
    torch.manual_seed(0)
    base = torch.nn.Sequential(TorchStage(), TorchStage())
    assert padiff.compare(base, paddle.nn.Sequential(PaddleStage(""), PaddleStage("")), ROWS).aligned
    found = padiff.compare(base, paddle.nn.Sequential(PaddleStage("relu"), PaddleStage("")), ROWS).divergence
    assert found is not None
    assert (found.raw_path, found.phase) == ("0", "forward")
