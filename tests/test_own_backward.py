"""Functions with a backward of their own, as fused kernels come: what they get wrong is told where they are called."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff
from tests.twins import PAIRS


class TorchNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bug: str) -> Any:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        ctx.save_for_backward(x, weight, scale)
        ctx.bug = bug
        return x * scale * weight * (1.01 if bug == "forward" else 1.0)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,), (x, weight, scale) = gradients, ctx.saved_tensors
        along = (gradient * weight * x).mean(-1, keepdim=True)
        if ctx.bug == "input":
            along = along * x.shape[-1]
        of_weight = gradient * x * (1.0 if ctx.bug == "weight" else scale)
        return scale * (gradient * weight - x * scale**2 * along), of_weight.sum((0, 1)), None


class TorchFused(torch.nn.Module):
    def __init__(self, bug: str = "") -> None:
        super().__init__()
        self.weight, self.bug = torch.nn.Parameter(torch.linspace(0.5, 1.5, 6)), bug

    def forward(self, x: Any) -> Any:
        return TorchNorm.apply(x, self.weight, self.bug)


class TorchPlain(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, 6))

    def forward(self, x: Any) -> Any:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class PaddleNorm(paddle.autograd.PyLayer):
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bug: str) -> Any:
        scale = paddle.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        ctx.save_for_backward(x, weight, scale)
        ctx.bug = bug
        return x * scale * weight * (1.01 if bug == "forward" else 1.0)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        x, weight, scale = ctx.saved_tensor()
        along = (gradient * weight * x).mean(-1, keepdim=True)
        if ctx.bug == "input":
            along = along * x.shape[-1]
        of_weight = gradient * x * (1.0 if ctx.bug == "weight" else scale)
        return scale * (gradient * weight - x * scale**2 * along), of_weight.sum([0, 1])


class PaddleFused(paddle.nn.Layer):
    def __init__(self, bug: str = "") -> None:
        super().__init__()
        self.weight, self.bug = self.create_parameter([6]), bug

    def forward(self, x: Any) -> Any:
        return PaddleNorm.apply(x, self.weight, self.bug)


class PaddlePlain(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.weight = self.create_parameter([6])

    def forward(self, x: Any) -> Any:
        return x * paddle.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class TorchModel(torch.nn.Module):
    """One of the norms is fused, or none."""

    def __init__(self, *bugs: str | None) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(6, 6), torch.nn.Linear(6, 4)
        self.norms = torch.nn.ModuleList(TorchPlain() if bug is None else TorchFused(bug) for bug in bugs)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        for norm in self.norms:
            x = x + norm(x)
        return self.last(x)


class PaddleModel(paddle.nn.Layer):
    def __init__(self, *bugs: str | None) -> None:
        super().__init__()
        self.first, self.last = paddle.nn.Linear(6, 6), paddle.nn.Linear(6, 4)
        self.norms = paddle.nn.LayerList([PaddlePlain() if bug is None else PaddleFused(bug) for bug in bugs])

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        for norm in self.norms:
            x = x + norm(x)
        return self.last(x)


MODELS: dict[str, Any] = {"torch": TorchModel, "paddle": PaddleModel}
NAMES = {"torch": "TorchNorm", "paddle": "PaddleNorm"}


def compared(base: str, raw: str, bug: str, **more: Any) -> padiff.Result:
    x = np.random.default_rng(0).normal(size=(2, 3, 6)).astype("float32")
    torch.manual_seed(0)
    return padiff.compare(MODELS[base](None, None, None), MODELS[raw]("", bug, ""), x, **more)


@pytest.mark.parametrize("level", ["module", "op"])
@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_a_right_one_agrees(base: str, raw: str, level: Any) -> None:
    assert compared(base, raw, "", level=level).aligned


@pytest.mark.parametrize(("bug", "phase"), [("input", "backward"), ("weight", "gradient")])
@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_a_wrong_backward_is_told_where_it_is_called(base: str, raw: str, bug: str, phase: str) -> None:
    found = compared(base, raw, bug).divergence
    assert found is not None
    assert (found.raw_path, found.phase) == ("norms.1", phase)
    assert found.op is not None and found.op.raw_line is not None
    assert found.op.raw == f"{NAMES[raw]}.apply"
    assert found.op.raw_line.text == f"return {NAMES[raw]}.apply(x, self.weight, self.bug)"
    assert found.causes[0].name == "own backward"
    assert f"{NAMES[raw]} has a backward of its own (test_own_backward.py:" in found.causes[0].evidence
    assert not any(cause.name == "no gradient" for cause in found.causes)


@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_a_wrong_forward_is_told_inside(base: str, raw: str) -> None:
    found = compared(base, raw, "forward").divergence
    assert found is not None
    assert (found.raw_path, found.phase) == ("norms.1", "forward")
    assert found.op is not None and found.op.raw_line is not None
    assert found.op.raw_line.text == 'return x * scale * weight * (1.01 if bug == "forward" else 1.0)'


def test_apply_is_put_back() -> None:
    before = vars(torch.autograd.Function)["apply"], "apply" in vars(paddle.autograd.PyLayer)
    compared("torch", "torch", "input")
    compared("paddle", "paddle", "input")
    assert (vars(torch.autograd.Function)["apply"], "apply" in vars(paddle.autograd.PyLayer)) == before


LABELS = np.arange(6) % 4


class TorchEntropy(torch.autograd.Function):
    """A fused cross entropy that forgets in backward to divide by the number of rows."""

    @staticmethod
    def forward(ctx: Any, logits: Any) -> Any:
        chances, labels = torch.softmax(logits, -1), torch.from_numpy(LABELS)[:, None]
        ctx.save_for_backward(chances - torch.zeros_like(chances).scatter(1, labels, 1.0))
        return -chances.gather(1, labels).log().mean()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return ctx.saved_tensors[0] * gradients[0]


class PaddleEntropy(paddle.autograd.PyLayer):
    @staticmethod
    def forward(ctx: Any, logits: Any) -> Any:
        chances, labels = paddle.nn.functional.softmax(logits, -1), paddle.to_tensor(LABELS)
        ctx.save_for_backward(chances - paddle.nn.functional.one_hot(labels, 4))
        return -paddle.take_along_axis(chances, labels[:, None], 1).log().mean()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return ctx.saved_tensor()[0] * gradient


def entropy(framework: str, fused: bool) -> Any:
    """A cross entropy of the framework's, or the fused one."""
    if framework == "torch":
        plain = lambda out: torch.nn.functional.cross_entropy(out.reshape(-1, 4), torch.from_numpy(LABELS))  # noqa: E731
        return (lambda out: TorchEntropy.apply(out.reshape(-1, 4))) if fused else plain
    plain = lambda out: paddle.nn.functional.cross_entropy(out.reshape([-1, 4]), paddle.to_tensor(LABELS))  # noqa: E731
    return (lambda out: PaddleEntropy.apply(out.reshape([-1, 4]))) if fused else plain


@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_a_loss_with_a_wrong_backward(base: str, raw: str) -> None:
    losses = (entropy(base, False), entropy(raw, True))
    found = compared(base, raw, "", loss=losses).divergence
    assert found is not None
    assert (found.raw_path, found.phase, found.op) == ("", "backward", None)
    assert found.note == (
        "outputs and loss agree and the gradient that the loss sends back doesn't: look at the loss functions"
    )
    assert "base divides by 6 and raw by 1" in found.causes[0].evidence
    assert {cause.name for cause in found.causes} == {"reduction", "scale"}
