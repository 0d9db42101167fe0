"""Compiled models: outputs, gradients and weights are the compiled code's, places come from the eager form."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import paddle
import pytest
import torch

import padiff
from tests.twins import FRAMEWORKS, batch, net

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    torch._dynamo.reset()


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


WAYS: dict[str, tuple[str, Callable[[Any], Any], str, str]] = {
    "torch.compile": ("torch", whole, "_orig_mod.blocks.1", "torch.compile: the whole model"),
    "Module.compile": ("torch", in_place, "blocks.1", "Module.compile: the whole model"),
    "a compiled block": ("torch", one_block, "blocks.1._orig_mod", "torch.compile: blocks.1"),
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
    said = f"raw is compiled ({how}): outputs, gradients and weights are the compiled code's; modules inside were not"
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


def test_static_programs_of_eval_mode_have_no_backward() -> None:
    other = static(net("paddle"))
    result = padiff.compare(net("torch"), other, batch(), loss=squared)
    assert result.aligned, str(result)
    assert "compiled in eval mode, which gives no gradients: only forward was compared" in "\n".join(result.notes)
    assert {c.phase for c in result.comparisons} == {"forward", "buffer"}


def test_traced_and_exported() -> None:
    x = torch.from_numpy(batch())
    for compiled in (
        lambda model: torch.jit.trace(model, x),
        lambda model: torch.export.export(model, (x,)).module(),
    ):
        right, wrong = net("torch"), net("torch")
        wrong.blocks[1].residual = False
        result = padiff.compare(net("torch"), compiled(right), batch(), loss=squared)
        assert result.aligned, str(result)
        assert sum(c.phase == "gradient" for c in result.comparisons) == 36
        result = padiff.compare(net("torch"), compiled(wrong), batch(), loss=squared)
        assert place(result) == ("", "", "forward")
        assert any("modules inside were not compared" in note for note in result.notes)


def test_steps_of_a_compiled_model() -> None:
    one, other = built("torch"), whole(built("torch"))
    optimizers = (torch.optim.SGD(one.parameters(), 0.1), torch.optim.SGD(other.parameters(), 0.1))
    result = padiff.compare(one, other, batch(), loss=squared, optimizers=optimizers, steps=3)
    assert result.aligned, str(result)
    assert sum(c.phase == "weight" for c in result.comparisons) == 3 * 36
