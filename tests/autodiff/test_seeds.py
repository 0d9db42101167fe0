"""The snippets of the five documents, one test each, in the order in which a reader meets them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
import torch

from padiff import LayerMap, assign_weight, auto_diff
from padiff.errors import ArgumentError
from tests.autodiff.conftest import Log
from tests.autodiff.models import SimpleLayer, SimpleModule

TORCH_BASE = "base_model is SimpleModule (torch), raw_model is SimpleLayer (paddle): "


def example() -> np.ndarray:
    return paddle.rand((100, 100)).numpy().astype("float32")


def paddle_first(array: np.ndarray) -> Any:
    return {"x": paddle.to_tensor(array)}, {"x": torch.as_tensor(array)}


def torch_first(array: np.ndarray) -> Any:
    return {"x": torch.as_tensor(array)}, {"x": paddle.to_tensor(array)}


def assert_aligned(lines: list[str], *more: str) -> None:
    assert lines[0] == "Your options:"
    assert lines[-1] == "SUCCESS !!!"
    assert "FAILED !!!" not in lines
    for line in more:
        assert line in lines


def without_counts(lines: list[str]) -> list[str]:
    return [line.partition(" (")[0] for line in lines]


# ------------------------------------------------------------------ tutorial, second generation


def test_tutorial_1_usage(log: Log) -> None:
    module = SimpleModule()
    layer = SimpleLayer()
    inp = example()
    inp = ({"x": torch.as_tensor(inp)}, {"x": paddle.to_tensor(inp)})

    assert auto_diff(module, layer, inp, atol=1e-4, compare_mode="strict", single_step=False) is True

    lines = log()
    assert_aligned(
        lines, "  atol: `0.0001`", "  compare_mode: `strict`", "  single_step: `False`", "  auto_init: `True`"
    )
    assert TORCH_BASE + "4 tensors of raw_model were overwritten" in lines


def test_tutorial_2_1_aligned(log: Log) -> None:
    assert auto_diff(SimpleModule(), SimpleLayer(), torch_first(example()), atol=1e-4) is True
    lines = log()
    options = lines[lines.index("{") + 1 : lines.index("}")]
    assert options == [
        "  atol: `0.0001`",
        "  rtol: `1e-07`",
        "  compare_mode: `mean`",
        "  diff_phase: `both`",
        "  single_step: `False`",
        "  steps: `1`",
        "  auto_init: `True`",
        "  use_loss: `False`",
        "  use_opt: `False`",
    ]
    said = without_counts(lines)
    order = ["Assign weight success !!!", "forward stage compared.", "loss compared.", "backward stage compared."]
    places = [said.index(line) for line in [*order, "grads compared.", "SUCCESS !!!"]]
    assert places == sorted(places)


def test_tutorial_2_2_weight_copy_fails(log: Log, own_folder: Path) -> None:
    module, layer = SimpleModule(100, 4, 10), SimpleLayer(100, 10, 10)
    before = layer.linear1.weight.numpy().copy(), layer.linear2.weight.numpy().copy()

    assert auto_diff(module, layer, torch_first(example()), atol=1e-4) is False

    lines = log()
    text = "\n".join(lines)
    assert "Assign weight Failed !!!" in lines
    assert TORCH_BASE + "no weights were overwritten" in lines
    assert "    base_model: `Linear(in_features=100, out_features=4, bias=True)`" in lines
    assert "                `SimpleModule(base_model).linear1.weight`" in lines
    assert "    raw_model:  `Linear(in_features=100, out_features=10, dtype=float32)`" in lines
    assert "                `SimpleLayer(raw_model).linear1.weight`" in lines
    assert "[4, 100]" in text
    assert "[100, 10]" in text
    assert "hint: " in text
    assert lines.count("     |--- Linear    <---  *** HERE ***") == 2
    assert lines[-1] == "FAILED !!!"
    for name in ("SimpleModule(base_model)", "SimpleLayer(raw_model)"):
        file = own_folder / "padiff_log" / f"weight_init_{name}.log"
        assert f"    {file}" in lines
        assert file.read_text(encoding="utf-8").splitlines() == [
            name,
            "=" * 40,
            f"    {name.partition('(')[0]} (skip)",
            "     |--- Linear    <---  *** HERE ***",
            "     |--- Linear",
            "     +--- ReLU (skip)",
        ]
    assert (layer.linear1.weight.numpy() == before[0]).all()
    assert (layer.linear2.weight.numpy() == before[1]).all()


def test_tutorial_2_3_forward_differs(log: Log, own_folder: Path) -> None:
    assert auto_diff(SimpleModule(), SimpleLayer(), torch_first(example()), atol=1e-4, auto_init=False) is False

    lines = log()
    text = "\n".join(lines)
    assert TORCH_BASE + "no weights were overwritten (auto_init is False)" in lines
    start = lines.index("FAILED !!!")
    assert lines[start + 1 : start + 5] == [
        "    Diff found in `Forward Stage` in step: 0",
        "    Type of layer is: Linear vs Linear",
        "    Route: SimpleModule(base_model).linear1",
        "           SimpleLayer(raw_model).linear1",
    ]
    assert "Mismatched elements: " in text
    assert "Max absolute difference: " in text
    assert "Max relative difference: " in text
    assert lines.count("     |--- Linear    <---  *** HERE ***") == 2
    assert "rounding" not in text
    assert lines[-1] == "FAILED !!!"
    for name in ("SimpleModule(base_model)", "SimpleLayer(raw_model)"):
        file = own_folder / "padiff_log" / f"report_{name}"
        assert f"    {file}" in lines
        assert "     |--- Linear    <---  *** HERE ***" in file.read_text(encoding="utf-8").splitlines()


def test_tutorial_2_4_weights_differ(log: Log, own_folder: Path) -> None:
    """The example's models agree until the optimizers have stepped."""
    module, layer = SimpleModule(), SimpleLayer()
    assert assign_weight(module, layer)
    optimizers = (
        torch.optim.SGD(module.parameters(), lr=0.1),
        paddle.optimizer.SGD(learning_rate=0.3, parameters=layer.parameters()),
    )
    inp = torch_first(example())

    assert auto_diff(module, layer, inp, atol=1e-4, auto_init=False, optimizers=optimizers) is False

    lines = log()
    assert "  use_opt: `True`" in lines
    assert "grads compared. (4 tensors)" in lines
    assert "    Diff found in `Optimizer Stage` (parameters) in step: 0" in lines
    assert "look at the optimizer" in "\n".join(lines)
    file = own_folder / "padiff_log" / "weights_diff"
    assert f"    {file}" in lines
    listed = file.read_text(encoding="utf-8").splitlines()
    assert "    SimpleModule(base_model).linear2.weight" in listed
    assert "    SimpleLayer(raw_model).linear2.weight" in listed
    assert any(line.startswith("Max absolute difference: ") for line in listed)
    assert not (own_folder / "padiff_log" / "grads_diff").exists()
    assert lines[-1] == "FAILED !!!"


def test_tutorial_2_4_grads_differ(log: Log, own_folder: Path) -> None:
    """Every activation agrees; one layer's weight reaches the output through a second, hidden use of it."""

    class Leaky(SimpleLayer):
        def forward(self, x: Any) -> Any:
            bias = self.linear2.bias
            return super().forward(x) + (bias - bias.detach())

    assert auto_diff(SimpleModule(), Leaky(), torch_first(example()), atol=1e-4) is False

    lines = log()
    assert "    Diff found in `Backward Stage` (parameters) in step: 0" in lines
    assert "    Route: SimpleModule(base_model).linear2.bias" in lines
    file = own_folder / "padiff_log" / "grads_diff"
    assert f"    {file}" in lines
    listed = file.read_text(encoding="utf-8").splitlines()
    assert listed.count("=" * 25) == 1
    assert "    SimpleModule(base_model).linear2.bias" in listed
    assert "    Leaky(raw_model).linear2.bias" in listed
    assert lines[-1] == "FAILED !!!"


def losses(label: np.ndarray) -> tuple[Any, Any]:
    def paddle_loss(inp: Any, label: np.ndarray) -> Any:
        return inp.mean() - paddle.to_tensor(label).mean()

    def torch_loss(inp: torch.Tensor, label: np.ndarray) -> torch.Tensor:
        return inp.mean() - torch.tensor(label).mean()

    return partial(torch_loss, label=label), partial(paddle_loss, label=label)


def criteria(label: np.ndarray) -> tuple[Any, Any]:
    return (
        partial(torch.nn.MSELoss(), target=torch.tensor(label)),
        partial(paddle.nn.MSELoss(), label=paddle.to_tensor(label)),
    )


@pytest.mark.filterwarnings("ignore:Using a target size")  # the documents broadcast their label
@pytest.mark.parametrize("make", [losses, criteria], ids=["own", "framework"])
def test_tutorial_3_1_loss(make: Any, log: Log) -> None:
    """The document gives its inputs the other way round than its models: they are used swapped, and the log says so."""
    layer = SimpleLayer()
    module = SimpleModule()
    inp = example()
    inp = ({"x": paddle.to_tensor(inp)}, {"x": torch.as_tensor(inp)})
    label = paddle.rand([10]).numpy().astype("float32")

    assert auto_diff(module, layer, inp, auto_init=True, atol=1e-4, loss_fn=[*make(label)]) is True

    lines = log()
    assert_aligned(lines, "  use_loss: `True`", "loss compared. (1 tensor)")
    assert "inputs: each set holds tensors of the other model's framework, so the two are used swapped" in lines


def test_tutorial_3_1_a_loss_may_be_a_model(log: Log) -> None:
    class TorchLoss(torch.nn.Module):
        def forward(self, out: torch.Tensor) -> torch.Tensor:
            return out.abs().mean()

    class PaddleLoss(paddle.nn.Layer):
        def forward(self, out: Any) -> Any:
            return out.abs().mean()

    pair = [TorchLoss(), PaddleLoss()]
    assert auto_diff(SimpleModule(), SimpleLayer(), torch_first(example()), atol=1e-4, loss_fns=pair) is True
    assert_aligned(log(), "loss compared. (1 tensor)")


def test_tutorial_3_2_optimizer(log: Log) -> None:
    layer = SimpleLayer()
    module = SimpleModule()
    inp = example()
    inp = ({"x": paddle.to_tensor(inp)}, {"x": torch.as_tensor(inp)})
    paddle_opt = paddle.optimizer.Adam(learning_rate=0.001, parameters=layer.parameters())
    torch_opt = torch.optim.Adam(lr=0.001, params=module.parameters())
    before = module.linear1.weight.detach().clone()

    assert auto_diff(module, layer, inp, auto_init=True, atol=1e-4, optimizers=[torch_opt, paddle_opt]) is True

    assert_aligned(log(), "  use_opt: `True`", "weights compared. (4 tensors)")
    assert not torch.equal(module.linear1.weight, before)


def test_tutorial_3_2_optimizers_as_functions(log: Log) -> None:
    layer, module = SimpleLayer(), SimpleModule()
    paddle_opt = paddle.optimizer.Adam(learning_rate=0.001, parameters=layer.parameters())
    torch_opt = torch.optim.Adam(lr=0.001, params=module.parameters())
    calls: list[str] = []

    def torch_step() -> None:
        calls.append("torch")
        torch_opt.step()
        torch_opt.zero_grad()

    def paddle_step() -> None:
        calls.append("paddle")
        paddle_opt.step()
        paddle_opt.clear_grad()

    pair = [torch_step, paddle_step]
    assert auto_diff(module, layer, torch_first(example()), atol=1e-4, optimizers=pair, steps=3) is True
    assert calls == ["torch", "paddle"] * 3
    assert_aligned(log(), "================= Train Step 2 =================")


def test_tutorial_4_assign_weight(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PADIFF_API_CHECK", "OFF")
    layer = SimpleLayer()
    module = SimpleModule()

    assert assign_weight(layer, module) is True

    assert log() == ["Assign weight success !!!", TORCH_BASE + "4 tensors of raw_model were overwritten"]
    assert (layer.linear1.weight.numpy() == module.linear1.weight.detach().numpy().T).all()


def test_tutorial_4_assign_weight_fails_without_raising(log: Log) -> None:
    assert assign_weight(SimpleLayer(100, 100, 10), SimpleModule(100, 100, 4)) is False
    assert log()[0] == "Assign weight Failed !!!"


def test_tutorial_switch_api_check(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Op level comes later; until then the switch is answered with a line."""
    monkeypatch.setenv("PADIFF_API_CHECK", "ON")
    monkeypatch.setenv("PADDLE_THIRDPARTY_API", "paddle3d.ops.iou3d_nms,paddle3d.ops.hard_voxelize")
    assert auto_diff(SimpleModule(), SimpleLayer(), torch_first(example()), atol=1e-4) is True
    assert_aligned(log(), "PADIFF_API_CHECK=ON: the ops in modules' own code are compared, too")


@pytest.mark.parametrize("name", ["PADIFF_SIKP_WRAP_LAYER", "PADIFF_SKIP_WRAP_LAYER"])
def test_tutorial_switch_skip_wrap_layer(name: str, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the ReLU there are two tensors less to compare."""
    inp = torch_first(example())
    auto_diff(SimpleModule(), SimpleLayer(), inp, atol=1e-4)
    assert "forward stage compared. (8 tensors)" in log()
    monkeypatch.setenv(name, "TRUE")
    assert auto_diff(SimpleModule(), SimpleLayer(), inp, atol=1e-4) is True
    assert "forward stage compared. (6 tensors)" in log()


def test_tutorial_switch_path_log(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PADIFF_PATH_LOG", "ON")
    assert auto_diff(SimpleModule(), SimpleLayer(), torch_first(example()), auto_init=False) is False
    lines = log()
    assert "     |--- Linear  (SimpleModule.linear1)    <---  *** HERE ***" in lines
    assert "     +--- ReLU  (SimpleLayer.act)" in lines


# ------------------------------------------------------------------ tutorial, first generation

STRICT = {"atol": 1e-4, "rtol": 0, "compare_mode": "strict", "single_step": False}


def test_first_tutorial_usage_as_printed_names_the_wrong_input() -> None:
    inp = example()
    inp = ({"x": paddle.to_tensor(inp)}, {"y": torch.as_tensor(inp)})
    with pytest.raises(ArgumentError, match=r"SimpleModule.*'y'.*forward\(x: "):
        auto_diff(SimpleLayer(), SimpleModule(), inp, auto_weights=True, options=STRICT)


def test_first_tutorial_usage_mended(log: Log) -> None:
    layer = SimpleLayer()
    module = SimpleModule()
    inp = example()
    inp = ({"x": paddle.to_tensor(inp)}, {"x": torch.as_tensor(inp)})

    assert auto_diff(layer, module, inp, auto_weights=True, options=STRICT) is True

    lines = log()
    assert_aligned(lines, "  rtol: `0.0`", "  compare_mode: `strict`", "  diff_phase: `both`")
    assert TORCH_BASE + "4 tensors of raw_model were overwritten" in lines
    assert "================= Train Step 0 =================" in lines
    assert any(line.startswith("Max elementwise output diff is ") for line in lines)


def test_first_tutorial_weight_copy_fails(log: Log) -> None:
    layer, module = SimpleLayer(100, 100, 100), SimpleModule(100, 100, 10)
    assert auto_diff(layer, module, paddle_first(example()), auto_weights=True, options={"atol": 1e-4}) is False
    lines = log()
    text = "\n".join(lines)
    assert "Assign weight Failed !!!" in lines
    assert "                `SimpleLayer(raw_model).linear2.weight`" in lines
    assert "                `SimpleModule(base_model).linear2.weight`" in lines
    assert "[10, 100]" in text
    assert "[100, 100]" in text
    assert "    SimpleModule (skip)" in lines
    assert "    SimpleLayer (skip)" in lines
    assert lines[-1] == "FAILED !!!"


def test_first_tutorial_forward_differs_with_stacks(log: Log) -> None:
    assert auto_diff(SimpleLayer(), SimpleModule(), paddle_first(example()), False, options={"atol": 1e-4}) is False
    lines = log()
    assert "    Diff found in `Forward Stage` in step: 0" in lines
    for name in ("SimpleModule(base_model)", "SimpleLayer(raw_model)"):
        place = lines.index(f"Stack of {name}, your own source lines:")
        assert "models.py: " in lines[place + 1]
        assert lines[place + 2].strip() == "x = self.linear1(x)"


def test_first_tutorial_weight_and_grad_lists(log: Log, own_folder: Path) -> None:
    """Models that start apart: the forward is named, and the gradients that differ are listed all the same."""
    layer, module = SimpleLayer(), SimpleModule()
    optimizers = [
        paddle.optimizer.SGD(learning_rate=0.1, parameters=layer.parameters()),
        torch.optim.SGD(module.parameters(), lr=0.1),
    ]
    inp = paddle_first(example())
    assert auto_diff(layer, module, inp, auto_weights=False, options={"atol": 1e-4}, optimizer=optimizers) is False
    lines = log()
    file = own_folder / "padiff_log" / "grads_diff"
    assert f"    {file}" in lines
    assert "    SimpleLayer(raw_model).linear1.weight" in file.read_text(encoding="utf-8").splitlines()
    assert lines[-1] == "FAILED !!!"


@pytest.mark.filterwarnings("ignore:Using a target size")  # the documents broadcast their label
@pytest.mark.parametrize("make", [losses, criteria], ids=["own", "framework"])
def test_first_tutorial_loss(make: Any, log: Log) -> None:
    layer, module = SimpleLayer(), SimpleModule()
    torch_loss, paddle_loss = make(paddle.rand([10]).numpy().astype("float32"))
    pair = [paddle_loss, torch_loss]
    inp = paddle_first(example())
    assert auto_diff(layer, module, inp, auto_weights=True, options={"atol": 1e-4}, loss_fn=pair) is True
    assert_aligned(log(), "  use_loss: `True`", "loss compared. (1 tensor)")


def test_first_tutorial_optimizer(log: Log) -> None:
    layer = SimpleLayer()
    module = SimpleModule()
    paddle_opt = paddle.optimizer.Adam(learning_rate=0.001, parameters=layer.parameters())
    torch_opt = torch.optim.Adam(lr=0.001, params=module.parameters())

    assert (
        auto_diff(
            layer,
            module,
            paddle_first(example()),
            auto_weights=True,
            steps=10,
            options={"atol": 1e-4},
            optimizer=[paddle_opt, torch_opt],
        )
        is True
    )

    lines = log()
    assert_aligned(lines, "  steps: `10`")
    assert sum("Train Step" in line for line in lines) == 10
    assert sum(line == "weights compared. (4 tensors)" for line in lines) == 10


def test_first_tutorial_assign_weight(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PADIFF_API_CHECK", "OFF")
    layer = SimpleLayer()
    module = SimpleModule()
    layer_map = LayerMap()
    assert assign_weight(layer, module, layer_map) is True
    assert log()[0] == "Assign weight success !!!"
    assert (layer.linear2.bias.numpy() == module.linear2.bias.detach().numpy()).all()


# ------------------------------------------------------------------ FAQ


def transformers() -> tuple[Any, Any]:
    """One encoder and one decoder layer each, as the FAQ's example has; paddle calls its second attention otherwise."""
    sizes: dict[str, Any] = {"d_model": 12, "nhead": 4, "num_encoder_layers": 1, "num_decoder_layers": 1}
    torch_model = torch.nn.Transformer(**sizes, dim_feedforward=20, dropout=0.0, batch_first=True)
    paddle_model = paddle.nn.Transformer(**sizes, dim_feedforward=20, dropout=0.0)

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.transformer = torch_model

        def forward(self, src: Any, tgt: Any) -> Any:
            return self.transformer(src, tgt)

    class Layer(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.transformer = paddle_model

        def forward(self, src: Any, tgt: Any) -> Any:
            return self.transformer(src, tgt)

    return Layer(), Module()


def test_faq_layer_map_as_dict(log: Log) -> None:
    layer, module = transformers()
    src, tgt = np.random.rand(2, 5, 12).astype("float32"), np.random.rand(2, 7, 12).astype("float32")
    inp = (
        {"src": paddle.to_tensor(src), "tgt": paddle.to_tensor(tgt)},
        {"src": torch.as_tensor(src), "tgt": torch.as_tensor(tgt)},
    )
    decoder_layer, decoder_module = layer.transformer.decoder.layers[0], module.transformer.decoder.layers[0]
    layer_map = {
        layer.transformer.encoder.layers[0].self_attn: module.transformer.encoder.layers[0].self_attn,
        decoder_layer.self_attn: decoder_module.self_attn,
        decoder_layer.cross_attn: decoder_module.multihead_attn,
    }
    assert assign_weight(layer, module, layer_map) is True
    log()

    assert auto_diff(layer, module, inp, auto_weights=False, layer_map=layer_map, options={"atol": 1e-4}) is True

    assert_aligned(log(), "  auto_init: `False`")


def test_faq_other_precision(log: Log) -> None:
    """Models and inputs that are not float32 are compared like any other."""
    module, layer = SimpleModule().double(), SimpleLayer().to(dtype="float64")
    array = np.random.rand(100, 100)
    assert auto_diff(module, layer, torch_first(array), rtol=1e-12) is True
    assert_aligned(log())


def test_faq_buffers_are_compared_in_pairs(log: Log) -> None:
    class TorchNet(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(3, 5)
            self.register_buffer("scale", torch.full((5,), 2.0))

        def forward(self, x: Any) -> Any:
            return self.fc(x) * self.scale

    class PaddleNet(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.fc = paddle.nn.Linear(3, 5)
            self.register_buffer("scale", paddle.full([5], 2.0))

        def forward(self, x: Any) -> Any:
            return self.fc(x) * self.scale

    assert auto_diff(TorchNet(), PaddleNet(), torch_first(np.random.rand(4, 3).astype("float32")), atol=1e-5) is True
    assert_aligned(log(), "buffers compared. (1 tensor)")


# ------------------------------------------------------------------ interface page


def test_interfaces_auto_diff_as_printed_names_the_wrong_input() -> None:
    inp = example()
    inp = ({"x": paddle.to_tensor(inp)}, {"y": torch.as_tensor(inp)})
    with pytest.raises(ArgumentError) as caught:
        auto_diff(layer=SimpleLayer(), module=SimpleModule(), example_inp=inp, auto_weights=True, options=STRICT)
    assert "inputs: the base model SimpleModule cannot be called with 'y'" in str(caught.value)
    assert "its signature is forward(x: " in str(caught.value)


def test_interfaces_auto_diff_by_its_names(log: Log) -> None:
    layer, module = SimpleLayer(), SimpleModule()
    assert (
        auto_diff(
            layer=layer,
            module=module,
            example_inp=paddle_first(example()),
            auto_weights=True,
            steps=1,
            options=STRICT,
            layer_map={},
            loss_fn=None,
            optimizer=None,
        )
        is True
    )
    lines = log()
    assert_aligned(lines)
    assert TORCH_BASE + "4 tensors of raw_model were overwritten" in lines


def test_interfaces_assign_weight(log: Log) -> None:
    layer = SimpleLayer()
    module = SimpleModule()
    layer_map = LayerMap()
    assert assign_weight(layer, module, layer_map) is True
    assert log() == ["Assign weight success !!!", TORCH_BASE + "4 tensors of raw_model were overwritten"]
