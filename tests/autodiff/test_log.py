"""What the log says, held against what happened."""

from __future__ import annotations

import itertools
import re
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff
import padiff.report
from padiff import LayerMap, assign_weight, auto_diff
from padiff.autodiff.failure import explain
from tests.autodiff.conftest import Log
from tests.autodiff.models import SimpleLayer, SimpleModule, TinyPosePaddle, TinyPoseTorch
from tests.autodiff.test_vitpose import BOTH, one_input, optimizers, prepared

HERE = "    <---  *** HERE ***"


def inputs(rows: int = 100) -> Any:
    array = np.random.rand(rows, 100).astype("float32")
    return {"x": array}, {"x": array}


def sgd(module: Any, layer: Any) -> list[Any]:
    return [
        torch.optim.SGD(module.parameters(), lr=0.1),
        paddle.optimizer.SGD(learning_rate=0.1, parameters=layer.parameters()),
    ]


# ------------------------------------------------------------------ lines about the call


def test_steps_without_optimizers_fall_back(log: Log) -> None:
    assert auto_diff(SimpleModule(), SimpleLayer(), inputs(), atol=1e-4, steps=10) is True
    lines = log()
    assert "steps=10 needs optimizers: steps is set to 1" in lines
    assert "  steps: `1`" in lines
    assert sum("Train Step" in line for line in lines) == 1


def test_steps_without_backward_fall_back(log: Log) -> None:
    module, layer = SimpleModule(), SimpleLayer()
    kept = module.linear1.weight.detach().clone()
    pair = sgd(module, layer)
    assert auto_diff(module, layer, inputs(), atol=1e-4, steps=3, optimizers=pair, diff_phase="forward") is True
    lines = log()
    assert 'steps=3 needs diff_phase="both": steps is set to 1' in lines
    assert 'diff_phase="forward" runs no backward: the optimizers are not used' in lines
    assert torch.equal(module.linear1.weight, kept)


def test_the_order_of_a_step(log: Log) -> None:
    module, layer = SimpleModule(), SimpleLayer()
    assert auto_diff(module, layer, inputs(), atol=1e-4, steps=2, optimizers=sgd(module, layer)) is True
    compared = [line.partition(" compared")[0] for line in log() if " compared. (" in line]
    assert compared == ["forward stage", "loss", "backward stage", "grads", "weights"] * 2


def test_no_line_is_longer_than_it_must_be(log: Log) -> None:
    """Paths of files and of the user's code are as long as they are; sentences are broken."""
    auto_diff(SimpleModule(), SimpleLayer(), inputs(), auto_init=False)
    auto_diff(SimpleModule(100, 4, 10), SimpleLayer(), inputs())
    for line in log():
        if "/" not in line and not line.startswith("base_model is "):
            assert len(f"[AutoDiff] {line}") <= 120


@pytest.mark.parametrize("auto_init", [True, False])
def test_base_and_what_was_overwritten_in_one_line(auto_init: bool, log: Log) -> None:
    auto_diff(SimpleLayer(), SimpleModule(), inputs(), atol=1e-4, auto_init=auto_init)
    (line,) = [line for line in log() if line.startswith("base_model is ")]
    assert line.startswith("base_model is SimpleModule (torch), raw_model is SimpleLayer (paddle): ")
    assert ("4 tensors of raw_model were overwritten" in line) is auto_init
    assert ("no weights were overwritten" in line) is not auto_init


def test_what_is_not_written_is_not_counted(log: Log) -> None:
    base, raw = torch.nn.Linear(2, 3, bias=False), torch.nn.Linear(2, 3, bias=False)
    base.register_buffer("order", torch.tensor([2, 0, 1]))
    raw.register_buffer("order", torch.tensor([0, 1, 2]))
    assert assign_weight(base, raw) is True
    lines = log()
    assert "    left as raw makes them: 1 buffer (order)" in lines
    assert lines[-1].endswith(": 1 tensor of raw_model was overwritten")
    assert raw.order.tolist() == [0, 1, 2]


def test_the_folder_is_made_only_when_something_is_written(own_folder: Path) -> None:
    assert auto_diff(SimpleModule(), SimpleLayer(), inputs(), atol=1e-4) is True
    assert not list(own_folder.iterdir())


def test_the_log_is_a_rendering_of_the_report(log: Log) -> None:
    """The record alone is enough: read back from JSON, it says the same."""
    result = padiff.compare(SimpleModule(), SimpleLayer(), inputs()[0]["x"], weights="keep", tolerance=(1e-7, 0.0))
    explain(result.report(), whole=True, own_loss=False)
    said = log()
    explain(padiff.report.load(padiff.report.to_json(result.report())), whole=True, own_loss=False)
    assert said == log()
    assert "Route: SimpleModule(base_model).linear1" in " ".join(said)
    assert any(line.endswith(HERE) for line in said)


# ------------------------------------------------------------------ numbers


def test_the_bound_is_the_one_that_was_asked_for(log: Log) -> None:
    """The place is found by feeding raw base's tensors; what is said about it is what the user asked."""
    assert auto_diff(SimpleModule(), SimpleLayer(), inputs(), auto_init=False, atol=1e-3, rtol=0) is False
    (line,) = [line for line in log() if "allowed" in line]
    assert re.fullmatch(r" +output: mean absolute error \S+, allowed 0.001 \(mean, rtol=0, atol=0.001\)", line)


def test_nothing_finite_is_said_about_what_is_not(log: Log) -> None:
    module, layer = SimpleModule(), SimpleLayer()
    layer.linear2.register_forward_post_hook(lambda _, __, out: out * float("nan"))
    assert auto_diff(module, layer, inputs(), atol=1e-4) is False
    assert "Max elementwise output diff is nan" in log()


def test_in_single_step_the_layers_outputs_tell(log: Log) -> None:
    """The model's own is base's."""
    module, layer = SimpleModule(), SimpleLayer()
    layer.linear1.register_forward_post_hook(lambda _, __, out: out + 1)
    assert auto_diff(module, layer, inputs(), atol=1e-4, single_step=True, diff_phase="forward") is False
    (line,) = [line for line in log() if line.startswith("Max elementwise output diff is ")]
    assert float(line.rpartition(" ")[2]) == pytest.approx(1, abs=1e-4)


def test_of_several_calls_the_one_is_named(log: Log) -> None:
    base, raw = (torch.nn.Sequential(*(one,) * 3) for one in (torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)))
    calls = itertools.count()
    raw[0].register_forward_hook(lambda _, __, out: out + 1 if next(calls) % 3 == 1 else out)
    array = np.ones((2, 4), "float32")
    assert auto_diff(base, raw, ((array,), (array,)), atol=1e-4) is False
    assert "    It is call 2 of the 3 of this layer" in log()


def test_causes_are_named(log: Log) -> None:
    module, layer = SimpleModule(), SimpleLayer()
    layer.act = paddle.nn.GELU()
    assert auto_diff(module, layer, inputs(), atol=1e-4) is False
    assert any(line.startswith("    likely cause: activation: ") for line in log())


# ------------------------------------------------------------------ rounding


def suggested(lines: list[str]) -> dict[str, Any]:
    """The tolerance the log names, as options."""
    found = [re.search(r"atol=(\S+), rtol=(\S+) \(compare_mode=(\w+)\) would hold", line) for line in lines]
    (hit,) = [match for match in found if match]
    return {"atol": float(hit[1]), "rtol": float(hit[2]), "compare_mode": hit[3]}


@pytest.mark.parametrize("mode", ["mean", "strict"])
@pytest.mark.parametrize("bounds", [{}, {"rtol": 0}, {"atol": 1e-9, "rtol": 0}])
def test_rounding_only(mode: str, bounds: dict[str, Any], log: Log) -> None:
    module, layer, inp = SimpleModule(), SimpleLayer(), inputs()
    assert auto_diff(module, layer, inp, compare_mode=mode, **bounds) is False
    lines = log()
    assert any("of the size of rounding noise" in line for line in lines)
    options = suggested(lines)
    assert options["compare_mode"] == mode
    assert auto_diff(module, layer, inp, **options) is True


class TorchTimes(torch.nn.Module):
    """Angles of times, made outside of the layers that take them up."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.SiLU(), torch.nn.Linear(32, 16))

    def forward(self, times: Any) -> Any:
        angles = times[:, None] * torch.tensor([1.0, 0.3, 0.1, 0.03])
        return self.embed(torch.cat([angles.cos(), angles.sin()], -1))


class PaddleTime(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = paddle.nn.Linear(8, 32), paddle.nn.Linear(32, 16)

    def forward(self, times: Any) -> Any:
        angles = times.unsqueeze(-1) * paddle.to_tensor([1.0, 0.3, 0.1, 0.03])
        return self.second(paddle.nn.functional.silu(self.first(paddle.concat([angles.cos(), angles.sin()], -1))))


class PaddleTimes(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.time = PaddleTime()

    def forward(self, times: Any) -> Any:
        return self.time(times)


def test_rounding_only_beside_a_layer_that_begins_elsewhere(log: Log) -> None:
    """What it is given has another shape, which no bounds help: they are named, and hold."""
    torch.manual_seed(0)
    module, layer, times = TorchTimes(), PaddleTimes(), np.linspace(0.0, 9.0, 40, dtype="float32")
    inp = {"times": torch.as_tensor(times)}, {"times": paddle.to_tensor(times)}
    assert auto_diff(module, layer, inp, compare_mode="strict") is False
    lines = log()
    assert any("of the size of rounding noise" in line for line in lines)
    assert auto_diff(module, layer, inp, **suggested(lines)) is True


def test_rounding_only_in_a_loss_that_cancels(log: Log) -> None:
    """The mean of outputs that sum to almost nothing is noisier than its size lets on."""

    class TorchCentred(SimpleModule):
        def forward(self, x: Any) -> Any:
            x = super().forward(x)
            return x - x.mean().detach()

    class PaddleCentred(SimpleLayer):
        def forward(self, x: Any) -> Any:
            x = super().forward(x)
            return x - x.mean().detach()

    module, layer, inp = TorchCentred(), PaddleCentred(), inputs()
    assert auto_diff(module, layer, inp, rtol=1e-5) is False
    lines = log()
    assert "    Diff found in `Forward Stage` (loss) in step: 0" in lines
    assert not any("look at the loss functions" in line for line in lines)
    assert auto_diff(module, layer, inp, **suggested(lines)) is True


def test_rounding_only_in_the_gradient_of_an_attentions_key_bias(log: Log) -> None:
    """It is zero but for rounding: softmax does not see what is added to every key alike."""
    paddle_model, torch_model, layer_map = prepared(multihead=True)
    log()
    inp = one_input()
    assert auto_diff(paddle_model, torch_model, inp, False, 1, dict(BOTH), layer_map) is False
    lines = log()
    assert any(line.endswith(".attn.in_proj_bias") for line in lines)
    assert any(line.endswith(".attn.k_proj.bias") for line in lines)
    options = suggested(lines)
    assert auto_diff(paddle_model, torch_model, inp, False, layer_map=layer_map, options=options) is True


def test_rounding_only_before_the_end_says_how_far_it_holds(log: Log) -> None:
    module, layer = SimpleModule(), SimpleLayer()
    assert auto_diff(module, layer, inputs(), rtol=0, steps=3, optimizers=sgd(module, layer)) is False
    assert "would hold up to here; what comes after was not run" in "\n".join(log())


def test_a_real_difference_is_never_called_rounding(log: Log) -> None:
    module, layer = SimpleModule(), SimpleLayer()
    assert assign_weight(module, layer)
    layer.linear1.weight.set_value(layer.linear1.weight * 1.001)
    assert auto_diff(module, layer, inputs(), auto_init=False) is False
    assert "rounding" not in "\n".join(log())


def test_a_gradient_that_is_missing_is_never_called_rounding(log: Log) -> None:
    class Frozen(SimpleLayer):
        def forward(self, x: Any) -> Any:
            bias = self.linear2.bias
            return super().forward(x) + (bias.detach() - bias)

    assert auto_diff(SimpleModule(), Frozen(), inputs(), atol=1e-6, rtol=1e-4) is False
    assert "rounding" not in "\n".join(log())


# ------------------------------------------------------------------ trees


def test_skip_marks(log: Log) -> None:
    """Layers without parameters of their own, and layers that the map names."""
    module, layer = SimpleModule(100, 100, 4), SimpleLayer(100, 100, 10)
    assert assign_weight(module, layer, {module.linear1: layer.linear1}) is False
    lines = log()
    for name in ("SimpleModule", "SimpleLayer"):
        place = lines.index(f"    {name} (skip)")
        assert lines[place + 1 : place + 4] == [
            "     |--- Linear (skip)",
            f"     |--- Linear{HERE}",
            "     +--- ReLU (skip)",
        ]


def test_skip_marks_ignored_layers(log: Log) -> None:
    module, layer = SimpleModule(100, 100, 4), SimpleLayer(100, 100, 10)
    layer_map = LayerMap()
    layer_map.ignore(module.linear1)
    layer_map.ignore(layer.linear1)
    assert assign_weight(module, layer, layer_map) is False
    assert log().count("     |--- Linear (skip)") == 2


@pytest.mark.parametrize("value", ["ON", "on"])
def test_routes_in_trees(value: str, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    models = SimpleModule(100, 100, 4), SimpleLayer(100, 100, 10)
    assert assign_weight(*models) is False
    assert "(SimpleModule.linear1)" not in "\n".join(log())
    monkeypatch.setenv("PADIFF_PATH_LOG", value)
    assert assign_weight(*models) is False
    lines = log()
    assert f"     |--- Linear  (SimpleModule.linear2){HERE}" in lines
    assert f"     |--- Linear  (SimpleLayer.linear2){HERE}" in lines


def deep(framework: Any, sizes: list[int]) -> Any:
    return framework.nn.Sequential(*(framework.nn.Linear(a, b) for a, b in itertools.pairwise(sizes)))


def test_long_trees_are_printed_in_part(log: Log, own_folder: Path) -> None:
    """Sixty layers, of which the fiftieth does not fit: the file has them all, the log those around the place."""
    sizes = [3] * 61
    other = [*sizes[:50], 5, *sizes[51:]]
    assert assign_weight(deep(torch, sizes), deep(paddle, other)) is False
    lines = log()
    start = lines.index("Sequential(base_model)") + 2
    shown = lines[start : lines.index("", start)]
    assert len(shown) <= 42
    assert shown[0] == "    ... 21 lines before ..."
    assert sum(line.endswith(HERE) for line in shown) == 1
    file = own_folder / "padiff_log" / "weight_init_Sequential(base_model).log"
    written = file.read_text(encoding="utf-8").splitlines()
    assert len(written) == 2 + 61
    assert [line.endswith(HERE) for line in written].index(True) == 2 + 50
    assert f"    {file}" in lines


def test_long_trees_of_a_difference(log: Log, own_folder: Path) -> None:
    sizes = [3] * 61
    module, layer = deep(torch, sizes), deep(paddle, sizes)
    assert assign_weight(module, layer)
    layer[0].weight.set_value(layer[0].weight + 1)
    log()
    array = np.ones((2, 3), "float32")
    assert auto_diff(module, layer, (array, array), atol=1e-4, auto_init=False) is False
    lines = log()
    start = lines.index("Sequential(raw_model)") + 2
    shown = lines[start : lines.index("", start)]
    assert shown[1] == f"     |--- Linear{HERE}"
    assert shown[-1] == "    ... 21 lines after ..."
    assert len((own_folder / "padiff_log" / "report_Sequential(raw_model)").read_text().splitlines()) == 2 + 61


# ------------------------------------------------------------------ stacks, exceptions, losses


def test_the_users_lines_of_both_sides(log: Log) -> None:
    assert auto_diff(TinyPoseTorch().eval(), eval_mode(TinyPosePaddle()), one_pose(), auto_init=False) is False
    lines = log()
    for name, function in (("TinyPoseTorch(base_model)", "forward"), ("TinyPosePaddle(raw_model)", "forward")):
        start = lines.index(f"Stack of {name}, your own source lines:")
        stack = [line for line in lines[start + 1 :] if line.startswith(" ")]
        assert f"models.py: {line_of(name, 'forward_features(x)')} {function}" in stack[0]
        assert stack[1].strip() == "return self.head(self.backbone.forward_features(x))"
        assert "forward_features" in stack[2]
        assert "self.patch_embed(x)" in stack[3]


def eval_mode(layer: Any) -> Any:
    layer.eval()
    return layer


def one_pose() -> Any:
    raw, base = one_input()
    return base, raw


def line_of(name: str, text: str) -> int:
    """Where a model's own forward calls its backbone."""
    source = (Path(__file__).parent / "models.py").read_text(encoding="utf-8").splitlines()
    start = next(i for i, line in enumerate(source) if line.startswith(f"class {name.partition('(')[0]}("))
    return next(i for i, line in enumerate(source[start:], start + 1) if text in line and "self.head" in line)


class Unfit(Exception):
    """An exception of the user's own."""


@pytest.mark.parametrize("side", ["base", "raw"])
def test_an_exception_of_the_model_keeps_its_type_and_gains_a_note(side: str) -> None:
    class Inner(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            raise Unfit("no such mode")

    class Broken(SimpleModule):
        def __init__(self) -> None:
            super().__init__()
            self.act = Inner()

    models = (Broken(), SimpleModule()) if side == "base" else (SimpleModule(), Broken())
    with pytest.raises(Unfit, match="no such mode") as caught:
        auto_diff(*models, inputs())
    (note,) = caught.value.__notes__
    for part in (f"{side} model", "Broken (torch)", "in act", "forward of step 0"):
        assert part in note
    assert any(frame.name == "forward" and frame.filename == __file__ for frame in traceback.extract_tb(caught.tb))


def test_an_exception_in_a_later_step_names_the_step() -> None:
    class Tired(SimpleModule):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, x: Any) -> Any:
            self.calls += 1
            if self.calls > 2:
                raise Unfit
            return super().forward(x)

    module, layer = Tired(), SimpleLayer()
    with pytest.raises(Unfit) as caught:
        auto_diff(module, layer, inputs(), atol=1e-4, steps=5, optimizers=sgd(module, layer))
    assert "step 2" in caught.value.__notes__[0]
    assert not module.linear1._forward_hooks


def test_an_exception_of_a_loss_gains_a_note() -> None:
    def broken(output: Any) -> Any:
        raise Unfit

    with pytest.raises(Unfit) as caught:
        auto_diff(SimpleModule(), SimpleLayer(), inputs(), loss_fns=[lambda out: out.mean(), broken])
    (note,) = caught.value.__notes__
    assert "raw model SimpleLayer (paddle)" in note
    assert "loss" in note


def test_an_exception_of_an_optimizer_gains_a_note() -> None:
    def broken() -> None:
        raise Unfit

    module, layer = SimpleModule(), SimpleLayer()
    with pytest.raises(Unfit) as caught:
        auto_diff(module, layer, inputs(), atol=1e-4, optimizers=[broken, sgd(module, layer)[1]])
    (note,) = caught.value.__notes__
    assert "base model SimpleModule (torch) in the optimizer" in note


def test_a_loss_that_differs(log: Log) -> None:
    pair = [lambda out: out.mean(), lambda out: out.mean() * 2]
    assert auto_diff(SimpleModule(), SimpleLayer(), inputs(), atol=1e-4, loss_fns=pair) is False
    lines = log()
    assert "    Diff found in `Forward Stage` (loss) in step: 0" in lines
    assert "    the outputs agree and the loss doesn't: look at the loss functions" in lines
    assert any(line.startswith("    loss: mean absolute error ") for line in lines)
    assert lines[-1] == "FAILED !!!"


def test_a_backward_that_differs(log: Log) -> None:
    class Straight(paddle.autograd.PyLayer):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return paddle.nn.functional.relu(x)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient

    class Act(paddle.nn.Layer):
        def forward(self, x: Any) -> Any:
            return Straight.apply(x)

    class Net(SimpleLayer):
        def __init__(self) -> None:
            super().__init__()
            self.act = Act()

    assert auto_diff(SimpleModule(), Net(), inputs(), atol=1e-6) is False
    lines = log()
    assert "    Diff found in `Backward Stage` in step: 0" in lines
    assert "    Type of layer is: ReLU vs Act" in lines
    assert "    Route: SimpleModule(base_model).act" in lines
    assert any(line.startswith("    gradient of input") for line in lines)
    stacks = [line for line in lines if line.startswith("Stack of ")]
    assert len(stacks) == 2


def test_shapes_that_differ_are_named(log: Log) -> None:
    class Cut(SimpleLayer):
        def forward(self, x: Any) -> Any:
            return super().forward(x)[:, :9]

    assert auto_diff(SimpleModule(), Cut(), inputs(), atol=1e-4) is False
    lines = log()
    assert "    output: shapes differ: base [100, 10], raw [100, 9]" in lines
    assert "    Route: SimpleModule(base_model)" in lines
    assert not any("Mismatched" in line for line in lines[: lines.index("    Route: SimpleModule(base_model)") + 4])


def test_parameters_without_partner_are_named_where_nothing_is_copied(log: Log) -> None:
    class More(SimpleLayer):
        def __init__(self) -> None:
            super().__init__()
            self.extra = paddle.nn.Linear(3, 4)

    module, layer = SimpleModule(), More()
    layer_map = LayerMap()
    layer_map.ignore(layer.extra)
    assert assign_weight(module, layer, layer_map)
    log()
    assert auto_diff(module, layer, inputs(), auto_init=False, atol=1e-4) is True
    lines = log()
    assert any(line.startswith("weights and grads not compared: ") and "extra" in line for line in lines)
    assert lines[-1] == "SUCCESS !!!"


def test_a_lasting_run_puts_back_what_it_did_not_ask_to_change() -> None:
    """Without optimizers a run leaves no gradients and no running statistics behind."""
    torch_model, paddle_model = TinyPoseTorch(), TinyPosePaddle()
    torch_model.train()
    paddle_model.train()
    before = {name: value.clone() for name, value in torch_model.state_dict().items()}
    auto_diff(torch_model, paddle_model, one_pose(), atol=1e-4)
    assert all(parameter.grad is None for parameter in torch_model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in torch_model.state_dict().items())


def test_a_training_run_over_several_steps_in_training_mode(log: Log) -> None:
    torch_model, paddle_model = TinyPoseTorch(), TinyPosePaddle()
    torch_model.train()
    paddle_model.train()
    pair = optimizers(paddle_model, torch_model)
    assert auto_diff(paddle_model, torch_model, one_input(), True, 3, {"atol": 1e-5}, None, None, pair) is True
    assert log().count("buffers compared. (4 tensors)") == 3
