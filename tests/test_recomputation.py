"""Checkpoints: every call once, gradients right, against a side that has none and against one that has another kind."""

from __future__ import annotations

from typing import Any

import paddle
import pytest
import torch
from paddle.distributed.fleet.utils import recompute

import padiff
from padiff.capture.one_step import Arguments
from padiff.capture.session import Session
from padiff.frameworks import adapter_named, module_tree
from tests.twins import FRAMEWORKS, PAIRS, PaddleScaleGradient, TorchScaleGradient, after, batch, net, read

MODES = ("plain", "reentrant", "other")
CALLS = 25


def run_again(mode: str, function: Any, *args: Any) -> Any:
    """Through the checkpoint of the framework that the arguments belong to."""
    if mode == "plain":
        return function(*args)
    if isinstance(args[0], torch.Tensor):
        return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=mode == "reentrant")
    return recompute(function, *args, use_reentrant=mode == "reentrant")


def checkpointed(framework: str, mode: str) -> Any:
    """The network with a checkpoint around every block."""
    model = net(framework)
    model.train()

    def forward(x: Any) -> Any:
        x = model.embed(x)
        for block in model.blocks:
            x = run_again(mode, block, x)
        return model.head(model.bn(x))

    model.forward = forward
    return model


def squared(out: Any) -> Any:
    return (out**2).mean()


SIDES = [("plain", "reentrant"), ("other", "plain"), ("reentrant", "other")]


@pytest.mark.parametrize(("base", "raw"), PAIRS)
@pytest.mark.parametrize("modes", SIDES, ids="-".join)
@pytest.mark.parametrize("bug", ["none", "forward", "backward"])
def test_against_each_other(base: str, raw: str, modes: tuple[str, str], bug: str) -> None:
    one, other = checkpointed(base, modes[0]), checkpointed(raw, modes[1])
    expected = None
    if bug == "forward":
        after(other.blocks[1].fc2, lambda out: out * 1.01)
        expected = ("blocks.1.fc2", "blocks.1.fc2", "forward")
    elif bug == "backward":
        other.blocks[1].scale_gradient = True
        expected = ("blocks.1", "blocks.1", "backward")
    result = padiff.compare(one, other, batch(), loss=squared)
    assert len(result.steps[0].base.calls) == len(result.steps[0].raw.calls) == CALLS
    assert not result.unmatched
    if expected is None:
        assert result.aligned, str(result)
        backward = {c.raw_path for c in result.comparisons if c.phase == "backward"}
        assert {"embed", "blocks.0.fc1", "blocks.1.two", "blocks.2.norm", "head"} <= backward
    else:
        found = result.divergence
        assert found is not None, str(result)
        assert (found.base_path, found.raw_path, found.phase) == expected
        assert len(result.divergences) == 1


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("mode", ["reentrant", "other"])
def test_gradients_are_those_of_a_plain_run(framework: str, mode: str) -> None:
    """Capture changes nothing, and every activation has the gradient it has without a checkpoint."""
    model = checkpointed(framework, mode)
    adapter = adapter_named(framework)
    x = adapter.to_native(batch())
    squared(model(x)).backward()
    alone = {name: read(p.grad) for name, p in model.named_parameters() if p.grad is not None}
    traces = []
    for kind in (mode, "plain"):
        model = checkpointed(framework, kind)
        live = module_tree(adapter, model)
        session = Session(live, "base", frozenset(range(len(live.modules))))
        with session.prepared(training=False):
            trace = session.run(0, Arguments((adapter.to_native(batch()),), {}), loss_fn=squared, backward=True)
            gradients = {name: value.numpy().copy() for name, value in trace.parameter_gradients.items() if value}
        assert all((gradients[name] == value).all() for name, value in alone.items())
        traces.append(trace)
    again, plain = traces
    assert [call.path for call in again.calls] == [call.path for call in plain.calls]
    for one, other in zip(again.calls, plain.calls, strict=True):
        for left, right in zip((*one.inputs, *one.outputs), (*other.inputs, *other.outputs), strict=True):
            assert left.tracked == right.tracked
            if right.tensor in plain.gradients:
                assert (again.gradients[left.tensor].numpy() == plain.gradients[right.tensor].numpy()).all()


class TorchShapes(torch.nn.Module):
    """Checkpoints around functions rather than modules."""

    def __init__(self, kind: str, mode: str, wrong: bool = False) -> None:
        super().__init__()
        self.kind, self.mode, self.wrong = kind, mode, wrong
        self.a, self.b, self.c = (torch.nn.Linear(6, 6) for _ in range(3))
        self.norm = torch.nn.LayerNorm(6)

    def forward(self, x: Any) -> Any:
        return KINDS[self.kind](self, x, torch.tanh, TorchScaleGradient if self.wrong else None)


class PaddleShapes(paddle.nn.Layer):
    """The same as TorchShapes."""

    def __init__(self, kind: str, mode: str, wrong: bool = False) -> None:
        super().__init__()
        self.kind, self.mode, self.wrong = kind, mode, wrong
        self.a, self.b, self.c = (paddle.nn.Linear(6, 6) for _ in range(3))
        self.norm = paddle.nn.LayerNorm(6)

    def forward(self, x: Any) -> Any:
        return KINDS[self.kind](self, x, paddle.tanh, PaddleScaleGradient if self.wrong else None)


def closure(self: Any, x: Any, tanh: Any, wrong: Any) -> Any:
    def inside(h: Any) -> Any:
        h = tanh(self.c(tanh(self.b(h))))
        return self.norm(wrong.apply(h) if wrong else h)

    return self.a(run_again(self.mode, inside, self.a(x)))


def recurrent(self: Any, x: Any, tanh: Any, wrong: Any) -> Any:
    def inside(h: Any) -> Any:
        h = self.b(h)
        return tanh(self.norm(wrong.apply(h) if wrong else h))

    x = self.a(x)
    for _ in range(3):
        x = run_again(self.mode, inside, x)
    return self.c(x)


def nested(self: Any, x: Any, tanh: Any, wrong: Any) -> Any:
    def inside(h: Any) -> Any:
        h = self.b(h)
        return tanh(self.norm(wrong.apply(h) if wrong else h))

    return self.a(run_again(self.mode, lambda h: self.c(run_again(self.mode, inside, h)), self.a(x)))


def several(self: Any, x: Any, tanh: Any, wrong: Any) -> Any:
    def inside(h: Any, g: Any) -> Any:
        return self.b(h) + self.c(wrong.apply(g) if wrong else g), self.norm(h)

    x = self.a(x)
    one, other = run_again(self.mode, inside, x, tanh(x))
    return one * other


KINDS = {"closure": closure, "recurrent": recurrent, "nested": nested, "several": several}


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrong", [False, True])
def test_around_functions(framework: str, kind: str, wrong: bool) -> None:
    build = TorchShapes if framework == "torch" else PaddleShapes
    base = TorchShapes(kind, "plain")
    result = padiff.compare(base, build(kind, "reentrant", wrong), batch(), loss=lambda out: (out**3).mean())
    assert not result.unmatched
    backward = {c.raw_path for c in result.comparisons if c.phase == "backward"}
    assert {"a", "b", "norm", "c"} <= backward
    if not wrong:
        assert result.aligned, str(result)
    else:
        assert result.divergence is not None
        assert (result.divergence.raw_path, result.divergence.phase) == ("", "backward")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_second_run_that_differs_from_the_first_is_found(framework: str) -> None:
    """The first run is right, the second is not: outputs agree, and gradients don't."""
    one, other = checkpointed("torch", "plain"), checkpointed(framework, "reentrant")
    followed = torch.is_grad_enabled if framework == "torch" else paddle.is_grad_enabled

    def second_is_wrong(out: Any) -> Any:
        return out * 2 if followed() else out

    after(other.blocks[1].fc1, second_is_wrong)
    result = padiff.compare(one, other, batch(), loss=squared)
    assert not result.aligned
    assert result.divergence is not None
    assert result.divergence.phase in ("backward", "gradient")
    assert result.divergence.raw_path.startswith("blocks.1")
