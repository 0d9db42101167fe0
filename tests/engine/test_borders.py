"""Two authors draw the border of a module at different places, and one of them has made a mistake elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
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
