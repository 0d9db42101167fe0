"""Compiled models: outputs, gradients and weights are the compiled code's, places come from the eager form."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paddle
import pytest
import torch

import padiff
from padiff.align import same_thing
from tests import own_code
from tests.twins import FRAMEWORKS, batch, net

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    torch._dynamo.reset()
    gc.collect()  # paddle 3.3.1 can crash while parts of a loaded program wait for it


def squared(out: Any) -> Any:
    return (out**2).mean()


def place(result: padiff.Result) -> tuple[str, str, str] | None:
    found = result.divergence
    return None if found is None else (found.base_path, found.raw_path, found.phase)


def warm(model: Any) -> Any:
    """As it is after training: called before anybody looks."""
    x = batch()
    model(paddle.to_tensor(x) if isinstance(model, paddle.nn.Layer) else torch.from_numpy(x))
    return model


def whole(model: Any) -> Any:
    return torch.compile(model, backend="aot_eager")


def in_place(model: Any) -> Any:
    model.compile(backend="aot_eager")
    return model


def one_block(model: Any) -> Any:
    model.blocks[1] = torch.compile(model.blocks[1], backend="aot_eager")
    return model


def static(model: Any) -> Any:
    return paddle.jit.to_static(model, full_graph=True)


def static_by_opcode(model: Any) -> Any:
    return paddle.jit.to_static(model, full_graph=False)


def one_static_block(model: Any) -> Any:
    paddle.jit.to_static(model.blocks[1], full_graph=True)
    return model


def its_forward(model: Any) -> Any:
    model.forward = torch.compile(model.forward, backend="aot_eager")
    return model


def static_forward(model: Any) -> Any:
    model.forward = paddle.jit.to_static(model.forward, full_graph=True)
    return model


WAYS: dict[str, tuple[str, Callable[[Any], Any], str, str]] = {
    "torch.compile": ("torch", whole, "_orig_mod.blocks.1", "torch.compile: the whole model"),
    "Module.compile": ("torch", in_place, "blocks.1", "Module.compile: the whole model"),
    "a compiled block": ("torch", one_block, "blocks.1._orig_mod", "torch.compile: blocks.1"),
    "a compiled forward": ("torch", its_forward, "blocks.1", "torch.compile: the whole model"),
    "a static forward": ("paddle", static_forward, "blocks.1", "paddle.jit.to_static: the whole model"),
    "to_static": ("paddle", static, "blocks.1", "paddle.jit.to_static: the whole model"),
    "to_static, opcodes": ("paddle", static_by_opcode, "blocks.1", "paddle.jit.to_static: the whole model"),
    "a static block": ("paddle", one_static_block, "blocks.1", "paddle.jit.to_static: blocks.1"),
}


def built(framework: str, bug: str = "none") -> Any:
    model = net(framework)
    model.train()
    if bug == "forward":
        model.blocks[1].residual = False
    elif bug == "backward":
        model.blocks[1].scale_gradient = True
    return model


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("base", FRAMEWORKS)
def test_against_an_eager_model(way: str, base: str) -> None:
    framework, compiled, _, how = WAYS[way]
    other = compiled(built(framework))
    if base == "torch":  # and fresh against paddle
        warm(other)
    result = padiff.compare(built(base), other, batch(), loss=squared)
    assert result.aligned, str(result)
    assert {c.phase for c in result.comparisons} >= {"forward", "backward", "gradient", "buffer"}
    assert sum(c.phase == "gradient" for c in result.comparisons) == 36
    assert any(c.raw_path == "" and c.role == "output" for c in result.comparisons)
    said = f"raw is compiled ({how}): outputs, gradients and weights are the compiled code's; modules inside were"
    assert any(note.startswith(said) for note in result.notes)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bug", ["forward", "backward"])
def test_places_come_from_the_eager_form(way: str, bug: str) -> None:
    framework, compiled, path, _ = WAYS[way]
    if framework == "paddle" and bug == "backward":
        pytest.skip("a PyLayer cannot be made static")
    other = warm(compiled(built(framework, bug)))
    result = padiff.compare(built("torch"), other, batch(), loss=squared)
    assert place(result) == ("blocks.1", path, bug), str(result)
    assert any("modules inside were compared in their eager form" in note for note in result.notes)


class Scaled(torch.nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.inner, self.factor = torch.nn.Linear(6, 6), factor

    def forward(self, x: Any) -> Any:
        made = self.inner(x)
        made = made * self.factor
        return made + x


def test_the_line_inside_a_part_that_is_compiled() -> None:
    one = torch.nn.Sequential(torch.nn.Linear(6, 6), Scaled(1.0))
    other = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.compile(Scaled(1.2), backend="eager"))
    found = padiff.compare(one, other, batch()).divergence
    assert found is not None and found.op is not None
    lines = [line.text for line in (found.op.base_line, found.op.raw_line) if line is not None]
    assert lines == ["made = made * self.factor"] * 2


def test_a_compiled_base() -> None:
    base = warm(whole(built("torch")))
    assert padiff.compare(base, built("paddle"), batch(), loss=squared).aligned
    result = padiff.compare(base, built("paddle", "forward"), batch(), loss=squared)
    assert place(result) == ("_orig_mod.blocks.1", "blocks.1", "forward")
    base = warm(static(built("paddle")))
    result = padiff.compare(base, built("torch", "forward"), batch(), loss=squared)
    assert place(result) == ("blocks.1", "blocks.1", "forward")


def test_a_compiler_that_is_wrong() -> None:
    """The eager form agrees: what differs is the compiler's."""

    def broken(graph: Any, _: Any) -> Callable[..., Any]:
        return lambda *args: tuple(out * 1.01 for out in graph(*args))

    other = torch.compile(built("torch"), backend=broken)
    result = padiff.compare(built("torch"), other, batch(), loss=squared)
    assert place(result) == ("", "", "forward")
    assert result.divergence is not None
    assert "in their eager form the models agree: look at what the compiler made of them" in result.divergence.note


@pytest.mark.parametrize("compiled", [static, static_by_opcode])
def test_static_programs_of_eval_mode_have_no_backward(compiled: Callable[[Any], Any]) -> None:
    other = compiled(net("paddle"))
    result = padiff.compare(net("torch"), other, batch(), loss=squared)
    assert result.aligned, str(result)
    assert "compiled in eval mode, which gives no gradients: only forward was compared" in "\n".join(result.notes)
    assert {c.phase for c in result.comparisons} == {"forward", "buffer"}


# ------------------------------------------------------------------ graphs that know their modules


def program(model: Any) -> Any:
    return torch.export.export(model, (torch.from_numpy(batch()),))


GRAPHS: dict[str, Callable[[Any], Any]] = {
    "an exported module": lambda model: program(model).module(),
    "an exported program": program,
    "unflattened": lambda model: torch.export.unflatten(program(model)),
    "torch.fx": torch.fx.symbolic_trace,
}


@pytest.mark.parametrize("way", GRAPHS)
@pytest.mark.parametrize("other", FRAMEWORKS)
@pytest.mark.parametrize("bug", ["none", "forward"])
def test_graphs_are_compared_module_by_module(way: str, other: str, bug: str) -> None:
    graph = GRAPHS[way](built("torch", bug))
    for models in ((built(other), graph), (graph, built(other))):
        result = padiff.compare(*models, batch(), loss=squared)
        assert place(result) == (None if bug == "none" else ("blocks.1", "blocks.1", "forward")), str(result)
        assert result.aligned is (bug == "none")
        paths = {c.raw_path for c in result.comparisons if c.phase == "backward"}
        assert {"embed", "blocks.0.norm", "blocks.1.act", "blocks.2.two", "head"} <= paths
        assert {c.phase for c in result.comparisons} >= {"forward", "backward", "gradient", "buffer"}
        assert sum(c.phase == "gradient" for c in result.comparisons) == 36
        assert not result.unmatched
    if way == "torch.fx" and bug != "none":  # it keeps no lines: what raw does first says nothing
        assert result.divergence is not None and result.divergence.op is None
    if way != "unflattened":
        assert "weights are its graph's, and so is what was compared of modules inside" in "\n".join(result.notes)
        assert "base is compiled (torch." in "\n".join(result.notes)


@pytest.mark.parametrize("other", FRAMEWORKS)
@pytest.mark.parametrize(
    ("bug", "op", "line"),
    [
        ("eps", "add", "h = x * torch.rsqrt(mean_square + 1e-3)"),
        ("operands", "matmul", "scores = k @ q.transpose(-1, -2)"),
        ("axis", "softmax", "weights = torch.nn.functional.softmax(scores, -2)"),
        ("extra", "tanh", "context = context.tanh()"),
    ],
)
def test_a_graph_knows_the_lines_it_was_made_of(other: str, bug: str, op: str, line: str) -> None:
    x = own_code.batch()
    graph = torch.export.export(own_code.model("torch", bug), (torch.from_numpy(x),)).module()
    found = padiff.compare(own_code.model(other), graph, x).divergence
    assert found is not None and found.op is not None and found.op.raw_line is not None
    assert (found.raw_path, found.phase) == ("second", "forward")
    assert found.op.raw.startswith("torch.ops.aten.")
    assert same_thing(found.op.raw) == op
    assert found.op.raw_line.text == line
    result = padiff.compare(own_code.model(other), graph, x, level="op")
    assert {"second/rsqrt", "second/matmul", "second/softmax"} <= {one.raw_path for one in result.comparisons}


def test_a_graph_is_left_as_it_was() -> None:
    graph = torch.export.export(built("torch"), (torch.from_numpy(batch()),)).module()
    before = set(vars(graph))
    assert padiff.compare(built("torch"), graph, batch(), loss=squared).aligned
    assert set(vars(graph)) == before
    graph(torch.from_numpy(batch()))


class Calls(torch.nn.Module):
    """Called twice, given several things by name, returning several, some of which nobody takes."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.cell, self.inner, self.drop = torch.nn.Linear(6, 6), Inner(factor), torch.nn.Dropout(0.4)
        self.rnn = torch.nn.LSTM(6, 6, batch_first=True)
        self.act, self.norm = torch.nn.ReLU(inplace=True), RootNorm()

    def forward(self, x: Any, *, scale: Any) -> Any:
        x = self.cell(torch.tanh(self.cell(x)))
        x = x + self.norm(x)
        one, other, _ = self.inner(other=x * 2, x=x)
        series, _ = self.rnn(self.drop(one)[:, None])
        return {"first": self.act(series[:, 0] + other) * scale, "second": one}


class RootNorm(torch.nn.Module):
    """Casts to what it is already: the graph has it that others take what it cast."""

    def forward(self, x: Any) -> Any:
        x = x.to(torch.float32)
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class Inner(torch.nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.one, self.two, self.factor = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6), factor

    def forward(self, x: Any, other: Any) -> Any:
        return self.one(x) * self.factor, self.two(other), x.sum()


@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_calls_of_a_graph(factor: float) -> None:
    x = torch.from_numpy(batch())
    inputs = padiff.Inputs(x, scale=torch.tensor(1.5))
    graph = torch.export.export(Calls(factor), (x,), {"scale": torch.tensor(1.5)}).module()
    result = padiff.compare(Calls(), graph, inputs)
    assert place(result) == (None if factor == 1.0 else ("inner", "inner", "forward")), str(result)
    assert not result.unmatched
    assert result.replayed == 1
    outputs = [c for c in result.comparisons if c.role == "output" and c.phase == "forward"]
    assert sum(c.raw_path == "cell" for c in outputs) == 2
    assert sum(c.raw_path == "inner" for c in outputs) == 3
    assert sum(c.raw_path == "rnn" for c in outputs) == 3


# ------------------------------------------------------------------ code that nobody sees into


class Scripted(torch.nn.Module):
    def __init__(self, residual: bool = True) -> None:
        super().__init__()
        self.first, self.norm, self.bn = torch.nn.Linear(6, 6), torch.nn.LayerNorm(6), torch.nn.BatchNorm1d(6)
        self.last, self.residual = torch.nn.Linear(6, 3), residual

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(torch.tanh(self.first(x)))
        return self.last(self.bn(x + h if self.residual else h))


class Static(paddle.nn.Layer):
    """The same."""

    def __init__(self, residual: bool = True) -> None:
        super().__init__()
        self.first, self.norm, self.bn = paddle.nn.Linear(6, 6), paddle.nn.LayerNorm(6), paddle.nn.BatchNorm1D(6)
        self.last, self.residual = paddle.nn.Linear(6, 3), residual

    def forward(self, x: Any) -> Any:
        h = self.norm(paddle.tanh(self.first(x)))
        return self.last(self.bn(x + h if self.residual else h))


def traced(model: Any) -> Any:
    return torch.jit.trace(model, torch.from_numpy(batch()))


@pytest.mark.parametrize("compiled", [torch.jit.script, traced])
@pytest.mark.parametrize("other", [Scripted, Static])
def test_scripts_are_compared_as_a_whole(compiled: Callable[[Any], Any], other: Callable[[], Any]) -> None:
    for right in (True, False):
        script, model = compiled(Scripted(right)), other()
        for models in ((model, script), (script, model)):
            result = padiff.compare(*models, batch(), loss=squared)
            assert place(result) == (None if right else ("", "", "forward")), str(result)
            assert result.aligned is right
            assert right or (result.divergence is not None and result.divergence.op is None)  # nobody sees into it
            assert sum(c.phase == "gradient" for c in result.comparisons) == 8
            assert sum(c.phase == "buffer" for c in result.comparisons) >= 2
            told = (
                "(torch.jit: the whole model): outputs, gradients and weights are the compiled code's; modules inside"
            )
            assert f"{told} were not compared" in "\n".join(result.notes)


def test_a_script_inside_a_model() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.jit.script(Scripted(False)))
    result = padiff.compare(torch.nn.Sequential(torch.nn.Linear(6, 6), Scripted()), model, batch())
    assert place(result) == ("1", "1", "forward")
    assert {c.raw_path for c in result.comparisons if c.phase == "backward"} == {"0", "1"}


@pytest.mark.parametrize("other", [Scripted, Static])
def test_a_program_that_was_saved(other: Callable[[], Any], tmp_path: Path) -> None:
    for right in (True, False):
        saved, model = Static(right), other()
        saved.eval()
        model.eval()
        paddle.jit.save(saved, str(tmp_path / "net"), input_spec=[paddle.static.InputSpec([None, 6], "float32")])
        loaded = paddle.jit.load(str(tmp_path / "net"))
        result = padiff.compare(model, loaded, batch())
        assert place(result) == (None if right else ("", "", "forward")), str(result)
        assert result.aligned is right
        assert result.plan is not None
        filled = {entry.path.partition(".")[2]: entry.sources[0].path for entry in result.plan.entries}
        assert set(filled) == {"weight", "bias", "_mean", "_variance"}
        assert "raw is compiled (paddle.jit.load: the whole model)" in "\n".join(result.notes)
        loaded.train()  # a saved program has gradients then
        result = padiff.compare(model, loaded, batch(), loss=squared)
        assert sum(c.phase == "gradient" for c in result.comparisons) == 8
        assert result.aligned is right


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_a_model_compiles_without_telling_is_not_seen_half(framework: str) -> None:
    """Hooks of ours are not compiled with it, and what has no partner is told."""
    model, x = built(framework), batch()

    def middle(h: Any) -> Any:
        return model.blocks[1](model.blocks[0](h))

    if framework == "torch":
        hidden = torch.compile(middle, backend="aot_eager")
    else:
        hidden = paddle.jit.to_static(middle, full_graph=True)
    model.forward = lambda x: model.head(model.bn(model.blocks[2](hidden(model.embed(x)))))
    result = padiff.compare(built("torch"), model, x, loss=squared)
    assert result.aligned, str(result)
    assert {"blocks.0", "blocks.0.norm", "blocks.1.fc2"} <= {one.path for one in result.unmatched}
    assert {c.raw_path for c in result.comparisons} >= {"embed", "blocks.2", "head"}


def test_steps_of_a_compiled_model() -> None:
    one, other = built("torch"), whole(built("torch"))
    optimizers = (torch.optim.SGD(one.parameters(), 0.1), torch.optim.SGD(other.parameters(), 0.1))
    result = padiff.compare(one, other, batch(), loss=squared, optimizers=optimizers, steps=3)
    assert result.aligned, str(result)
    assert sum(c.phase == "weight" for c in result.comparisons) == 3 * 36


# ------------------------------------------------------------------ random draws


class TorchDrops(torch.nn.Module):
    def __init__(self, share: float = 0.3) -> None:
        super().__init__()
        self.first, self.drop, self.last = torch.nn.Linear(6, 6), torch.nn.Dropout(share), torch.nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(torch.tanh(self.first(x))))


class PaddleDrops(paddle.nn.Layer):
    """The same."""

    def __init__(self, share: float = 0.3) -> None:
        super().__init__()
        self.first, self.drop, self.last = paddle.nn.Linear(6, 6), paddle.nn.Dropout(share), paddle.nn.Linear(6, 6)

    def forward(self, x: Any) -> Any:
        return self.last(self.drop(paddle.tanh(self.first(x))))


DROPS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "torch.compile": (TorchDrops, whole),
    "to_static": (PaddleDrops, static),
}


@pytest.mark.parametrize("way", DROPS)
@pytest.mark.parametrize("other", [TorchDrops, PaddleDrops])
def test_draws_of_compiled_code(way: str, other: Any) -> None:
    """Within a framework generators begin alike; across, and where shares differ, the eager form takes base's draws."""
    made, compiled = DROPS[way]
    result = padiff.compare(other(), compiled(made()), batch(), loss=squared)
    assert result.aligned, str(result)
    told = "\n".join(result.notes)
    if made is other:
        assert "outputs, gradients and weights are the compiled code's" in told
        assert "random numbers that compiled code draws are not replayed" in told
    else:
        assert result.replayed == 1
        assert "it draws random numbers for itself as compiled, so all that was compared is its eager form" in told
    found = padiff.compare(other(), compiled(made(0.5)), batch(), loss=squared).divergence
    assert found is not None
    assert found.base_path == "drop"
    assert "p is 0.5 in raw and 0.3 in base" in str(found.causes[0])


def test_draws_of_a_script_are_told() -> None:
    result = padiff.compare(PaddleDrops(), torch.jit.script(TorchDrops()), batch())
    assert not result.aligned
    assert "random numbers that compiled code draws are not replayed" in "\n".join(result.notes)


class Pooled(torch.nn.Module):
    """Returns what it pools besides what it made of that."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.pool = net("torch"), torch.nn.Linear(5, 3)

    def forward(self, x: Any) -> Any:
        whole = self.net(x)
        return whole, self.pool(whole)


@pytest.mark.parametrize("compiled", [whole, in_place])
def test_an_output_that_is_made_of_another(compiled: Callable[[Any], Any]) -> None:
    """The compiled code gives the first its own share of the gradient only, however it was compiled."""
    result = padiff.compare(Pooled(), compiled(Pooled()), batch())
    assert result.aligned, str(result)
