"""Code that goes wrong in forward is watched in the runs in which its place is found: no model runs again for it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
import torch

import padiff
from tests.own_code import batch, model
from tests.twins import PAIRS, TorchScaleGradient


def compared(base: Any, raw: Any, inputs: Any) -> tuple[padiff.Result, list[int]]:
    """The result, and how often each model was called."""
    called = [0, 0]

    def count(side: int) -> None:
        called[side] += 1

    with ExitStack() as stack:
        for side, one in enumerate((base, raw)):
            stack.callback(one.register_forward_pre_hook(lambda *_, side=side: count(side)).remove)
        return padiff.compare(base, raw, inputs), called


@pytest.mark.parametrize(("base", "raw"), PAIRS)
@pytest.mark.parametrize("bug", ["scale", "axis", "residual"])
def test_no_run_for_the_op(base: str, raw: str, bug: str) -> None:
    result, called = compared(model(base), model(raw, bug), batch())
    assert result.divergence is not None
    assert result.divergence.raw_path == "second"
    assert result.divergence.op is not None
    assert called == [4, 3]  # raw once more, up to the place, since its setting ``bug`` differs, and is tried


class Scale(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x * 3.0


class Apart(torch.nn.Module):
    """Scales in a module of its own, then goes on with that."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.scale, self.two = torch.nn.Linear(8, 8), Scale(), torch.nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        h = self.scale(self.one(x))
        h = torch.tanh(h)
        return self.two(h)


class Together(torch.nn.Module):
    """The same in one place; takes a sigmoid for the hyperbolic tangent where it is wrong."""

    def __init__(self, *, wrong: bool) -> None:
        super().__init__()
        self.one, self.two, self.wrong = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), wrong

    def forward(self, x: Any) -> Any:
        h = self.one(x) * 3.0
        h = torch.sigmoid(h) if self.wrong else torch.tanh(h)
        return self.two(h)


@pytest.mark.parametrize("around", [False, True])
def test_what_a_module_without_partner_made(around: bool) -> None:
    """Base's tensors are copied at the borders of its calls in that run: what its code makes of a copy is made of what
    was returned there."""
    models = Apart(), Together(wrong=True)
    base, raw = map(torch.nn.Sequential, models) if around else models
    result, called = compared(base, raw, torch.linspace(-1, 1, 24).view(3, 8))
    found = result.divergence
    assert found is not None
    assert found.raw_path == ("0" if around else "")
    assert found.op is not None
    assert (found.op.base, found.op.raw) == ("torch.tanh", "torch.sigmoid")
    assert called[0] <= 4
    assert called[1] <= 3  # how raw uses its tensors was taken for granted


def test_places_after_the_first_are_looked_into() -> None:
    """The second of two faults is not watched beforehand; its op is known all the same."""

    def two(*, wrong: bool) -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Sequential(Together(wrong=wrong), Together(wrong=False), Together(wrong=wrong))

    result, _ = compared(two(wrong=False), two(wrong=True), torch.linspace(-1, 1, 24).view(3, 8))
    assert [one.raw_path for one in result.divergences] == ["0", "2"]
    assert all(one.op is not None and one.op.raw == "torch.sigmoid" for one in result.divergences)


class First(Together):
    """Right in forward."""

    def __init__(self) -> None:
        super().__init__(wrong=False)

    def forward(self, x: Any) -> Any:
        return super().forward(TorchScaleGradient.apply(x))


class Between(First):
    def forward(self, x: Any) -> Any:
        h = torch.tanh(self.one(x) * 3.0)
        return self.two(TorchScaleGradient.apply(h))


@pytest.mark.parametrize("wrong", [First, Between])
@pytest.mark.parametrize("block", [0, 1, 2])
def test_no_run_for_the_op_in_backward(wrong: type[First], block: int) -> None:
    """Nor where forward agrees: the last module whose parameters' gradients differ is watched, with what follows it."""
    torch.manual_seed(0)
    base = torch.nn.Sequential(*(Together(wrong=False) for _ in range(3)))
    raw = torch.nn.Sequential(*(wrong() if number == block else Together(wrong=False) for number in range(3)))
    result, called = compared(base, raw, torch.linspace(-1, 1, 24).view(3, 8).requires_grad_())
    found = result.divergence
    assert found is not None
    assert (found.raw_path, found.phase) == (str(block), "backward")
    assert found.op is not None
    assert found.op.raw == "TorchScaleGradient.apply"
    assert called == [4, 2]
