"""Ops of modules' own code are seen under the names people know, with tensors, gradients and lines; nothing else is."""

from __future__ import annotations

import sys
import threading
from types import BuiltinFunctionType
from typing import Any

import numpy as np
import paddle
import pytest
import torch
from tests.own_code import batch, model
from tests.twins import FRAMEWORKS, read

import padiff
from padiff.capture.one_step import Arguments
from padiff.capture.ops import WantedOps
from padiff.capture.session import Session
from padiff.frameworks import adapter_named, module_tree
from padiff.records import Call, StepTrace

BUILD: dict[str, Any] = {"torch": torch, "paddle": paddle}


def module_class(framework: str) -> Any:
    return torch.nn.Module if framework == "torch" else paddle.nn.Layer


def of(framework: str, forward: Any) -> Any:
    """A model with one linear layer and this forward."""

    class Model(module_class(framework)):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.fc = BUILD[framework].nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return forward(self, x)

    return Model()


def run(framework: str, given: Any, array: Any, *, wanted: WantedOps | None = None, gradients: Any = None) -> StepTrace:
    adapter = adapter_named(framework)
    live = module_tree(adapter, given)
    session = Session(live, "base", frozenset(range(len(live.modules))))
    session.ops = wanted or WantedOps()
    with session.prepared(training=False):
        x = adapter.to_native(array, requires_grad=True)
        trace = session.run(0, Arguments((x,), {}), loss_fn=None, backward=True)
        if gradients is not None:
            gradients.append(
                {path: np.array(value.numpy()) for path, value in trace.parameter_gradients.items() if value}
            )
        return trace


def ops(trace: StepTrace, path: str = "") -> tuple[Call, ...]:
    return next(call.ops for call in trace.calls if call.path == path)


def kinds(trace: StepTrace, path: str = "") -> list[str]:
    return [op.kind for op in ops(trace, path)]


def small() -> Any:
    return np.arange(8, dtype="float32").reshape(2, 4) / 7


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_names_lines_and_tensors(framework: str) -> None:
    trace = run(framework, model(framework), batch())
    found = ops(trace, "first")
    expected = {
        "torch": """torch.Tensor.pow torch.Tensor.mean torch.Tensor.add torch.rsqrt torch.Tensor.mul torch.Tensor.view
            torch.Tensor.transpose torch.Tensor.view torch.Tensor.transpose torch.Tensor.transpose torch.Tensor.matmul
            torch.Tensor.mul torch.ones torch.Tensor.triu torch.Tensor.masked_fill torch.nn.functional.softmax
            torch.Tensor.matmul torch.Tensor.transpose torch.Tensor.reshape torch.Tensor.add""",
        "paddle": """paddle.Tensor.__mul__ paddle.mean paddle.Tensor.__add__ paddle.rsqrt paddle.Tensor.__mul__
            paddle.reshape paddle.transpose paddle.reshape paddle.transpose paddle.transpose paddle.Tensor.__matmul__
            paddle.Tensor.__mul__ paddle.full paddle.triu paddle.Tensor.__add__ paddle.nn.functional.softmax
            paddle.matmul paddle.transpose paddle.reshape paddle.Tensor.__add__""",
    }
    assert [op.kind for op in found] == expected[framework].split()
    softmax = next(op for op in found if op.kind.endswith("softmax"))
    assert softmax.path == "first/softmax"
    assert [slot.value.shape for slot in (*softmax.inputs, *softmax.outputs)] == [(2, 2, 5, 5)] * 2
    assert softmax.stack[-1].function == "forward"
    assert softmax.stack[-1].file.endswith("own_code.py")
    weights = softmax.outputs[0].value.numpy()
    np.testing.assert_allclose(weights.sum(-1), np.ones((2, 2, 5)), rtol=1e-5)
    assert softmax.outputs[0].tensor in trace.gradients
    assert not any(call.ops for call in trace.calls if call.kind == "Linear"), "the framework's own layers"
    parents = {call.path: call.index for call in trace.calls}
    assert {op.parent for op in found} == {parents["first"]}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_only_where_wanted(framework: str) -> None:
    plain = run(framework, model(framework), batch(), wanted=WantedOps(frozenset()))
    assert not any(call.ops for call in plain.calls)
    second = next(call.index for call in plain.calls if call.path == "second")
    some = run(framework, model(framework), batch(), wanted=WantedOps(frozenset({second}), stacks=True))
    assert [call.path for call in some.calls if call.ops] == ["second"]
    assert [call.index for call in some.calls] == [call.index for call in plain.calls]
    functions = [frame.function for frame in ops(some, "second")[0].stack]
    assert functions[-2:] == ["forward", "forward"], "the model's own line, then the block's"


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_in_place_and_items(framework: str) -> None:
    def forward(self: Any, x: Any) -> Any:
        y = x * 2.0
        y[0] = 1.0
        z = y.clone()
        z.add_(y)
        return self.fc(z)

    trace = run(framework, of(framework, forward), small())
    found = ops(trace)
    assert [op.path for op in found] == ["/mul", "/setitem", "/clone", "/add"]
    mul, setitem, clone, add = found
    assert setitem.inputs[0].tensor == mul.outputs[0].tensor
    assert clone.inputs[0].tensor == setitem.outputs[0].tensor != mul.outputs[0].tensor
    assert [slot.tensor for slot in add.inputs] == [clone.outputs[0].tensor, setitem.outputs[0].tensor]
    twice = small() * 2
    np.testing.assert_array_equal(mul.outputs[0].value.numpy(), twice)
    twice[0] = 1.0
    np.testing.assert_array_equal(clone.outputs[0].value.numpy(), twice)
    np.testing.assert_array_equal(add.outputs[0].value.numpy(), 2 * twice)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_tuples_views_looks_and_no_grad(framework: str) -> None:
    def forward(self: Any, x: Any) -> Any:
        one, two = x.chunk(2, -1)
        assert x.shape[0] == 2 and x.dtype is not None
        with BUILD[framework].no_grad():
            dead = one * 3.0
        values, _ = BUILD[framework].topk(two, 1)
        return self.fc(x) + dead.sum() + values

    trace = run(framework, of(framework, forward), small())
    found = {op.path: op for op in ops(trace)}
    assert list(found) == ["/chunk", "/mul", "/topk", "/sum", "/add", "/add#1"]
    assert [slot.name for slot in found["/chunk"].outputs] == ["0", "1"]
    assert len(found["/topk"].outputs) == 2
    assert not found["/mul"].outputs[0].tracked
    assert found["/add"].outputs[0].tracked


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_one_function_is_one_op(framework: str) -> None:
    def forward(self: Any, x: Any) -> Any:
        lib = BUILD[framework].nn.functional
        wide = x.reshape([1, 2, 2, 2]) if framework == "paddle" else x.reshape(1, 2, 2, 2)
        attended = lib.scaled_dot_product_attention(wide, wide, wide)
        return self.fc(x) + x.var(-1, keepdim=True) + attended.sum()

    trace = run(framework, of(framework, forward), small())
    assert [op.path for op in ops(trace)] == [
        "/reshape",
        "/scaled_dot_product_attention",
        "/var",
        "/add",
        "/sum",
        "/add#1",
    ]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_subclass_of_a_layer_has_code_of_its_own(framework: str) -> None:
    class Scaled(BUILD[framework].nn.Linear):  # type: ignore[misc]
        def forward(self, *args: Any) -> Any:
            return super().forward(*args) * 2.0

    given = of(framework, lambda self, x: self.fc(x))
    given.fc = Scaled(4, 4)
    trace = run(framework, given, small())
    assert [op.path for op in ops(trace, "fc")] == ["fc/linear", "fc/mul"]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_changes_nothing(framework: str) -> None:
    """Outputs and gradients are bit-equal with ops watched and without, and every function is back in its place."""
    before = _functions()
    outputs: list[Any] = []
    gradients: list[dict[str, Any]] = []
    for wanted in (WantedOps(frozenset()), WantedOps()):
        trace = run(framework, model(framework), batch(), wanted=wanted, gradients=gradients)
        outputs.append(trace.calls[-1].outputs[0].value.numpy().copy())
    np.testing.assert_array_equal(*outputs)
    assert gradients[0].keys() == gradients[1].keys() and gradients[0]
    for path, gradient in gradients[0].items():
        np.testing.assert_array_equal(gradient, gradients[1][path])
    assert _functions() == before


def _functions() -> dict[str, int]:
    found = {f"op {name}": id(value) for name, value in vars(paddle._C_ops).items()}
    found |= {f"method {name}": id(value) for name, value in vars(paddle.Tensor).items()}
    for name, module in list(sys.modules.items()):
        if name.startswith("paddle") and module is not None:
            own = getattr(module, "__dict__", {})
            found |= {f"{name} {key}": id(v) for key, v in list(own.items()) if isinstance(v, BuiltinFunctionType)}
    return found


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_everything_is_back_after_an_exception(framework: str) -> None:
    before = _functions()

    def forward(self: Any, x: Any) -> Any:
        y = x * 2.0
        raise ValueError(f"no use for {list(y.shape)}")

    with pytest.raises(ValueError, match="no use for"):
        run(framework, of(framework, forward), small())
    assert _functions() == before


def test_other_threads_are_left_alone() -> None:
    """What another thread does meanwhile is no op of the model."""
    seen: list[Any] = []

    def elsewhere() -> None:
        seen.append(read(paddle.ones([2]) * 3.0))

    def forward(self: Any, x: Any) -> Any:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        return self.fc(x * 2.0)

    trace = run("paddle", of("paddle", forward), small())
    assert kinds(trace) == ["paddle.Tensor.__mul__"]
    np.testing.assert_array_equal(seen[0], [3.0, 3.0])


def test_two_captures_in_two_threads() -> None:
    found: dict[str, list[str]] = {}

    def one(framework: str) -> None:
        found[framework] = [op.path for op in ops(run(framework, model(framework), batch()), "first")]

    threads = [threading.Thread(target=one, args=(name,)) for name in ("torch", "paddle")]
    alone = {name: [op.path for op in ops(run(name, model(name), batch()), "first")] for name in ("torch", "paddle")}
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == alone


def test_checkpointed_code_is_seen_once() -> None:
    def inner(x: Any) -> Any:
        return torch.tanh(x) * 2.0

    def forward(self: Any, x: Any) -> Any:
        return self.fc(torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=False))

    trace = run("torch", of("torch", forward), small())
    assert kinds(trace) == ["torch.tanh", "torch.Tensor.mul"]


def test_a_librarys_own_op_is_seen_by_itself() -> None:
    @torch.library.custom_op("padiff_tests::triple", mutates_args=())
    def triple(x: torch.Tensor) -> torch.Tensor:
        return x * 3.0

    triple.register_autograd(lambda ctx, gradient: gradient * 3.0)
    trace = run("torch", of("torch", lambda self, x: self.fc(triple(x))), small())
    assert [op.kind for op in ops(trace)] == ["torch.ops.padiff_tests.triple.default"]
    assert [op.path for op in ops(trace)] == ["/triple"]


def test_level_op_is_a_choice() -> None:
    with pytest.raises(padiff.errors.ArgumentError, match="level is 'ops', expected 'module' or 'op'"):
        padiff.compare(model("torch"), model("torch"), batch(), level="ops")  # type: ignore[arg-type]
