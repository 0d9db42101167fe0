"""The bridge: a recorded step goes into a dump, while it runs or afterwards, and the model can be asked without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from padiff.capture.one_step import Arguments
from padiff.capture.session import Session
from padiff.engine.apart.stored import stored_noise, stored_tree, stored_usage
from padiff.engine.captured.dumping import TraceWriter
from padiff.frameworks.registry import adapter_of_model
from padiff.frameworks.tree import LiveTree, module_tree
from padiff.records import Noise, StepTrace, Usage
from padiff.store import Dump

torch = pytest.importorskip("torch")
nn = torch.nn


class Tied(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.body = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.BatchNorm1d(8))
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.table.weight
        self.body[0].bias.requires_grad_(False)

    def forward(self, x: Any) -> Any:
        return self.head(self.body(self.table(x)))


def session_of(model: Any) -> Session:
    live = module_tree(adapter_of_model(model, "model"), model)
    return Session(live, "base", frozenset(range(len(live.modules))))


def inputs() -> Arguments:
    return Arguments((torch.arange(5),), {})


def same(one: StepTrace, other: StepTrace) -> None:
    assert [(c.index, c.parent, c.path, c.tensors) for c in one.calls] == [
        (c.index, c.parent, c.path, c.tensors) for c in other.calls
    ]
    for call, again in zip(one.calls, other.calls, strict=True):
        slots = zip((*call.inputs, *call.outputs), (*again.inputs, *again.outputs), strict=True)
        for old, new in slots:
            assert (old.name, old.tensor) == (new.name, new.tensor)
            assert np.array_equal(old.value.numpy(), new.value.numpy())
    assert list(one.gradients) == list(other.gradients)
    for number, gradient in one.gradients.items():
        assert np.array_equal(gradient.numpy(), other.gradients[number].numpy())
    for path, value in one.parameter_gradients.items():
        kept = other.parameter_gradients[path]
        assert (value is None) == (kept is None)
        assert value is None or kept is None or np.array_equal(value.numpy(), kept.numpy())
    assert one.ran_backward == other.ran_backward


@pytest.mark.parametrize("streaming", [False, True])
def test_a_step_comes_back(streaming: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    session = session_of(Tied())
    with session.prepared(training=False):
        whole = session.run(0, inputs(), loss_fn=None, backward=True)
        with TraceWriter(session.live, tmp_path / "run") as dump:
            if streaming:
                session.clear_gradients()
                sink = dump.begin(0)
                trace = session.run(0, inputs(), loss_fn=None, backward=True, observer=sink)
                sink.end(trace, weights=session.weights(), buffers=session.buffers())
            else:
                dump.write(whole, weights=session.weights(), buffers=session.buffers())
        read = Dump.open(tmp_path / "run").step(0)
        same(whole, read.trace())
        assert read.weights.keys() == session.live.parameters().keys()
        assert read.buffers.keys() == session.live.buffers().keys()


def test_only_some_modules_are_kept(tmp_path: Path) -> None:
    session = session_of(Tied())
    path_of = session.live.tree.by_path()
    with session.prepared(training=False):
        trace = session.run(0, inputs(), loss_fn=None, backward=True)
        with TraceWriter(session.live, tmp_path / "run", only=frozenset({path_of["body.0"].index})) as dump:
            dump.write(trace)
    calls = {call.path: call for call in Dump.open(tmp_path / "run").step(0).calls}
    assert calls["body.0"].inputs[0].value.numpy().shape == (5, 8)
    assert calls["body.1"].inputs[0].value.numpy().shape == (5, 8)  # what the one returns
    assert repr(calls["body.1"].outputs[0].value) == "LostValue(float32[5, 8])"
    assert repr(calls["table"].inputs[0].value) == "LostValue(int64[5])"


def test_the_model_can_be_asked_without_it(tmp_path: Path) -> None:
    model = Tied()
    live = module_tree(adapter_of_model(model, "model"), model)
    session = Session(live, "base", frozenset({0}))
    with session.prepared(training=False), TraceWriter(live, tmp_path / "run") as dump:
        dump.write(session.run(0, inputs(), loss_fn=None, backward=False), weights=session.weights())
    stored: LiveTree = stored_tree(Dump.open(tmp_path / "run"))
    assert list(stored.parameters()) == list(live.parameters())
    assert list(stored.tensors()) == list(live.tensors())
    assert stored.tensors()["head.weight"] is stored.tensors()["table.weight"]
    for path, tensor in live.parameters().items():
        mine = stored.parameters()[path]
        assert np.array_equal(stored.adapter.to_numpy(mine), live.adapter.to_numpy(tensor))
        assert stored.adapter.requires_grad(mine) == live.adapter.requires_grad(tensor)
    for index, module in enumerate(live.modules):
        assert stored.layer_spec(index) == live.layer_spec(index)
        assert stored.adapter.settings(stored.modules[index]) == live.adapter.settings(module)
        assert [name for name, _ in stored.adapter.children(stored.modules[index])] == [
            name for name, _ in live.adapter.children(module)
        ]


def test_noise_and_usage_come_back(tmp_path: Path) -> None:
    session = session_of(Tied())
    noise = Noise({0: 1e-7}, {1: 2e-7}, {"a": 3e-7}, {"b": 4e-7}, {"a": 5e-7}, 6e-7)
    local = {("forward", "output", -1, 3): 1e-8, ("backward", "input", 2, 3): 2e-8}
    usage = Usage({"a": 1}, {0: 2}, {1: 3}, {1: 4}, {0: 5})
    with session.prepared(training=False), TraceWriter(session.live, tmp_path / "run") as dump:
        trace = session.run(0, inputs(), loss_fn=None, backward=False)
        dump.write(trace, noise=noise, local=local, usage=usage)
    step = Dump.open(tmp_path / "run").step(0)
    assert stored_noise(step) == (noise, local)
    found = stored_usage(step)
    assert (found.tensors, found.calls, found.made, found.ready, found.times) == (
        *(usage.tensors, usage.calls, usage.made, usage.ready, usage.times),
    )
    assert [(name, array.shape) for name, array in found.outputs] == [("", (5, 11))]
