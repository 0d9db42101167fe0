"""Black and white lists: exactly these layers are recorded, dumped, copied and compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from padiff import LayerMap, add_special_init, assign_weight, auto_diff, check_weights, create_model
from padiff.errors import ArgumentError
from padiff.store import Dump
from padiff.weights import special
from tests.autodiff.blocks import EVERY, FRAMEWORKS, blocks, data, linear, tensor, twins
from tests.autodiff.conftest import Log

pytestmark = pytest.mark.usefixtures("root")

INSIDE = {"block1.fc1", "block1.act", "block1.fc2"}
LINEAR = {"block1.fc1", "block1.fc2", "block2.fc1", "block2.fc2", "head"}
BLOCKS = {"block1", "block2"}
IN_BLOCKS = {path for path in EVERY if path.startswith("block") and "." in path}

Tell = Callable[[Any, str], None]


def block(proxy: Any) -> type:
    return type(proxy.model.block1)


BLACK: dict[str, tuple[Tell, set[str]]] = {
    "by default": (lambda p, f: p.update_black_list(p.block1), {"block1", *INSIDE}),
    "all": (lambda p, f: p.update_black_list([p.block1], mode="all"), {"block1", *INSIDE}),
    "self": (lambda p, f: p.update_black_list([p.block1], mode="self"), {"block1"}),
    "sublayers": (lambda p, f: p.update_black_list([p.block1], mode="sublayers"), INSIDE),
    "two calls": (
        lambda p, f: (p.update_black_list(p.head), p.update_black_list(p.block1, "sublayers")),  # type: ignore[func-returns-value]
        {"head", *INSIDE},
    ),
    "two layers": (lambda p, f: p.update_black_list((p.norm, p.block1.act)), {"norm", "block1.act"}),
    "the model": (lambda p, f: p.update_black_list(p.model, "self"), {""}),
    "the model and all": (lambda p, f: p.update_black_list(p.model), set(EVERY)),
    "a class by default": (lambda p, f: p.update_black_list_with_class(block(p)), BLOCKS | IN_BLOCKS),
    "a class, all": (lambda p, f: p.update_black_list_with_class(block(p), mode="all"), BLOCKS | IN_BLOCKS),
    "a class, self": (lambda p, f: p.update_black_list_with_class(block(p), mode="self"), BLOCKS),
    "a class, sublayers": (lambda p, f: p.update_black_list_with_class(block(p), mode="sublayers"), IN_BLOCKS),
    "two classes": (
        lambda p, f: p.update_black_list_with_class((linear(f), type(p.norm))),
        {*LINEAR, "norm"},
    ),
    "a class that is not there": (lambda p, f: p.update_black_list_with_class(Path), set()),
}
WHITE: dict[str, tuple[Tell, set[str]]] = {
    "by default": (lambda p, f: p.update_white_list(p.block1), {"block1"}),
    "self": (lambda p, f: p.update_white_list([p.block1], mode="self"), {"block1"}),
    "sublayers": (lambda p, f: p.update_white_list([p.block1], mode="sublayers"), INSIDE),
    "all": (lambda p, f: p.update_white_list([p.block1], mode="all"), {"block1", *INSIDE}),
    "a class by default": (lambda p, f: p.update_white_list_with_class(linear(f)), LINEAR),
    "a class, all": (lambda p, f: p.update_white_list_with_class(block(p), mode="all"), BLOCKS | IN_BLOCKS),
    "a class, self": (lambda p, f: p.update_white_list_with_class(block(p), mode="self"), BLOCKS),
    "a class, sublayers": (lambda p, f: p.update_white_list_with_class(block(p), mode="sublayers"), IN_BLOCKS),
    "a class that is not there": (lambda p, f: p.update_white_list_with_class(Path), set()),
    "white over black": (
        lambda p, f: (p.update_black_list(p.block1), p.update_white_list(p.block1.fc1)),  # type: ignore[func-returns-value]
        {"block1.fc1"},
    ),
    "black after white": (
        lambda p, f: (p.update_white_list([p.head, p.norm]), p.update_black_list(p.head)),  # type: ignore[func-returns-value]
        {"head", "norm"},
    ),
}
CASES = [
    *(pytest.param(tell, set(EVERY) - out, id=f"black, {name}") for name, (tell, out) in BLACK.items()),
    *(pytest.param(tell, {"", *kept}, id=f"white, {name}") for name, (tell, kept) in WHITE.items()),
]


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(("tell", "kept"), CASES)
def test_exactly_these_are_recorded(framework: str, tell: Tell, kept: set[str]) -> None:
    proxy = create_model(blocks(framework))
    tell(proxy, framework)
    proxy.backward(proxy(tensor(framework, data())).mean())
    assert [call.path for call in proxy.report.calls] == [path for path in EVERY if path in kept]
    proxy.try_dump()
    step = Dump.open(Path(proxy.dump_path) / "step_0" / "rank_0").steps[0]
    assert [call.path for call in step.calls] == [path for path in EVERY if path in kept]
    for values in (step.weights, step.parameter_gradients, step.buffers):
        assert {path.rpartition(".")[0] for path in values} <= kept
    with_weights = {path for path in kept if path in LINEAR | {"norm"}}
    assert {path.rpartition(".")[0] for path in step.weights} == with_weights
    assert {path.rpartition(".")[0] for path in step.parameter_gradients} == with_weights


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_layer_under_two_names_is_one(framework: str) -> None:
    model = blocks(framework)
    model.block2 = model.block1
    proxy = create_model(model)
    proxy.update_black_list(proxy.block2.act)
    proxy(tensor(framework, data()))
    once = ["block1.fc1", "block1.fc2", "block1"]
    assert [call.path for call in proxy.report.calls] == [*once, *once, "norm", "head", ""]


def test_a_tied_weight_belongs_to_whoever_is_recorded() -> None:
    models = [torch.nn.Sequential(torch.nn.Embedding(7, 4), torch.nn.Linear(4, 7, bias=False)) for _ in range(2)]
    proxies = []
    for model, name in zip(models, "ab", strict=True):
        model[1].weight = model[0].weight
        proxy = create_model(model, name)
        proxy.update_white_list(proxy[1])
        proxy.backward(proxy(torch.arange(7)).mean())
        proxy.try_dump()
        proxies.append(proxy)
    step = Dump.open(Path(proxies[0].dump_path) / "step_0" / "rank_0").steps[0]
    assert list(step.weights) == list(step.parameter_gradients) == ["0.weight"]
    assert not check_weights(proxies[0].dump_path, proxies[1].dump_path)


@pytest.mark.parametrize("name", ["PADIFF_SIKP_WRAP_LAYER", "PADIFF_SKIP_WRAP_LAYER"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_layers_without_parameters_may_be_left_out(framework: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "TRUE")
    proxy = create_model(blocks(framework))
    proxy(tensor(framework, data()))
    assert [call.path for call in proxy.report.calls] == [path for path in EVERY if not path.endswith("act")]


def changed(proxy: Any, path: str) -> None:
    """Another weight, in place."""
    layer = proxy
    for name in path.split("."):
        layer = getattr(layer, name)
    if proxy.framework == "torch":
        layer.weight.data.mul_(1.5)
    else:
        layer.weight.set_value(layer.weight * 1.5)


def weight(proxy: Any, path: str) -> np.ndarray:
    layer = proxy
    for name in path.split("."):
        layer = getattr(layer, name)
    return np.array(layer.weight.detach().numpy())


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_weights_on_the_black_list_are_left_alone(framework: str) -> None:
    one, other = (create_model(model, name) for model, name in zip(twins(framework, framework), "ab", strict=True))
    for path in ("block1.fc1", "block2.fc1", "head"):
        changed(one, path)
    before = {path: weight(other, path) for path in ("block1.fc1", "block2.fc1", "head")}
    for proxy in (one, other):
        proxy.update_black_list([proxy.block1, proxy.block2])
        proxy.update_white_list(proxy.block2.fc1)
    assert assign_weight(one, other)
    assert np.array_equal(weight(other, "block1.fc1"), before["block1.fc1"])
    assert np.array_equal(weight(other, "block2.fc1"), weight(one, "block2.fc1"))
    assert np.array_equal(weight(other, "head"), weight(one, "head"))  # a white list says what is recorded, no more


@pytest.mark.parametrize("pair", [(one, other) for one in FRAMEWORKS for other in FRAMEWORKS])
def test_auto_diff_compares_what_the_lists_leave(pair: tuple[str, str], log: Log) -> None:
    one, other = (create_model(model, name) for model, name in zip(twins(*pair), "ab", strict=True))
    inputs = tuple({"x": tensor(framework, data())} for framework in pair)
    options: dict[str, Any] = {"auto_init": False, "atol": 1e-5, "diff_phase": "forward"}
    changed(other, "block2.fc2")
    assert not auto_diff(base_model=one, raw_model=other, inputs=inputs, **options)
    assert any("Route: a(base_model).block2.fc2" in line for line in log())
    for proxy in (one, other):
        proxy.update_black_list(proxy.block2)
    assert not auto_diff(base_model=one, raw_model=other, inputs=inputs, **options)
    printed = log()
    assert "    Route: a(base_model)" in printed
    assert any("in the module's own code between its children block1 (line " in line for line in printed)


# ------------------------------------------------------------------ layer maps


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_layers_of_the_maps_belong_together(framework: str, log: Log) -> None:
    first, second = blocks("torch"), blocks(framework)
    one, other = create_model(first, "a"), create_model(second, "b")
    one.set_layer_map([one.block1, one.block2])
    other.set_layer_map([other.block2, other.block1])
    assert assign_weight(one, other)
    log()
    a, b = weight(one, "block1.fc1"), weight(other, "block2.fc1")
    assert np.array_equal(a, b if framework == "torch" else b.T)
    other.set_layer_map([other.block2])
    with pytest.raises(ArgumentError, match="base names 2 layers, raw 1"):
        assign_weight(one, other)


def test_layers_that_are_found(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(special, "_functions", {})
    add_special_init("torch", "TorchBlock", "paddle", "PaddleBlock", lambda base, raw: None)
    one, other = create_model(blocks("torch"), "a"), create_model(blocks("paddle"), "b")
    assert one.auto_layer_map("base")
    assert log() == [
        *("auto_layer_map: a (torch) as base model", "    block1 (TorchBlock)", "    block2 (TorchBlock)"),
        "    2 layers mapped",
    ]
    assert other.auto_layer_map("raw")
    assert log()[-1] == "    2 layers mapped"
    assert other.auto_layer_map("base")  # nothing is filled from these
    assert log()[-1] == "    0 layers mapped"
    assert assign_weight(one, other)


def test_a_layer_map_takes_proxies() -> None:
    one, other = create_model(blocks("torch"), "a"), create_model(blocks("paddle"), "b")
    layer_map = LayerMap()
    layer_map.ignore_class(one, linear("torch"))
    layer_map.ignore_class(other, linear("paddle"))
    layer_map.auto(one, other)
    layer_map.map = {one.block1: other.block1}
    assert assign_weight(one, other, layer_map)


WRONG = {
    "mode": (lambda p: p.update_black_list(p.head, mode="some"), "update_black_list: mode is 'some'"),
    "a class as layer": (lambda p: p.update_black_list(int), "update_black_list: layers is a type"),
    "a path": (lambda p: p.update_white_list("head"), "update_white_list: layers is a str"),
    "a path among layers": (lambda p: p.update_white_list(["head"]), "'head' is no layer of TorchBlocks"),
    "another model's": (lambda p: p.update_white_list(blocks("torch").head), "a Linear is no layer of TorchBlocks"),
    "a layer as class": (lambda p: p.update_white_list_with_class(p.head), "layer_class is Linear"),
    "mode of a class": (lambda p: p.update_black_list_with_class(Path, "x"), "with_class: mode is 'x'"),
    "a map of paths": (lambda p: p.set_layer_map("head"), "layers is a str"),
    "a map of others": (lambda p: p.set_layer_map([blocks("torch")]), "layers holds a TorchBlocks"),
    "a third place": (lambda p: p.auto_layer_map("left"), "model_place is 'left'"),
}


@pytest.mark.parametrize("call", WRONG.values(), ids=list(WRONG))
def test_wrong_calls(call: tuple[Callable[[Any], Any], str]) -> None:
    wrong, text = call
    with pytest.raises(ArgumentError) as caught:
        wrong(create_model(blocks("torch")))
    assert text in str(caught.value)
