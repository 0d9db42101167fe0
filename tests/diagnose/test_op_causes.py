"""Why a module's own code is wrong: told by the op it starts with, where the module's tensors alone don't tell."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest
import torch
from torch import nn
from torch.nn import functional

import padiff
from padiff.engine.explaining import why
from padiff.records import Divergence

Ways = dict[str, Any]


@pytest.fixture(autouse=True)
def unforgiving(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes wrong while a cause is looked for shows here."""
    monkeypatch.setattr(why, "FORGIVEN", ())
    monkeypatch.setattr(sys.modules["padiff.diagnose.causes.explain"], "FORGIVEN", ())


class Kernel(nn.Module):
    """A dynamic kernel of which nobody returns the middle."""

    def __init__(self, change: Callable[..., Any]) -> None:
        super().__init__()
        self.first, self.gate, self.last = nn.Linear(8, 8), nn.Linear(8, 1), nn.Linear(8, 8)
        self.inner = nn.LayerNorm(8)
        self.change = change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.change(self, self.first(x), self.gate(x))
        return self.last((made.abs() + 0.3).log() * made)


def found(right: Callable[..., Any], wrong: Callable[..., Any]) -> Divergence:
    torch.manual_seed(0)
    base, raw = Kernel(right), Kernel(wrong)
    x = torch.randn(3, 6, 8)
    divergence = padiff.compare(base, raw, x, phase="forward").divergence
    assert divergence is not None
    assert divergence.raw_path == ""
    return divergence


def plain(module: Kernel, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    return x * gate.sigmoid()


def unrotated(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    angles = torch.arange(6.0)[:, None] * 10.0 ** -(torch.arange(4.0) / 4)
    table = torch.cat([angles, angles], -1)
    return table.cos(), table.sin()


def rotated(sign: float, pairing: str) -> Callable[..., Any]:
    def turned(module: Kernel, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        cos, sin = unrotated(x)
        one, two = (x[..., :4], x[..., 4:]) if pairing == "halves" else (x[..., ::2], x[..., 1::2])
        back = torch.cat([-sign * two, sign * one], -1)
        if pairing != "halves":
            back = torch.stack([-sign * two, sign * one], -1).flatten(-2)
        return (x * cos + back * sin) * gate

    return turned


NEVER = torch.tensor([0.0] * 6 + [-1e5] * 2)
LATER = NEVER.roll(1).repeat(18, 1)

CASES: dict[str, tuple[str, Callable[..., Any], Callable[..., Any]]] = {
    "an activation is missing": ("missing activation", plain, lambda m, x, g: x * g),
    "another activation": ("activation", plain, lambda m, x, g: x * g.tanh()),
    "an extra activation": ("extra activation", lambda m, x, g: x * g, plain),
    "another axis": ("axis", lambda m, x, g: x.softmax(-1) * g, lambda m, x, g: x.softmax(dim=1) * g),
    "a narrow softmax": (
        "softmax dtype",
        lambda m, x, g: functional.softmax(x, dim=-1) * g,
        lambda m, x, g: functional.softmax(x, dim=-1, dtype=torch.bfloat16).float() * g,
    ),
    "tensors in another order": (
        "head order",
        lambda m, x, g: torch.cat([x[..., :4] * g, x[..., 4:]], -1),
        lambda m, x, g: torch.cat([x[..., 4:], x[..., :4] * g], -1),
    ),
    "another number added": ("eps", lambda m, x, g: x / (g * g + 1e-6), lambda m, x, g: x / (g * g + 1e-2)),
    "another factor": ("scale", lambda m, x, g: x * (g * 0.5).exp(), lambda m, x, g: x * (g * 0.35).exp()),
    "a child is left out": ("left out", lambda m, x, g: m.inner(x).exp() * g, lambda m, x, g: x.exp() * g),
    "another slice": ("slice", lambda m, x, g: x * x[:, :1].exp() * g, lambda m, x, g: x * x[:, 2:3].exp() * g),
    "another bound": (
        "clamp",
        lambda m, x, g: x * g * m.inner.weight[:1].clamp(max=0.4),
        lambda m, x, g: x * g * m.inner.weight[:1].clamp(max=0.3),
    ),
    "another clamp": ("clamp", lambda m, x, g: x.clamp(-0.4, 0.4) * g, lambda m, x, g: x.clamp(-0.3, 0.3) * g),
    "a product for a sum": ("other op", lambda m, x, g: (x * g).exp(), lambda m, x, g: (x + g).exp()),
    "a table the other way round": (
        "transposed",
        lambda m, x, g: x * (x[:, :, :6].exp() + x[:, :, :6].sin()).exp().mean(-1, keepdim=True) * g,
        lambda m, x, g: x * (x[:, :, :6].exp() + x[:, :, :6].sin().mT).exp().mean(-1, keepdim=True) * g,
    ),
    "parts of another order": (
        "head order",
        lambda m, x, g: x * x.reshape(3, 6, 2, 4).chunk(2, -1)[0].flatten(2).exp().sum(-1, keepdim=True) * g,
        lambda m, x, g: x * x.chunk(2, -1)[0].reshape(3, 6, 2, 2).flatten(2).exp().sum(-1, keepdim=True) * g,
    ),
    "a mean for a maximum": (
        "reduction",
        lambda m, x, g: x * x.mean(1, keepdim=True).exp() * g,
        lambda m, x, g: x * x.amax(1, keepdim=True).exp() * g,
    ),
    "a factor on one side only": ("scale", lambda m, x, g: x * (g * 1.1).exp(), lambda m, x, g: x * g.exp()),
    "a factor where the other side only goes on": (
        "scale",
        lambda m, x, g: (x.mT / 1.7).exp().mT * g,
        lambda m, x, g: (x / 1.7).mT.div(0.5).exp().mT * g,
    ),
    "a number added on one side only": ("offset", lambda m, x, g: x * g.exp(), lambda m, x, g: x * (g + 0.1).exp()),
    "a mask before a layer made on the spot": (
        "mask",
        lambda m, x, g: nn.Softmax(dim=-1)(x + NEVER) * g,
        lambda m, x, g: nn.Softmax(dim=-1)(x) * g,
    ),
    "a mask a step later, in another layout": (
        "mask",
        lambda m, x, g: (x.exp() + NEVER).softmax(-1) * g,
        lambda m, x, g: (x.exp().flatten(0, 1) + LATER).softmax(-1).view(3, 6, 8) * g,
    ),
    "a factor in a table": (
        "scale",
        lambda m, x, g: x * (torch.arange(1.0, 9.0) / 8).sin() * g,
        lambda m, x, g: x * (torch.arange(1.0, 9.0) / 8 * 1.3).sin() * g,
    ),
    "turned the other way": ("rope sign", rotated(1.0, "halves"), rotated(-1.0, "halves")),
    "pairs formed otherwise": ("rope pairing", rotated(1.0, "halves"), rotated(1.0, "neighbours")),
}


@pytest.mark.parametrize("case", CASES)
def test_cause(case: str) -> None:
    name, right, wrong = CASES[case]
    causes = found(right, wrong).causes
    assert name in [cause.name for cause in causes[:3]], "\n".join(map(str, causes)) or "no cause"


def test_evidence_names_the_argument() -> None:
    divergence = found(lambda m, x, g: x.roll(1, 1) * g, lambda m, x, g: x.roll(2, 1) * g)
    told = next(cause for cause in divergence.causes if "shifts" in cause.evidence)
    assert "is given shifts 2 in raw and 1 in base, and the same tensors" in told.evidence


def test_evidence_names_the_child() -> None:
    def swapped(module: Kernel, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return module.inner(x).exp() * x.exp() + gate

    def right(module: Kernel, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return x.exp() * (2 * module.inner(x)).exp() + gate

    causes = found(right, swapped).causes
    assert causes
    assert all(0 < cause.confidence <= 1 for cause in causes)


class Paddled(paddle.nn.Layer):
    """The same in paddle, whose compiled ops tell no names: those of the public function are taken."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.first, self.last = paddle.nn.Linear(8, 8), paddle.nn.Linear(8, 8)
        self.axis = axis

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        made = paddle.cumsum(self.first(x), axis=1 if self.axis == 1 else 2)
        return self.last(made * made)


def test_arguments_of_paddle() -> None:
    base, raw = Paddled(1), Paddled(2)
    x = np.random.default_rng(0).normal(size=(3, 6, 8)).astype("float32")
    divergence = padiff.compare(base, raw, x, phase="forward").divergence
    assert divergence is not None
    assert "axis" in [cause.name for cause in divergence.causes], "\n".join(map(str, divergence.causes))


def test_what_is_missing_before_what_follows() -> None:
    """A number that is left out is not the function that comes after it."""
    divergence = found(lambda m, x, g: x * (0.5 * g).exp(), lambda m, x, g: x * g.exp())
    assert divergence.op is not None
    assert (divergence.op.base, divergence.op.raw) == ("torch.Tensor.mul", "")
    assert divergence.causes[0].name == "scale"
    assert str(divergence).endswith(f"cause: {divergence.causes[0]}")


def test_a_shared_factor_tells_what_is_missing() -> None:
    """Base divides before it multiplies by the same thing as raw."""

    def right(module: Kernel, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        weights = x.softmax(-1)
        part = weights.topk(2, -1)[0]
        return x * ((part / part.sum(-1, keepdim=True)) * x[..., :2]).sum(-1, keepdim=True) * gate

    def wrong(module: Kernel, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        part = x.softmax(-1).topk(2, -1)[0]
        return x * (part * x[..., :2]).sum(-1, keepdim=True) * gate

    divergence = found(right, wrong)
    assert divergence.op is not None
    assert divergence.op.raw == ""
    assert "left out" in [cause.name for cause in divergence.causes]


class Squeezed(nn.Module):
    """Gates channels by a module, on pictures of one pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.squeeze, self.excite, self.gate = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1), nn.Hardsigmoid()

    def forward(self, x: Any) -> Any:
        mean = x.mean((2, 3), keepdim=True)
        return x * self.gate(self.excite(torch.relu(self.squeeze(mean))))


class SqueezedFlat(nn.Module):
    """By a function, on rows."""

    def __init__(self, gate: Any) -> None:
        super().__init__()
        self.squeeze, self.excite, self.gate = nn.Linear(8, 4), nn.Linear(4, 8), gate

    def forward(self, x: Any) -> Any:
        gate = self.gate(self.excite(torch.relu(self.squeeze(x.mean((2, 3))))))
        return x * gate[:, :, None, None]


def test_an_activation_as_module_and_another_as_function() -> None:
    torch.manual_seed(0)
    x = np.random.default_rng(0).normal(size=(2, 8, 5, 5)).astype("float32")
    base = nn.Sequential(Squeezed())
    assert padiff.compare(base, nn.Sequential(SqueezedFlat(nn.functional.hardsigmoid)), x).aligned
    result = padiff.compare(base, nn.Sequential(SqueezedFlat(torch.sigmoid)), x)
    assert result.divergence is not None
    assert result.divergence.raw_path == "0", str(result)
    assert result.divergence.causes[0].name == "activation", result.divergence.causes
