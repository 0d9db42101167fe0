"""Gradients are put down as backward makes them, and nothing stays behind."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import paddle
import pytest
import torch

from padiff.capture.gradient_log import GradientLog
from padiff.capture.held import Held
from padiff.capture.recorder import Recorder
from padiff.frameworks import adapter_named, module_tree

FRAMEWORKS = ["torch", "paddle"]


class TorchNet(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.full((4,), 2.0))
        self.inner = torch.nn.Tanh()
        self.between: Any = None

    def forward(self, x: Any) -> Any:
        self.between = x * self.scale
        return self.inner(self.between)


class PaddleNet(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.scale = self.create_parameter([4], default_initializer=paddle.nn.initializer.Constant(2.0))
        self.inner = paddle.nn.Tanh()
        self.between: Any = None

    def forward(self, x: Any) -> Any:
        self.between = x * self.scale
        return self.inner(self.between)


def made(framework: str) -> tuple[Any, Recorder, Any]:
    """A net that has run, who recorded it, and its output."""
    net = TorchNet() if framework == "torch" else PaddleNet()
    live = module_tree(adapter_named(framework), net)
    recorder = Recorder(live, gradients=True)
    x = live.adapter.to_native(np.array([0.1, -0.2, 0.3, 0.4], "float32"))
    with recorder.attached(frozenset({0, 1})):
        output = net(x)
    return net, recorder, output


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_gradients_count_while_they_are_taken_and_no_longer(framework: str) -> None:
    net, recorder, output = made(framework)
    output.sum().backward(retain_graph=True)
    assert recorder.gradients == {}
    with recorder.taking_gradients(frozenset({0, 1})):
        output.sum().backward(retain_graph=True)
    inner = next(call for call in recorder.calls if call.path == "inner")
    given, returned = (recorder.gradients[slots[0].tensor].numpy() for slots in (inner.inputs, inner.outputs))
    np.testing.assert_array_equal(returned, np.ones(4, "float32"))
    np.testing.assert_allclose(given, 1 - np.tanh([0.2, -0.4, 0.6, 0.8]) ** 2, rtol=1e-5)
    recorder.close()
    before = dict(recorder.gradients)
    output.sum().backward()
    assert recorder.gradients == before
    assert net.between is not None


def test_hooks_of_torch_come_off() -> None:
    net, recorder, output = made("torch")
    mine: list[Any] = []
    net.between.register_hook(mine.append)
    assert [len(one._backward_hooks) for one in (net.between, output)] == [2, 1]
    recorder.close()
    assert [len(one._backward_hooks) for one in (net.between, output)] == [1, 0]
    output.sum().backward()
    assert len(mine) == 1


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_graph_that_lives_on_holds_no_recorder(framework: str) -> None:
    _, recorder, output = made(framework)
    gone = weakref.ref(recorder)
    del recorder
    gc.collect()
    assert gone() is None
    output.sum().backward()


def test_a_gradient_that_a_hook_overwrites_is_known_to_be() -> None:
    net, recorder, output = made("torch")
    net.between.register_hook(lambda gradient: gradient.neg_())
    with recorder.taking_gradients(frozenset({0, 1})):
        (output * 3).sum().backward()
    inner = next(call for call in recorder.calls if call.path == "inner")
    assert recorder.gradients[inner.inputs[0].tensor].overwritten
    assert not recorder.gradients[inner.outputs[0].tensor].overwritten


def test_a_gradient_that_can_be_followed_itself_is_held_without_its_graph() -> None:
    net, recorder, output = made("torch")
    with recorder.taking_gradients(frozenset({0, 1})):
        torch.autograd.grad(output.square().sum(), [net.scale], create_graph=True)
    held = list(recorder.gradients.values())
    assert len(held) == 2
    assert [one.live().requires_grad for one in held if isinstance(one, Held)] == [False, False]


def test_nobody_elses_mode_sees_that_a_gradient_is_looked_at() -> None:
    seen: list[str] = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(getattr(func, "__name__", ""))
            return func(*args, **(kwargs or {}))

    _, recorder, output = made("torch")
    loss = output.sum()
    with recorder.taking_gradients(frozenset({0, 1})), Mode():
        loss.backward()
    assert len(recorder.gradients) == 2
    assert seen == ["backward"]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_adapter_with_nothing_of_its_own_to_follow_many_does_with_what_all_have(framework: str) -> None:
    adapter = adapter_named(framework)

    class Plain:
        on_gradient, version = staticmethod(adapter.on_gradient), staticmethod(adapter.version)
        is_tensor = staticmethod(adapter.is_tensor)

    log = GradientLog(Plain())  # type: ignore[arg-type]
    told: list[int] = []
    log.made = lambda number, _: told.append(number)
    log.taking = True
    x = adapter.to_native(np.ones(3, "float32"), requires_grad=True)
    y = x * 2
    handles: dict[int, Any] = {}
    seen = Held(adapter, y)
    seen.number, seen.tracked = 7, False
    log.follow()([(y, seen)], handles)
    assert list(handles) == [7]
    assert seen.tracked
    (y * 5).sum().backward()
    assert told == [7]
    assert isinstance(log[7], Held)
    assert log[7] is log[7]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_scaled_loss_is_taken_out(framework: str) -> None:
    _, recorder, output = made(framework)
    recorder.log.scale = 8.0
    with recorder.taking_gradients(frozenset({0, 1})):
        (output * 8).sum().backward()
    inner = next(call for call in recorder.calls if call.path == "inner")
    np.testing.assert_array_equal(recorder.gradients[inner.outputs[0].tensor].numpy(), np.ones(4, "float32"))
