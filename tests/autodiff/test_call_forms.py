"""Every way to write the call: which model is base, whose is the first of a pair, old names and new."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

from padiff import LayerMap, assign_weight, auto_diff
from tests.autodiff.conftest import Log
from tests.autodiff.models import PAIRS, SimpleLayer, SimpleModule, simple, tensor, weight_of


def inputs_of(first: str, second: str, rows: int = 4) -> Any:
    array = np.random.rand(rows, 100).astype("float32")
    return {"x": tensor(first, array)}, {"x": tensor(second, array)}


def base_and_raw(first: Any, second: Any, base_first: bool) -> tuple[Any, Any]:
    return (first, second) if base_first else (second, first)


def sides_line(base: Any, raw: Any) -> str:
    def name(model: Any) -> str:
        return f"{type(model).__name__} ({'torch' if isinstance(model, torch.nn.Module) else 'paddle'})"

    return f"base_model is {name(base)}, raw_model is {name(raw)}: 4 tensors of raw_model were overwritten"


# ------------------------------------------------------------------ which model is base


def by_position(first: str, second: str) -> bool:
    """Whether the first is base: always, except for a paddle layer before the torch module it is a port of."""
    return (first, second) != ("paddle", "torch")


FORMS = [
    pytest.param((), by_position, id="by position"),
    pytest.param(("base_model", "raw_model"), lambda *_: True, id="base_model, raw_model"),
    pytest.param(("raw_model", "base_model"), lambda *_: False, id="raw_model, base_model"),
    pytest.param(("layer", "module"), lambda *_: False, id="layer, module"),
    pytest.param((None, "raw_model"), lambda *_: True, id="position, raw_model"),
    pytest.param((None, "base_model"), lambda *_: False, id="position, base_model"),
]


def called(names: tuple[str | None, ...], first: Any, second: Any) -> tuple[list[Any], dict[str, Any]]:
    if not names:
        return [first, second], {}
    args = [model for name, model in zip(names, (first, second), strict=True) if name is None]
    kwargs = {name: model for name, model in zip(names, (first, second), strict=True) if name is not None}
    return args, kwargs


@pytest.mark.parametrize(("names", "base_first"), FORMS)
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_base_in_assign_weight(first: str, second: str, names: Any, base_first: Any, log: Log) -> None:
    one, two = simple(first), simple(second)
    base, raw = base_and_raw(one, two, base_first(first, second))
    kept = weight_of(base, "linear1")
    args, kwargs = called(names, one, two)
    assert assign_weight(*args, **kwargs) is True
    assert (weight_of(base, "linear1") == kept).all()
    assert (weight_of(raw, "linear1") == kept).all()
    assert log()[-1] == sides_line(base, raw)


@pytest.mark.parametrize(("names", "base_first"), FORMS)
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_base_in_auto_diff(first: str, second: str, names: Any, base_first: Any, log: Log) -> None:
    one, two = simple(first), simple(second)
    base, raw = base_and_raw(one, two, base_first(first, second))
    kept = weight_of(base, "linear2")
    args, kwargs = called(names, one, two)
    assert auto_diff(*args, **kwargs, inputs=[{"x": np.ones((3, 100), "float32")}] * 2, atol=1e-4) is True
    assert (weight_of(raw, "linear2") == kept).all()
    assert sides_line(base, raw) in log()


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_layer_map_auto_takes_the_models_in_either_order(first: str, second: str, log: Log) -> None:
    LayerMap().auto(simple(first), simple(second))
    assert log()[0].startswith("LayerMap.auto: ")


# ------------------------------------------------------------------ pairs come in the order of the models


class Noted:
    """A loss that remembers which framework it was called with."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, output: Any) -> Any:
        self.seen.append(type(output).__module__.partition(".")[0])
        return output.mean()


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_losses_in_the_order_of_the_models(first: str, second: str) -> None:
    losses = Noted(), Noted()
    models = simple(first), simple(second)
    assert auto_diff(*models, inputs_of(first, second), losses, atol=1e-4) is True
    assert losses[0].seen == [first]
    assert losses[1].seen == [second]


def test_pairs_beside_keywords_are_base_then_raw() -> None:
    losses = Noted(), Noted()
    models = {"raw_model": simple("torch"), "base_model": simple("paddle")}
    assert auto_diff(**models, inputs=inputs_of("paddle", "torch"), loss_fns=losses, atol=1e-4) is True
    assert losses[0].seen == ["paddle"]
    assert losses[1].seen == ["torch"]


def test_pairs_beside_first_generation_keywords_are_layer_then_module() -> None:
    losses = Noted(), Noted()
    models = {"module": simple("torch"), "layer": simple("paddle")}
    inp = inputs_of("paddle", "torch")
    assert auto_diff(**models, example_inp=inp, loss_fn=losses, options={"atol": 1e-4}) is True
    assert losses[0].seen == ["paddle"]
    assert losses[1].seen == ["torch"]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_optimizers_in_the_order_of_the_models(first: str, second: str) -> None:
    one, two = simple(first), simple(second)

    def optimizer(model: Any) -> Any:
        if isinstance(model, torch.nn.Module):
            return torch.optim.SGD(model.parameters(), lr=0.1)
        return paddle.optimizer.SGD(learning_rate=0.1, parameters=model.parameters())

    pair = [optimizer(one), optimizer(two)]
    assert auto_diff(one, two, inputs_of(first, second), None, pair, steps=2, atol=1e-4) is True


def test_two_inputs_that_differ_go_to_their_own_models(log: Log) -> None:
    one, two = np.zeros((3, 100), "float32"), np.ones((3, 100), "float32")
    models = SimpleLayer(), SimpleModule()
    inp = {"x": paddle.to_tensor(one)}, {"x": torch.as_tensor(two)}
    assert auto_diff(*models, inp, atol=1e-4) is False
    lines = log()
    assert "    Diff found in `Forward Stage` (inputs) in step: 0" in lines
    assert "the two models were given different inputs" in "\n".join(lines)


# ------------------------------------------------------------------ old names, options, positions


def test_first_generation_by_position(log: Log) -> None:
    layer, module = SimpleLayer(), SimpleModule()
    optimizers = [
        paddle.optimizer.SGD(learning_rate=0.1, parameters=layer.parameters()),
        torch.optim.SGD(module.parameters(), lr=0.1),
    ]
    losses = [lambda out: out.abs().mean(), lambda out: out.abs().mean()]
    inp = inputs_of("paddle", "torch")
    assert auto_diff(layer, module, inp, True, 2, {"atol": 1e-4}, {}, losses, optimizers) is True
    lines = log()
    for line in ("  steps: `2`", "  atol: `0.0001`", "  use_loss: `True`", "  use_opt: `True`", "  auto_init: `True`"):
        assert line in lines


@pytest.mark.parametrize("switch", [True, False])
def test_a_switch_in_fourth_place_is_auto_weights(switch: bool, log: Log) -> None:
    module, layer = SimpleModule(), SimpleLayer()
    kept = weight_of(layer, "linear1")
    assert auto_diff(layer, module, inputs_of("paddle", "torch"), switch, atol=1e-4) is switch
    assert f"  auto_init: `{switch}`" in log()
    assert (weight_of(layer, "linear1") == kept).all() is np.bool_(not switch)


def test_options_are_merged_and_keywords_win(log: Log) -> None:
    models = SimpleModule(), SimpleLayer()
    options = {"atol": 1e-4, "compare_mode": "strict", "auto_weights": True, "steps": 1, "diff_phase": "forward"}
    assert auto_diff(*models, inputs_of("torch", "paddle"), options=options, atol=1e-3) is True
    lines = log()
    assert "  atol: `0.001`" in lines
    assert "  compare_mode: `strict`" in lines
    assert "  diff_phase: `forward`" in lines


def test_options_are_not_written_to() -> None:
    options = {"atol": 1e-4, "rtol": 0}
    auto_diff(SimpleModule(), SimpleLayer(), inputs_of("torch", "paddle"), options=options)
    assert options == {"atol": 1e-4, "rtol": 0}


def test_abs_mean_is_mean(log: Log) -> None:
    models = SimpleModule(), SimpleLayer()
    assert auto_diff(*models, inputs_of("torch", "paddle"), atol=1e-4, compare_mode="abs_mean") is True
    assert "  compare_mode: `mean`" in log()


def test_bounds_may_be_numpy_numbers() -> None:
    models = SimpleModule(), SimpleLayer()
    assert auto_diff(*models, inputs_of("torch", "paddle"), atol=np.float32(1e-4), rtol=np.float64(0)) is True


# ------------------------------------------------------------------ inputs


ARRAY = np.linspace(-1, 1, 300, dtype="float32").reshape(3, 100)
INPUTS = {
    "numpy on both sides": ({"x": ARRAY}, {"x": ARRAY}),
    "torch on both sides": ({"x": torch.as_tensor(ARRAY)}, {"x": torch.as_tensor(ARRAY)}),
    "paddle on both sides": ({"x": paddle.to_tensor(ARRAY)}, {"x": paddle.to_tensor(ARRAY)}),
    "numpy on one side": ({"x": ARRAY}, {"x": torch.as_tensor(ARRAY)}),
    "a list of dicts": [{"x": ARRAY}, {"x": ARRAY}],
    "positional": ((ARRAY,), (ARRAY,)),
    "lone arrays": (ARRAY, ARRAY),
}


@pytest.mark.parametrize(("first", "second"), PAIRS)
@pytest.mark.parametrize("form", INPUTS)
def test_inputs_are_converted(form: str, first: str, second: str, log: Log) -> None:
    assert auto_diff(simple(first), simple(second), INPUTS[form], atol=1e-4) is True
    assert not any("swapped" in line for line in log())


@pytest.mark.parametrize(("first", "second"), [("torch", "paddle"), ("paddle", "torch")])
def test_inputs_of_the_other_frameworks_are_swapped(first: str, second: str, log: Log) -> None:
    """Told apart by their values: only swapped do the two inputs fit the models' first layers."""

    class Wide(SimpleModule if first == "torch" else SimpleLayer):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            assert float(x.max()) == 2.0
            return super().forward(x)

    one, two = {"x": tensor(second, ARRAY)}, {"x": tensor(first, 2 * ARRAY)}
    assert auto_diff(Wide(), simple(second), (one, two), atol=1e-4) is False
    assert "inputs: each set holds tensors of the other model's framework, so the two are used swapped" in log()


def test_what_the_model_writes_into_its_input_stays_out_of_sight() -> None:
    class Writing(SimpleModule):
        def forward(self, x: Any) -> Any:
            x += 1
            return super().forward(x)

    mine = torch.as_tensor(ARRAY.copy())
    assert auto_diff(Writing(), Writing(), ({"x": mine}, {"x": mine}), atol=1e-4) is True
    assert torch.equal(mine, torch.as_tensor(ARRAY))


# ------------------------------------------------------------------ layer maps


def swapped_pair() -> tuple[Any, Any]:
    """Two models that define two layers of one shape the other way round."""

    class One(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = torch.nn.Linear(100, 100)
            self.b = torch.nn.Linear(100, 100)

        def forward(self, x: Any) -> Any:
            return self.b(torch.relu(self.a(x)))

    class Two(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.second = paddle.nn.Linear(100, 100)
            self.first = paddle.nn.Linear(100, 100)

        def forward(self, x: Any) -> Any:
            return self.second(paddle.nn.functional.relu(self.first(x)))

    return One(), Two()


@pytest.mark.parametrize("order", ["torch keys", "paddle keys"])
@pytest.mark.parametrize("kind", [dict, LayerMap])
@pytest.mark.parametrize("torch_first", [True, False])
def test_layer_map_in_either_order(order: str, kind: Any, torch_first: bool) -> None:
    module, layer = swapped_pair()
    pairs = {module.a: layer.first, module.b: layer.second}
    if order == "paddle keys":
        pairs = {value: key for key, value in pairs.items()}
    layer_map: Any = pairs
    if kind is LayerMap:
        layer_map = LayerMap()
        layer_map.map = pairs
    models = (module, layer) if torch_first else (layer, module)
    assert auto_diff(*models, INPUTS["numpy on both sides"], atol=1e-4, layer_map=layer_map) is True
    assert (layer.first.weight.numpy() == module.a.weight.detach().numpy().T).all()


def test_without_the_map_that_pair_is_found_by_the_order_of_use() -> None:
    assert auto_diff(*swapped_pair(), INPUTS["numpy on both sides"], atol=1e-4) is True
    assert assign_weight(*swapped_pair()) is True


def test_numbers_and_switches_of_numpy_are_taken() -> None:
    inp = ({"x": np.ones((3, 100), "float32")},) * 2
    options = {"atol": np.float32(1e-4), "steps": np.int64(1), "single_step": np.bool_(False)}
    assert auto_diff(SimpleModule(), SimpleLayer(), inp, **options) is True


def test_a_layer_map_says_what_it_holds() -> None:
    module, layer = SimpleModule(), SimpleLayer()
    layer_map = LayerMap()
    layer_map.map = {module.linear1: layer.linear1}
    layer_map.ignore(module.act)
    assert repr(layer_map) == "LayerMap(1 pair, 1 ignored)"


@pytest.mark.parametrize("nothing", [None, {}, LayerMap()])
def test_an_empty_layer_map_says_nothing(nothing: Any) -> None:
    models = SimpleModule(), SimpleLayer()
    assert auto_diff(*models, INPUTS["numpy on both sides"], atol=1e-4, layer_map=nothing) is True
    assert assign_weight(*models, layer_map=nothing) is True


class Extra(SimpleLayer):
    """A port with a block too many, which does nothing to the output."""

    def __init__(self) -> None:
        super().__init__()
        self.probe = paddle.nn.Sequential(paddle.nn.Linear(10, 6), paddle.nn.Linear(6, 2))

    def forward(self, x: Any) -> Any:
        x = super().forward(x)
        self.probe(x)
        return x


@pytest.mark.parametrize("spelling", ["ignore_recursively", "ignore_recursivly"])
def test_ignore_recursively(spelling: str) -> None:
    module, layer = SimpleModule(), Extra()
    assert assign_weight(module, layer) is False
    layer_map = LayerMap()
    getattr(layer_map, spelling)(layer.probe)
    assert assign_weight(module, layer, layer_map) is True
    assert auto_diff(module, layer, INPUTS["numpy on both sides"], atol=1e-4, layer_map=layer_map) is True


def test_ignore_leaves_what_is_inside(log: Log) -> None:
    module, layer = SimpleModule(), Extra()
    layer_map = LayerMap()
    layer_map.ignore(layer.probe)
    assert assign_weight(module, layer, layer_map) is False
    layer_map.ignore(layer.probe[0])
    layer_map.ignore(layer.probe[1])
    assert assign_weight(module, layer, layer_map) is True


def test_ignore_class(log: Log) -> None:
    module, layer = SimpleModule(), SimpleLayer()
    layer_map = LayerMap()
    layer_map.ignore_class(module, torch.nn.ReLU)
    layer_map.ignore_class(layer, paddle.nn.ReLU)
    assert auto_diff(module, layer, INPUTS["numpy on both sides"], atol=1e-4, layer_map=layer_map) is True
    lines = log()
    assert "forward stage compared. (6 tensors)" in lines
    assert not any(line.startswith("no partner") for line in lines)
