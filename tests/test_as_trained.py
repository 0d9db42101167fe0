"""What training code does around a model, and what models do that are no plain stack of layers."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import paddle
import pytest
import torch

import padiff
from tests.twins import FRAMEWORKS, PAIRS, after, batch, net, read, sgd, write

CASES = [("torch", "torch"), ("torch", "paddle"), ("paddle", "torch")]


def squared(out: Any) -> Any:
    return (out**2).mean()


def place(result: padiff.Result) -> tuple[str, str, str] | None:
    found = result.divergence
    return None if found is None else (found.base_path, found.raw_path, found.phase)


def every(count: int, model: Any, seen: list[float] | None = None) -> Callable[[], None]:
    """An optimizer that gathers the gradients of some steps before it takes one."""
    optimizer, steps = sgd(model), []

    def step() -> None:
        steps.append(1)
        if seen is not None:
            seen.append(float(model.head.weight.grad.abs().sum()))
        if len(steps) % count == 0:
            optimizer.step()
            optimizer.zero_grad() if isinstance(model, torch.nn.Module) else optimizer.clear_grad()

    return step


def freeze(parameters: Any) -> None:
    for parameter in parameters:
        if isinstance(parameter, torch.Tensor):
            parameter.requires_grad_(False)
        else:
            parameter.stop_gradient = True


# ------------------------------------------------------------------ gradients


@pytest.mark.parametrize(("base", "raw"), CASES)
def test_gathered_gradients(base: str, raw: str) -> None:
    one, other, seen = net(base), net(raw), []
    optimizers = (every(2, one, seen), every(2, other))
    result = padiff.compare(one, other, batch(), loss=squared, optimizers=optimizers, steps=4)
    assert result.aligned, str(result)
    assert seen[1] == pytest.approx(2 * seen[0], rel=1e-5)  # the same batch twice, on the same weights
    assert seen[3] == pytest.approx(2 * seen[2], rel=1e-5)
    one, other = net(base), net(raw)
    result = padiff.compare(one, other, batch(), loss=squared, optimizers=(every(2, one), every(3, other)), steps=4)
    assert result.divergence is not None
    assert (result.divergence.phase, result.divergence.step) == ("weight", 1)


@pytest.mark.parametrize(("base", "raw"), CASES)
def test_each_call_is_judged_without_what_earlier_steps_have_gathered(
    base: str, raw: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That holds the rounding of whole runs, which is more than that of one call."""
    engine, sizes = importlib.import_module("padiff.engine.step"), []
    look = engine.localise

    def seeing(*args: Any, **options: Any) -> Any:
        found = look(*args, **options)
        sizes.append([one.outcome.numbers.base_rms for one in found.state if one.phase == "gradient"])
        return found

    monkeypatch.setattr(engine, "wants_second_look", lambda *_: True)
    monkeypatch.setattr(engine, "localise", seeing)
    one, other = net(base), net(raw)
    result = padiff.compare(one, other, batch(), loss=squared, optimizers=(every(2, one), every(2, other)), steps=2)
    assert result.aligned, str(result)
    assert len(sizes) == 2 and sizes[1] == pytest.approx(sizes[0], rel=1e-5)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_gradients_that_are_never_cleared(framework: str) -> None:
    one, other = net("torch"), net(framework)
    optimizer = sgd(other)
    result = padiff.compare(one, other, batch(), loss=squared, optimizers=(sgd(one), optimizer.step), steps=3)
    assert result.divergence is not None
    assert (result.divergence.phase, result.divergence.step) == ("gradient", 1)


@pytest.mark.parametrize(("base", "raw"), CASES)
def test_several_backward_calls(base: str, raw: str) -> None:
    def halves(share: float) -> Callable[[Any], Any]:
        def loss(out: Any) -> Any:
            whole = squared(out)
            (whole * share).backward(retain_graph=True)
            return whole * 0.5

        return loss

    one, other = net(base), net(raw)
    assert padiff.compare(one, other, batch(), loss=(halves(0.5), halves(0.5))).aligned
    result = padiff.compare(one, other, batch(), loss=(halves(0.5), halves(0.25)))
    assert result.divergence is not None
    assert result.divergence.phase == "gradient"


@pytest.mark.parametrize(("base", "raw"), CASES)
def test_frozen_parameters(base: str, raw: str) -> None:
    one, other = net(base), net(raw)
    for model in (one, other):
        freeze(model.blocks[0].fc1.parameters())
    assert padiff.compare(one, other, batch(), loss=squared).aligned
    freeze(other.blocks[1].fc1.parameters())
    result = padiff.compare(one, other, batch(), loss=squared)
    assert place(result) == ("blocks.1.fc1", "blocks.1.fc1", "gradient")
    assert result.divergence is not None
    assert "it is frozen in raw" in result.divergence.comparison.outcome.message
    result = padiff.compare(other, one, batch(), loss=squared)
    assert place(result) == ("blocks.1.fc1", "blocks.1.fc1", "gradient")
    assert "it is frozen in base" in str(result)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_inference_mode(framework: str) -> None:
    one, other = net("torch"), net(framework)
    with torch.inference_mode(), paddle.no_grad():
        result = padiff.compare(one, other, batch())
        assert result.aligned, str(result)
        assert "backward was not run" in result.notes[0]
        after(other.blocks[1].fc2, lambda out: out * 1.01)
        assert place(padiff.compare(one, other, batch())) == ("blocks.1.fc2", "blocks.1.fc2", "forward")


# ------------------------------------------------------------------ wrappers


class Around(torch.nn.Module):
    """As distributed training wraps a model."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


WRAPPERS: dict[str, tuple[Callable[[Any], Any], str, str]] = {
    "torch data parallel": (torch.nn.DataParallel, "torch", "module."),
    "torch like": (Around, "torch", "module."),
    "paddle data parallel": (paddle.DataParallel, "paddle", "_layers."),
}


@pytest.mark.filterwarnings("ignore:The program will return to single-card")
@pytest.mark.parametrize("name", WRAPPERS)
@pytest.mark.parametrize("base", FRAMEWORKS)
def test_wrapped_models(name: str, base: str) -> None:
    wrap, framework, prefix = WRAPPERS[name]
    one, inner = net(base), net(framework)
    other = wrap(inner)
    result = padiff.compare(one, other, batch(), loss=squared)
    assert result.aligned, str(result)
    assert result.coverage["parameters"] == 1.0
    assert {c.raw_path for c in result.comparisons} >= {f"{prefix}blocks.1.fc2", f"{prefix}head"}
    after(inner.blocks[1].fc2, lambda out: out * 1.01)
    assert place(padiff.compare(one, other, batch())) == ("blocks.1.fc2", f"{prefix}blocks.1.fc2", "forward")
    assert place(padiff.compare(other, one, batch())) == (f"{prefix}blocks.1.fc2", "blocks.1.fc2", "forward")


# ------------------------------------------------------------------ models of other shapes


def shaped(framework: str, **options: Any) -> Any:
    """A model with a low-rank adapter, a cell that is called in a loop, and a weight that is used twice."""
    nn: Any = torch.nn if framework == "torch" else paddle.nn
    tanh = torch.tanh if framework == "torch" else paddle.tanh
    plain = {"bias": False} if framework == "torch" else {"bias_attr": False}
    module: Any = nn.Module if framework == "torch" else nn.Layer

    adapted = options.get("adapted", True)

    class LowRank(module):
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.base_layer = inner
            self.down, self.up = nn.Linear(6, 2, **plain), nn.Linear(2, 6, **plain)
            freeze(inner.parameters())

        def forward(self, x: Any) -> Any:
            return self.base_layer(x) + self.up(self.down(x)) * options.get("scale", 0.5)

    class Shaped(module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.cell, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
            self.adapted = LowRank(nn.Linear(6, 6)) if adapted else nn.Linear(6, 6)
            self.tied = self.first

        def forward(self, x: Any) -> Any:
            x = tanh(self.tied(tanh(self.first(x))))
            x = x + self.adapted(x)
            trips = options.get("trips", int((x * 0).abs().sum()) + 3)
            for trip in range(trips):
                x = tanh(self.cell(x))
                if trip == options.get("leaves_after"):
                    break
            return self.last(x)

    return Shaped()


@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_loops_adapters_and_shared_weights(base: str, raw: str) -> None:
    result = padiff.compare(shaped(base), shaped(raw), batch(), loss=squared)
    assert result.aligned, str(result)
    assert not result.unmatched
    calls = [c for c in result.comparisons if (c.raw_path, c.role, c.phase) == ("cell", "output", "forward")]
    assert len(calls) == 3
    other = shaped(raw, scale=0.6)
    assert place(padiff.compare(shaped(base), other, batch(), loss=squared)) == ("adapted", "adapted", "forward")
    other = shaped(raw)
    for parameter in other.adapted.base_layer.parameters():
        parameter.requires_grad_(True) if raw == "torch" else setattr(parameter, "stop_gradient", False)
    found = place(padiff.compare(shaped(base), other, batch(), loss=squared))
    assert found == ("adapted.base_layer", "adapted.base_layer", "gradient")


@pytest.mark.parametrize(("base", "raw"), CASES)
def test_an_adapter_on_one_side_only(base: str, raw: str) -> None:
    """It keeps what it holds: nothing at first, when the models compute the same, and later what makes them differ."""
    for swapped in (False, True):
        one, other = shaped(base, adapted=swapped), shaped(raw, adapted=not swapped)
        wrapped = (one if swapped else other).adapted
        freeze((other if swapped else one).adapted.parameters())
        write(wrapped.up.weight, 0 * read(wrapped.up.weight))
        result = padiff.compare(one, other, batch(), loss=squared)
        assert result.aligned, str(result)
        write(wrapped.up.weight, read(wrapped.up.weight) + 0.1)
        found = padiff.compare(one, other, batch(), loss=squared).divergence
        assert found is not None
        assert found.phase == "forward"
        assert "adapted" in str(found.causes[0])


class Inside(paddle.nn.Linear):
    """An adapter that is the layer itself, as PaddleNLP has it."""

    def __init__(self, scale: float) -> None:
        super().__init__(6, 6)
        self.lora_A, self.lora_B = self.create_parameter([6, 2]), self.create_parameter([2, 6])
        self.dropout, self.scale = paddle.nn.Dropout(0.2), scale

    def forward(self, x: Any) -> Any:
        added = self.dropout(x) @ self.lora_A @ self.lora_B
        return paddle.nn.functional.linear(x, self.weight, self.bias) + added * self.scale


class Around(torch.nn.Module):
    """The same around the layer, as peft has it."""

    def __init__(self) -> None:
        super().__init__()
        self.base_layer, self.lora_dropout = torch.nn.Linear(6, 6), torch.nn.Dropout(0.2)
        self.lora_A, self.lora_B = torch.nn.Linear(6, 2, bias=False), torch.nn.Linear(2, 6, bias=False)

    def forward(self, x: Any) -> Any:
        added = self.lora_B(self.lora_A(self.lora_dropout(x)))
        return self.base_layer(x) + added * 0.5


def adapting(scale: float) -> tuple[Any, Any]:
    one = torch.nn.Sequential(torch.nn.Linear(6, 6), Around(), torch.nn.Linear(6, 3))
    other = paddle.nn.Sequential(paddle.nn.Linear(6, 6), Inside(scale), paddle.nn.Linear(6, 3))
    return one, other


@pytest.mark.parametrize("swapped", [False, True])
def test_an_adapter_inside_its_layer_against_one_around_it(swapped: bool) -> None:
    order = slice(None, None, -1 if swapped else 1)
    result = padiff.compare(*adapting(0.5)[order], batch(), loss=squared)
    assert result.aligned, str(result)
    assert result.replayed == 1
    result = padiff.compare(*adapting(0.6)[order], batch(), loss=squared)
    assert place(result) == ("1", "1", "forward")
    assert result.divergence is not None and result.divergence.op is not None
    lines = (result.divergence.op.base_line, result.divergence.op.raw_line)
    assert {line.text.partition(" + ")[2] for line in lines if line} == {"added * 0.5", "added * self.scale"}


@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_unequal_trips(base: str, raw: str) -> None:
    result = padiff.compare(shaped(base), shaped(raw, trips=4), batch(), loss=squared)
    assert place(result) == ("", "", "forward")
    assert result.divergence is not None
    told = "cell is called 3 times by base and 4 times by raw: trip 4 is the first that raw takes alone"
    assert told in result.divergence.note
    assert any("called 4 times, its partner cell 3 times" in one.why for one in result.unmatched)
    result = padiff.compare(shaped(base, trips=5), shaped(raw, trips=5, leaves_after=1), batch(), loss=squared)
    assert place(result) == ("", "", "forward")
    assert result.divergence is not None
    told = "cell is called 5 times by base and twice by raw: trip 3 is the first that base takes alone"
    assert told in result.divergence.note
    result = padiff.compare(
        shaped(base, trips=5, leaves_after=2), shaped(raw, trips=7, leaves_after=2), batch(), loss=squared
    )
    assert result.aligned, str(result)


def leaving(framework: str, after: int) -> Any:
    """A model that goes through a list of blocks, and leaves early."""
    nn: Any = torch.nn if framework == "torch" else paddle.nn
    module: Any = nn.Module if framework == "torch" else nn.Layer
    many: Any = nn.ModuleList if framework == "torch" else nn.LayerList

    class Block(module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.fc = nn.LayerNorm(6), nn.Linear(6, 6)

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return super().__call__(*args, **kwargs)

        def forward(self, x: Any) -> Any:
            return x + self.fc(self.norm(x)).sin()

    class Leaving(module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks, self.last = many([Block() for _ in range(4)]), nn.Linear(6, 3)

        def forward(self, x: Any) -> Any:
            for trip, block in enumerate(self.blocks):
                x = block(x)
                if trip == after:
                    break
            return self.last(x)

    return Leaving()


@pytest.mark.parametrize(("base", "raw"), PAIRS)
@pytest.mark.parametrize(("after", "before"), [(3, 1), (0, 2)])
def test_a_list_of_blocks_that_is_left_early(base: str, raw: str, after: int, before: int) -> None:
    """The first block that only one of them calls is named, and the line that calls it."""
    result = padiff.compare(leaving(base, after), leaving(raw, before), batch(), loss=squared)
    assert place(result) == ("", "", "forward")
    first = min(after, before) + 1
    found = result.divergence
    assert found is not None and found.op is not None
    side = "base" if after > before else "raw"
    told = f"of blocks base calls {after + 1} and raw {before + 1}: blocks.{first} is the first that {side} calls alone"
    assert told in found.note
    assert (found.op.base, found.op.raw) == (("Block", "") if side == "base" else ("", "Block"))
    line = found.op.base_line if side == "base" else found.op.raw_line
    assert line is not None and line.text == "x = block(x)"
    assert f"it starts with the module Block, which {'raw' if side == 'base' else 'base'} does not do" in str(found)
    assert padiff.compare(leaving(base, before), leaving(raw, before), batch(), loss=squared).aligned


def wrapped(framework: str, twice: int) -> Any:
    """The same blocks inside a module that corresponds to none, one of them called twice."""
    made = leaving(framework, 3)
    nn: Any = torch.nn if framework == "torch" else paddle.nn
    module: Any = nn.Module if framework == "torch" else nn.Layer

    class Decoder(module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = made.blocks

        def forward(self, x: Any) -> Any:
            for place, layer in enumerate(self.layers):
                x = layer(x)
                if place == twice:
                    x = layer(x)
            return x

    class Wrapped(module):
        def __init__(self) -> None:
            super().__init__()
            self.decoder, self.head = Decoder(), made.last

        def forward(self, x: Any) -> Any:
            return self.head(self.decoder(x))

    return Wrapped()


@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_a_block_called_once_more_is_the_fault_of_who_calls_it(base: str, raw: str) -> None:
    """Neither of the block, nor of what is inside; and the gradients of its parameters follow from it."""
    result = padiff.compare(leaving(base, 3), wrapped(raw, 2), batch(), loss=squared)
    assert [one.raw_path for one in result.divergences] == ["decoder"], str(result)
    (found,) = result.divergences
    told = "decoder.layers.2 is called once by base and twice by raw: trip 2 is the first that raw takes alone"
    assert told in found.note
    assert found.op is not None and found.op.raw_line is not None
    assert (found.op.base, found.op.raw, found.op.raw_line.text) == ("", "Block", "x = layer(x)")
    assert "raw calls decoder.layers.2, which base does not do" in str(found.causes[0])
    assert padiff.compare(leaving(base, 3), wrapped(raw, 4), batch(), loss=squared).aligned


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_hooks_of_the_users_own(framework: str) -> None:
    """They run, they may change what passes, and they are still there afterwards."""
    one, other = net("torch"), net(framework)
    seen: list[str] = []
    for model in (one, other):
        if isinstance(model, torch.nn.Module):
            model.blocks[0].fc1.register_forward_pre_hook(lambda _, args: (args[0] * 2,))
            model.blocks[1].fc1.register_forward_hook(lambda *_: seen.append("forward"))
            model.blocks[1].fc1.register_full_backward_hook(lambda *_: seen.append("backward"))
        else:
            model.blocks[0].fc1.register_forward_pre_hook(lambda _, args: (args[0] * 2,))
            model.blocks[1].fc1.register_forward_post_hook(lambda *_: seen.append("forward"))
    result = padiff.compare(one, other, batch(), loss=squared)
    assert result.aligned, str(result)
    assert "forward" in seen
    assert "backward" in seen
    after(other.blocks[1].fc1, lambda out: out * 1.01)
    assert place(padiff.compare(one, other, batch())) == ("blocks.1.fc1", "blocks.1.fc1", "forward")
    before = len(seen)
    one(torch.from_numpy(batch()))
    assert len(seen) == before + 1


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("path", ["blocks.1.fc1", "blocks.1"])
def test_a_hook_that_changes_what_a_module_is_given_is_the_modules(framework: str, path: str) -> None:
    """Whoever calls it gave it the right thing."""
    raw = net(framework)
    found = raw.blocks[1] if path == "blocks.1" else raw.blocks[1].fc1
    found.register_forward_pre_hook(lambda _, args: (args[0] * 0.9,))
    assert place(padiff.compare(net("torch"), raw, batch())) == (path, path, "forward")
