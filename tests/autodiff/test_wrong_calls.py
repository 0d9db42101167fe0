"""Every wrong call says which argument, what came and what was expected."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest
import torch

from padiff import LayerMap, assign_weight, auto_diff, check_dataloader
from padiff.errors import ArgumentError, PadiffError, UnknownFrameworkError
from tests.autodiff.models import SimpleLayer, SimpleModule

ARRAY = np.ones((3, 100), "float32")
INPUTS = ({"x": ARRAY}, {"x": ARRAY})


def torch_sgd() -> Any:
    return torch.optim.SGD(SimpleModule().parameters(), lr=0.1)


def paddle_sgd() -> Any:
    return paddle.optimizer.SGD(learning_rate=0.1, parameters=SimpleLayer().parameters())


def call(*more: Any, **options: Any) -> Callable[[], Any]:
    """The tutorial's call with something added to it."""
    return lambda: auto_diff(SimpleModule(), SimpleLayer(), *(more or (INPUTS,)), **options)


def optimizers_of_one(model: SimpleModule) -> Any:
    pair = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2)]
    return auto_diff(model, model, INPUTS, optimizers=pair)


def with_losses(*losses: Any) -> Callable[[], Any]:
    return call(loss_fns=losses)


def mapped(layer_map: Any) -> LayerMap:
    found = LayerMap()
    found.map = layer_map
    return found


CASES: dict[str, tuple[Callable[[], Any], type[PadiffError], list[str]]] = {
    # --- options
    "an unknown option": (call(compare_mod="mean"), ArgumentError, ["'compare_mod'", "did you mean 'compare_mode'?"]),
    "an unknown option among options": (
        call(options={"diff_phrase": "both"}),
        ArgumentError,
        ["'diff_phrase'", "did you mean 'diff_phase'?"],
    ),
    "an old name misspelt": (call(auto_weight=True), ArgumentError, ["'auto_weight'", "did you mean 'auto_weights'?"]),
    "an option like no other": (call(qqq=1), ArgumentError, ["'qqq'", "known are auto_init, atol, rtol"]),
    "an option that is no string": (call(options={3: 1}), ArgumentError, ["auto_diff has no option 3"]),
    "options that are no dict": (call(options=[1]), ArgumentError, ["options is a list", "expected a dict"]),
    "an option in both spellings": (
        call(auto_init=True, auto_weights=True),
        ArgumentError,
        ["auto_init is given twice", "auto_weights"],
    ),
    "too many by position": (
        call(INPUTS, None, None, 3),
        ArgumentError,
        ["at most 5 arguments by position", "6 came"],
    ),
    "options in two places": (
        call(INPUTS, True, 1, {"atol": 1}, options={"atol": 2}),
        ArgumentError,
        ["options is given twice"],
    ),
    "auto_init no switch": (call(auto_init="yes"), ArgumentError, ["auto_init is 'yes'", "expected True or False"]),
    "atol below zero": (call(atol=-1), ArgumentError, ["atol is -1", "expected a finite number of at least 0"]),
    "atol no number": (call(atol="1e-4"), ArgumentError, ["atol is '1e-4'", "expected a finite number"]),
    "rtol not a number": (call(rtol=float("nan")), ArgumentError, ["rtol is nan", "expected a finite number"]),
    "rtol infinite": (call(rtol=float("inf")), ArgumentError, ["rtol is inf", "expected a finite number"]),
    "an unknown compare_mode": (
        call(compare_mode="max"),
        ArgumentError,
        ["compare_mode is 'max'", "'mean', 'abs_mean', 'strict'"],
    ),
    "a compare_mode of another type": (call(compare_mode=["mean"]), ArgumentError, ["compare_mode is ['mean']"]),
    "an unknown diff_phase": (
        call(diff_phase="fwd"),
        ArgumentError,
        ["diff_phase is 'fwd'", "'both', 'forward', 'backward'"],
    ),
    "backward without single_step": (
        call(diff_phase="backward"),
        ArgumentError,
        ["diff_phase is 'backward'", "single_step=True", "expected 'both'"],
    ),
    "steps zero": (call(steps=0), ArgumentError, ["steps is 0", "expected a whole number of at least 1"]),
    "steps no whole number": (call(steps=2.5), ArgumentError, ["steps is 2.5", "expected a whole number"]),
    # --- models
    "no models": (lambda: auto_diff(inputs=INPUTS), ArgumentError, ["the first model is missing", "two models"]),
    "one model": (lambda: auto_diff(SimpleModule()), ArgumentError, ["the second model is missing", "two models"]),
    "one model by keyword": (
        lambda: auto_diff(base_model=SimpleModule(), inputs=INPUTS),
        ArgumentError,
        ["raw_model is missing", "two models"],
    ),
    "three models": (
        lambda: auto_diff(SimpleModule(), SimpleLayer(), INPUTS, base_model=SimpleModule()),
        ArgumentError,
        ["3 models", "expected two: base_model and raw_model"],
    ),
    "names of both generations": (
        lambda: auto_diff(base_model=SimpleModule(), module=SimpleModule(), inputs=INPUTS),
        ArgumentError,
        ["both base_model= and module="],
    ),
    "a misspelt model": (
        lambda: auto_diff(base=SimpleModule(), raw_model=SimpleLayer(), inputs=INPUTS),
        ArgumentError,
        ["'base'", "did you mean 'base_model'?"],
    ),
    "a model of no framework": (
        lambda: auto_diff("resnet", SimpleLayer(), INPUTS),
        UnknownFrameworkError,
        ["the first model is of type builtins.str", "expected a paddle model or a torch model"],
    ),
    "a class instead of a model": (
        lambda: auto_diff(base_model=SimpleModule(), raw_model=SimpleLayer, inputs=INPUTS),
        UnknownFrameworkError,
        ["raw_model is of type builtins.type", "not a class"],
    ),
    "a state dict instead of a model": (
        lambda: assign_weight(SimpleModule().state_dict(), SimpleLayer()),
        UnknownFrameworkError,
        ["the first model", "OrderedDict", "state dict"],
    ),
    "a tensor instead of a model": (
        lambda: assign_weight(SimpleModule(), torch.ones(2)),
        UnknownFrameworkError,
        ["the second model", "torch.Tensor"],
    ),
    # --- inputs
    "no inputs": (lambda: auto_diff(SimpleModule(), SimpleLayer()), ArgumentError, ["inputs is missing", "pair"]),
    "one dict for both": (call({"x": ARRAY}), ArgumentError, ["inputs is a dict", "expected a pair"]),
    "one tensor for both": (call(torch.as_tensor(ARRAY)), ArgumentError, ["inputs is a Tensor", "expected a pair"]),
    "three sets": (call(({}, {}, {})), ArgumentError, ["inputs is a tuple of 3", "expected a pair"]),
    "a set that is none": (call(({"x": ARRAY}, None)), ArgumentError, ["inputs[1] is a NoneType", "expected a dict"]),
    "a set that is a list": (call(([ARRAY], {"x": ARRAY})), ArgumentError, ["inputs[0] is a list", "expected a dict"]),
    "a dataloader": (call((iter([1]), iter([1]))), ArgumentError, ["inputs[0] is a list_iterator", "expected a dict"]),
    "a name that is no string": (call(({1: ARRAY}, {"x": ARRAY})), ArgumentError, ["the key 1 is no string"]),
    "a missing name": (
        call(({"x": ARRAY}, {})),
        ArgumentError,
        ["raw model SimpleLayer", "with nothing", "'x'", "its signature is forward(x"],
    ),
    "a wrong name": (
        call(({"y": ARRAY}, {"x": ARRAY})),
        ArgumentError,
        ["base model SimpleModule", "'y'", "its signature is forward(x"],
    ),
    "a name too many": (
        call(({"x": ARRAY}, {"x": ARRAY, "mask": ARRAY})),
        ArgumentError,
        ["raw model SimpleLayer", "'mask'", "its signature is forward(x"],
    ),
    "one too many by position": (
        call(((ARRAY, ARRAY), (ARRAY,))),
        ArgumentError,
        ["base model SimpleModule", "too many", "its signature is forward(x"],
    ),
    "inputs under both names": (call(INPUTS, example_inp=INPUTS), ArgumentError, ["inputs is given twice"]),
    # --- losses
    "one loss for both": (call(loss_fns=torch.nn.MSELoss()), ArgumentError, ["loss_fns is a MSELoss", "a pair"]),
    "three losses": (with_losses(min, min, min), ArgumentError, ["loss_fns is a tuple of 3", "a pair"]),
    "a loss that cannot be called": (
        with_losses(torch.nn.MSELoss(), "mse"),
        ArgumentError,
        ["loss_fns", "the second model is a str", "expected a function"],
    ),
    "a loss that returns a tensor of many": (
        with_losses(lambda out: out, lambda out: out.mean()),
        ArgumentError,
        ["loss_fns", "base model SimpleModule", "shape [3, 10]", "expected a scalar"],
    ),
    "a loss that returns a number": (
        with_losses(lambda out: out.mean(), lambda out: float(out.mean())),
        ArgumentError,
        ["loss_fns", "raw model SimpleLayer", "returned float", "paddle tensor"],
    ),
    "a loss that returns nothing": (
        with_losses(lambda out: None, lambda out: out.mean()),
        ArgumentError,
        ["loss_fns", "returned NoneType", "torch tensor"],
    ),
    "a loss that wants a label, too": (
        with_losses(lambda out: out.mean(), lambda out, label: out.mean()),
        ArgumentError,
        ["loss", "the raw model", "missing a required argument: 'label'", "its signature is (out, label)", "partial"],
    ),
    # --- optimizers
    "an optimizer's function with an argument": (
        call(optimizers=[lambda model: None, lambda: None]),
        ArgumentError,
        ["optimizers", "the base model", "missing a required argument: 'model'", "its signature is (model)"],
    ),
    "one optimizer": (call(optimizers=torch_sgd()), ArgumentError, ["optimizers is a SGD", "expected a pair"]),
    "optimizers in the other order": (
        lambda: auto_diff(SimpleModule(), SimpleLayer(), INPUTS, optimizers=[paddle_sgd(), torch_sgd()]),
        ArgumentError,
        ["optimizers", "base model (torch)", "a paddle optimizer", "in the order of the models"],
    ),
    "the first generation's optimizers in the other order": (
        lambda: auto_diff(SimpleLayer(), SimpleModule(), INPUTS, True, optimizer=[torch_sgd(), paddle_sgd()]),
        ArgumentError,
        ["optimizers", "base model (torch)", "a paddle optimizer"],
    ),
    "optimizers of models that share a layer": (
        lambda: optimizers_of_one(SimpleModule()),
        ArgumentError,
        ["optimizers: both models hold linear1.weight", "copy.deepcopy"],
    ),
    "something that is no optimizer": (
        lambda: auto_diff(SimpleModule(), SimpleLayer(), INPUTS, optimizers=[torch_sgd(), "sgd"]),
        ArgumentError,
        ["optimizers", "raw model is a str", "expected a paddle optimizer or a function without arguments"],
    ),
    # --- layer maps
    "a layer map of another type": (call(layer_map=3), ArgumentError, ["layer_map is a int", "expected a LayerMap"]),
    "an empty list as layer map": (call(layer_map=[]), ArgumentError, ["layer_map is a list", "expected a LayerMap"]),
    "a map that is no dict": (call(layer_map=mapped([1])), ArgumentError, ["its map is a list", "expected a dict"]),
    "layers of other models": (
        call(layer_map={torch.nn.Linear(2, 3): paddle.nn.Linear(2, 3)}),
        ArgumentError,
        ["layer_map", "Linear and Linear", "expected one layer of each model", "the very models"],
    ),
    "names in a layer map": (
        call(layer_map={"linear1": "linear1"}),
        ArgumentError,
        ["layer_map", "str and str", "expected one layer of each model"],
    ),
    "ignoring a name": (
        lambda: LayerMap().ignore("linear1"),
        UnknownFrameworkError,
        ["layer is of type builtins.str", "expected a paddle model or a torch model"],
    ),
    "ignoring a class by its name": (
        lambda: LayerMap().ignore_class(SimpleModule(), "ReLU"),  # type: ignore[arg-type]
        ArgumentError,
        ["cls is 'ReLU'", "expected a class"],
    ),
    "auto with something else": (
        lambda: LayerMap().auto(SimpleModule(), None),
        UnknownFrameworkError,
        ["the second model is of type builtins.NoneType"],
    ),
    # --- assign_weight
    "assign_weight without models": (assign_weight, ArgumentError, ["assign_weight", "the first model is missing"]),
    "assign_weight with an unknown name": (
        lambda: assign_weight(SimpleModule(), SimpleLayer(), layermap={}),
        ArgumentError,
        ["assign_weight has no option 'layermap'", "did you mean 'layer_map'?"],
    ),
    "assign_weight with too many": (
        lambda: assign_weight(SimpleModule(), SimpleLayer(), {}, 3),
        ArgumentError,
        ["at most 3 arguments", "4 came"],
    ),
    "assign_weight with two maps": (
        lambda: assign_weight(SimpleModule(), SimpleLayer(), {}, layer_map={}),
        ArgumentError,
        ["layer_map is given twice"],
    ),
    # --- check_dataloader
    "check_dataloader with an unknown option": (
        lambda: check_dataloader([], [], atoll=1),
        ArgumentError,
        ["check_dataloader has no option 'atoll'", "did you mean 'atol'?"],
    ),
    "check_dataloader with no loader": (
        lambda: check_dataloader([], 3),  # type: ignore[arg-type]
        ArgumentError,
        ["loader_1 is a int", "expected something that yields batches"],
    ),
    "check_dataloader with a wrong mode": (
        lambda: check_dataloader([], [], compare_mode="max"),
        ArgumentError,
        ["compare_mode is 'max'"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_wrong_call(case: str) -> None:
    make, error, said = CASES[case]
    with pytest.raises(PadiffError) as caught:
        make()
    assert type(caught.value) is error
    for part in said:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "case", [name for name in CASES if not name.startswith("a loss that returns")]
)  # a loss is known to be wrong only once it has run
def test_a_wrong_call_changes_and_prints_nothing(
    case: str, capsys: pytest.CaptureFixture[str], own_folder: Any
) -> None:
    with pytest.raises(PadiffError):
        CASES[case][0]()
    assert capsys.readouterr().out == ""
    assert not list(own_folder.iterdir())


@pytest.mark.parametrize(
    ("framework", "base"), [("torch", "torch.nn.modules.module"), ("paddle", "paddle.nn.layer.layers")]
)
def test_a_framework_that_is_not_installed(framework: str, base: str) -> None:
    """In a process of its own, where the framework cannot be imported and an object claims to be of it."""
    script = f"""
        import sys
        sys.modules[{framework!r}] = None
        import padiff
        model = type("Net", (type("Module", (), {{"__module__": {base!r}}}),), {{}})()
        try:
            padiff.auto_diff(model, model, ({{}}, {{}}))
        except padiff.errors.UnknownFrameworkError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", "import padiff.errors\n" + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [
        f"{framework} is not installed",
        f"hint: pip install 'padiff[{framework}]'",
    ]
