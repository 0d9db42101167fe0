"""Capture sees everything and changes nothing."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import paddle
import pytest
import torch
from tests.twins import FRAMEWORKS, batch, net, read

from padiff.capture.one_step import Arguments
from padiff.capture.session import Session
from padiff.frameworks import adapter_named, module_tree
from padiff.records import StepTrace

BUILD = {"torch": torch, "paddle": paddle}


def module_class(framework: str) -> Any:
    return torch.nn.Module if framework == "torch" else paddle.nn.Layer


def linear(framework: str, n: int, m: int) -> Any:
    return BUILD[framework].nn.Linear(n, m)


def tensor(framework: str, value: Any) -> Any:
    return adapter_named(framework).to_native(np.asarray(value, dtype="float32"))


def session(framework: str, model: Any) -> Session:
    live = module_tree(adapter_named(framework), model)
    return Session(live, "base", frozenset(range(len(live.modules))))


def run(framework: str, model: Any, *args: Any, backward: bool = True, loss: Any = None, **kwargs: Any) -> StepTrace:
    running = session(framework, model)
    with running.prepared(training=False):
        return running.run(0, Arguments(args, kwargs), loss_fn=loss, backward=backward)


def hook_count(model: Any) -> int:
    if isinstance(model, torch.nn.Module):
        return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    layers = [model, *model.sublayers()]
    return sum(len(m._forward_post_hooks) + len(m._forward_pre_hooks) for m in layers)


def gradients(model: Any) -> dict[str, Any]:
    return {name: None if p.grad is None else read(p.grad) for name, p in model.named_parameters()}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_changes_nothing(framework: str) -> None:
    """Outputs and gradients are bit-equal with and without capture, and so is the next random number."""
    outputs, all_gradients, draws = [], [], []
    for captured in (False, True):
        model = net(framework)
        model.train()
        BUILD[framework].manual_seed(5) if framework == "torch" else paddle.seed(5)
        x = tensor(framework, batch())
        seen = []
        if captured:
            running = session(framework, model)
            with running.prepared(training=True):
                trace = running.run(0, Arguments((x,), {}), loss_fn=None, backward=True)
                all_gradients.append(
                    {k: None if v is None else v.numpy().copy() for k, v in trace.parameter_gradients.items()}
                )
            seen = trace.calls[-1].outputs[0].value.numpy()
        else:
            out = model(x)
            out.mean().backward()
            seen = read(out)
            all_gradients.append(
                {k: v for k, v in gradients(model).items() if "_mean" not in k and "_variance" not in k}
            )
        outputs.append(seen)
        draws.append(read(torch.rand(3) if framework == "torch" else paddle.rand([3])))
    assert np.array_equal(outputs[0], outputs[1])
    assert all_gradients[0].keys() == all_gradients[1].keys()
    for name, value in all_gradients[0].items():
        assert np.array_equal(value, all_gradients[1][name]), name
    assert np.array_equal(draws[0], draws[1])


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_leaves_everything_as_it_was(framework: str) -> None:
    model = net(framework)
    model.train()
    model.blocks[0].eval()
    model(tensor(framework, batch())).mean().backward()
    before = gradients(model)
    state = {name: read(t) for name, t in model.state_dict().items()}
    flags = [m.training for m in (model.modules() if framework == "torch" else model.sublayers(include_self=True))]
    random = torch.get_rng_state().clone() if framework == "torch" else paddle.get_rng_state()[0].current_seed()
    run(framework, model, tensor(framework, batch()))
    assert hook_count(model) == 0
    for name, value in gradients(model).items():
        assert (value is None and before[name] is None) or np.array_equal(value, before[name]), name
    for name, value in model.state_dict().items():
        assert np.array_equal(read(value), state[name]), name
    assert flags == [
        m.training for m in (model.modules() if framework == "torch" else model.sublayers(include_self=True))
    ]
    if framework == "torch":
        assert torch.equal(random, torch.get_rng_state())
    else:
        assert random == paddle.get_rng_state()[0].current_seed()


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("where", ["forward", "loss"])
def test_hooks_come_off_after_an_exception(framework: str, where: str) -> None:
    model = net(framework)

    def boom(*_: Any) -> Any:
        raise KeyError("boom")

    loss = None
    if where == "forward":
        model.blocks[1].fc2.forward = boom
    else:
        loss = boom
    with pytest.raises(KeyError) as caught:
        run(framework, model, tensor(framework, batch()), loss=loss)
    assert hook_count(model) == 0
    note = "".join(caught.value.__notes__)
    assert "base model" in note
    assert "step 0" in note
    if where == "forward":
        assert "blocks.1.fc2" in note
        del model.blocks[1].fc2.forward
    run(framework, model, tensor(framework, batch()))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_order_occurrences_and_shared_modules(framework: str) -> None:
    class Model(module_class(framework)):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.a = linear(framework, 6, 6)
            self.b = self.a
            self.never = linear(framework, 6, 6)
            self.tail = linear(framework, 6, 2)

        def forward(self, x: Any) -> Any:
            return self.tail(self.b(self.a(self.a(x))))

    trace = run(framework, Model(), tensor(framework, batch()))
    assert [(c.path, c.occurrence) for c in trace.calls] == [("a", 0), ("a", 1), ("a", 2), ("tail", 0), ("", 0)]
    assert [c.parent for c in trace.calls] == [0, 0, 0, 0, -1]
    first, second, third, tail, root = trace.calls
    assert first.outputs[0].tensor == second.inputs[0].tensor
    assert third.outputs[0].tensor == tail.inputs[0].tensor
    assert tail.outputs[0].tensor == root.outputs[0].tensor
    for call in trace.calls[1:4]:
        assert {call.inputs[0].tensor, call.outputs[0].tensor} <= set(trace.gradients)
    assert set(trace.parameter_gradients) == {
        "a.weight",
        "a.bias",
        "never.weight",
        "never.bias",
        "tail.weight",
        "tail.bias",
    }
    assert trace.parameter_gradients["never.weight"] is None


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_user_lines(framework: str) -> None:
    trace = run(framework, net(framework), tensor(framework, batch()))
    call = next(c for c in trace.calls if c.path == "blocks.1.fc2")
    assert [frame.function for frame in call.stack] == ["forward", "forward"]
    assert all(frame.file.endswith("twins.py") for frame in call.stack)


@dataclass
class Record:
    hidden: Any
    note: str
    nothing: Any = None


class Named(NamedTuple):
    first: Any
    rest: Any


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_containers_of_any_kind(framework: str) -> None:
    class Model(module_class(framework)):  # type: ignore[misc]
        def forward(self, x: Any, *, mask: Any = None, extra: Any = None) -> Any:
            return {
                "z": x,
                "a": [x + 1, None, (x + 2,)],
                "r": Record(x + 3, "text"),
                "n": Named(x + 4, {"deep": x + 5}),
            }

    x = tensor(framework, batch())
    trace = run(framework, Model(), x, mask=x + 1, extra={"k": (x + 2, 3)}, backward=False)
    call = trace.calls[0]
    assert [s.name for s in call.inputs] == ["0", "mask", "extra.k.0"]
    assert [s.name for s in call.outputs] == ["z", "a.0", "a.2.0", "r.hidden", "n.first", "n.rest.deep"]
    values = {s.name: s.value.numpy() for s in call.outputs}
    for offset, name in enumerate(("z", "a.0", "a.2.0", "r.hidden", "n.first", "n.rest.deep")):
        assert np.allclose(values[name], batch() + offset, atol=1e-6)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("how", ["method", "operator", "item", "view", "relu"])
def test_in_place_ops_are_survived(framework: str, how: str) -> None:
    """A value that is overwritten after it was seen is kept as it was seen; gradients are those of a plain run."""

    class Model(module_class(framework)):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.fc = linear(framework, 6, 4)
            self.act = torch.nn.ReLU(inplace=True) if framework == "torch" else paddle.nn.ReLU()
            self.tail = linear(framework, 4, 3)

        def forward(self, x: Any) -> Any:
            h = self.fc(x)
            if how == "method":
                h = h.add_(BUILD[framework].ones_like(h))
            elif how == "operator":
                h += 1
            elif how == "item":
                h[:, 0] = 7.0
            elif how == "view":
                h[1:].add_(BUILD[framework].ones_like(h[1:]))
            elif framework == "torch":
                h = self.act(h)
            else:
                h = paddle.nn.functional.relu_(h)
            return self.tail(h)

    model = Model()
    x = batch()
    expected = x @ (read(model.fc.weight).T if framework == "torch" else read(model.fc.weight)) + read(model.fc.bias)
    model(tensor(framework, x)).mean().backward()
    plain = gradients(model)
    trace = run(framework, model, tensor(framework, x))
    call = next(c for c in trace.calls if c.path == "fc")
    assert not call.outputs[0].value.overwritten
    assert np.allclose(call.outputs[0].value.numpy(), expected, atol=1e-5)
    tail = next(c for c in trace.calls if c.path == "tail")
    assert not np.allclose(tail.inputs[0].value.numpy(), expected, atol=1e-5)
    for name, value in trace.parameter_gradients.items():
        assert value is not None
        assert np.array_equal(value.numpy(), plain[name]), name


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_user_catches_an_exception_of_a_child(framework: str) -> None:
    class Fails(module_class(framework)):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            raise ValueError("no")

    class Model(module_class(framework)):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.bad = Fails()
            self.good = linear(framework, 6, 2)

        def forward(self, x: Any) -> Any:
            try:
                return self.bad(x)
            except ValueError:
                return self.good(x)

    trace = run(framework, Model(), tensor(framework, batch()))
    assert [(c.path, c.parent) for c in trace.calls] == [("good", 0), ("", -1)]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_no_grad_empty_and_mixed(framework: str) -> None:
    class Model(module_class(framework)):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.frozen = linear(framework, 6, 4)
            self.tail = linear(framework, 4, 3)

        def forward(self, x: Any, ids: Any) -> Any:
            with BUILD[framework].no_grad():
                h = self.frozen(x)
            return self.tail(h), h[:0], ids, ids > 1

    ids = adapter_named(framework).to_native(np.arange(4))
    trace = run(framework, Model(), tensor(framework, batch()), ids)
    root = trace.calls[-1]
    assert [s.value.dtype for s in root.outputs] == ["float32", "float32", "int64", "bool"]
    assert root.outputs[1].value.shape == (0, 4)
    frozen = trace.calls[0]
    assert frozen.outputs[0].tensor not in trace.gradients
    assert trace.parameter_gradients["frozen.weight"] is None
    assert trace.parameter_gradients["tail.weight"] is not None


def test_two_threads_capture_two_models() -> None:
    """Each thread sees its own calls, and paddle's ops are whole again afterwards."""
    original = paddle._C_ops.add_
    found: dict[str, list[str]] = {}

    def work(framework: str, name: str) -> None:
        for _ in range(5):
            trace = run(framework, net(framework), tensor(framework, batch()), backward=False)
            found[name] = [c.path for c in trace.calls]

    threads = [threading.Thread(target=work, args=(f, f + str(i))) for f in FRAMEWORKS for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(paths == found["torch0"] for paths in found.values())
    assert paddle._C_ops.add_ is original
