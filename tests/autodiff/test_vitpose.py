"""The walk through the port of a pose network: map, weights, forward per batch, loss, optimizers, the last look."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import paddle
import pytest
import torch

from padiff import LayerMap, assign_weight, auto_diff, check_dataloader
from tests.autodiff.conftest import Log
from tests.autodiff.models import CHANNELS, GRID, IMAGE, JOINTS, TinyPosePaddle, TinyPoseTorch

FORWARD: dict[str, Any] = {"atol": 0.0, "rtol": 1e-5, "single_step": False, "diff_phase": "forward"}
BOTH: dict[str, Any] = {**FORWARD, "diff_phase": "both"}
HEATMAP = (JOINTS, 4 * GRID[0], 4 * GRID[1])


class Images:
    """Batches of images under the name that one side's pipeline gives them."""

    def __init__(self, name: str, framework: Any, batches: int = 3) -> None:
        self.name, self.framework, self.batches = name, framework, batches

    def __iter__(self) -> Iterator[dict[str, Any]]:
        random = np.random.default_rng(3)
        for _ in range(self.batches):
            yield {self.name: self.framework(random.random((2, CHANNELS, *IMAGE), dtype=np.float32))}


def torch_images() -> Images:
    return Images("img", torch.as_tensor)


def paddle_images() -> Images:
    return Images("image", paddle.to_tensor)


def one_input() -> Any:
    return {"x": next(iter(paddle_images()))["image"]}, {"x": next(iter(torch_images()))["img"]}


def prepared(multihead: bool = False) -> tuple[Any, Any, LayerMap]:
    """Steps 1 to 4 of every snippet: both models, the map, the weights."""
    torch_model = TinyPoseTorch(multihead)
    torch_model.eval()
    paddle_model = TinyPosePaddle(multihead)
    paddle_model.eval()
    layer_map = LayerMap()
    layer_map.auto(paddle_model, torch_model)
    assert assign_weight(paddle_model, torch_model, layer_map) is True
    return paddle_model, torch_model, layer_map


def optimizers(paddle_model: Any, torch_model: Any, rate: float = 0.01) -> list[Any]:
    return [
        paddle.optimizer.SGD(learning_rate=rate, parameters=paddle_model.parameters()),
        torch.optim.SGD(torch_model.parameters(), lr=rate),
    ]


def test_preparation_finds_the_layers_and_copies_torch_into_paddle(log: Log) -> None:
    paddle_model, torch_model, layer_map = prepared()
    lines = log()
    assert lines[0] == "LayerMap.auto: TinyPoseTorch (torch) and TinyPosePaddle (paddle)"
    assert layer_map.map == {}
    assert "base_model is TinyPoseTorch (torch), raw_model is TinyPosePaddle (paddle): " in lines[-1]
    ours, theirs = paddle_model.backbone.pos_embed.numpy(), torch_model.backbone.pos_embed.detach().numpy()
    assert (ours == theirs).all()


def test_preparation_maps_attention_that_is_stored_otherwise(log: Log) -> None:
    paddle_model, torch_model, layer_map = prepared(multihead=True)
    lines = log()
    assert len(layer_map.map) == 2
    assert layer_map.map[torch_model.backbone.blocks[1].attn] is paddle_model.backbone.blocks[1].attn
    arrow = "backbone.blocks.1.attn (MultiheadAttention)  <->  backbone.blocks.1.attn (MultiHeadAttention)"
    assert f"    {arrow}" in lines
    assert auto_diff(paddle_model, torch_model, one_input(), False, 1, FORWARD, layer_map) is True


def test_1_forward_of_every_batch(log: Log) -> None:
    paddle_model, torch_model, layer_map = prepared()
    log()
    checked = 0
    for paddle_batch, torch_batch in zip(paddle_images(), torch_images(), strict=True):
        inp = ({"x": paddle_batch["image"]}, {"x": torch_batch["img"]})
        result = auto_diff(
            paddle_model, torch_model, inp, auto_weights=False, layer_map=layer_map, options=dict(FORWARD)
        )
        assert result is True
        lines = log()
        assert lines[-1] == "SUCCESS !!!"
        assert "  diff_phase: `forward`" in lines
        assert not any(line.startswith(("backward", "grads", "loss")) for line in lines)
        checked += 1
    assert checked == 3
    assert all(parameter.grad is None for parameter in torch_model.parameters())


def test_1_the_loop_ends_at_the_first_batch_that_differs(log: Log) -> None:
    paddle_model, torch_model, layer_map = prepared()
    paddle_model.head.deconv_layers[1]._epsilon = 1e-2
    log()
    result = auto_diff(
        paddle_model, torch_model, one_input(), auto_weights=False, layer_map=layer_map, options=dict(FORWARD)
    )
    assert result is False
    lines = log()
    assert "    Route: TinyPoseTorch(base_model).head.deconv_layers.1" in lines
    assert "    Type of layer is: BatchNorm2d vs BatchNorm2D" in lines


def test_1_the_two_pipelines_can_be_held_against_each_other(log: Log) -> None:
    same_name = Images("img", paddle.to_tensor)
    assert check_dataloader(same_name, torch_images()) is True
    assert log()[-1] == "SUCCESS !!!"


def heatmap_losses(target: np.ndarray) -> list[Any]:
    def paddle_loss(output: Any) -> Any:
        return paddle.nn.functional.mse_loss(output, paddle.to_tensor(target))

    def torch_loss(output: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.mse_loss(output, torch.as_tensor(target))

    return [paddle_loss, torch_loss]


def test_2_loss(log: Log) -> None:
    paddle_model, torch_model, layer_map = prepared()
    target = np.random.rand(2, *HEATMAP).astype("float32")
    log()
    for paddle_batch, torch_batch in zip(paddle_images(), torch_images(), strict=True):
        inp = ({"x": paddle_batch["image"]}, {"x": torch_batch["img"]})
        result = auto_diff(
            paddle_model,
            torch_model,
            inp,
            auto_weights=False,
            layer_map=layer_map,
            options=dict(FORWARD),
            loss_fn=heatmap_losses(target),
        )
        assert result is True
        lines = log()
        assert "  use_loss: `True`" in lines
        assert "loss compared. (1 tensor)" in lines
        assert not any(line.startswith(("backward", "grads")) for line in lines)


def test_2_a_loss_that_differs_is_named(log: Log) -> None:
    paddle_model, torch_model, layer_map = prepared()
    pair = heatmap_losses(np.random.rand(2, *HEATMAP).astype("float32"))
    log()
    result = auto_diff(
        paddle_model,
        torch_model,
        one_input(),
        auto_weights=False,
        layer_map=layer_map,
        options=dict(FORWARD),
        loss_fn=[lambda output: 1.5 * pair[0](output), pair[1]],
    )
    assert result is False
    lines = log()
    assert "    Diff found in `Forward Stage` (loss) in step: 0" in lines
    assert "look at the loss functions" in "\n".join(lines)


def test_3_optimizers_over_the_batches(log: Log) -> None:
    paddle_model, torch_model, layer_map = prepared()
    pair = optimizers(paddle_model, torch_model)
    before = torch_model.head.final_layer.weight.detach().clone()
    log()
    for paddle_batch, torch_batch in zip(paddle_images(), torch_images(), strict=True):
        inp = ({"x": paddle_batch["image"]}, {"x": torch_batch["img"]})
        result = auto_diff(
            paddle_model,
            torch_model,
            inp,
            auto_weights=False,
            layer_map=layer_map,
            options=dict(BOTH),
            optimizer=pair,
        )
        assert result is True
        lines = log()
        assert "  use_opt: `True`" in lines
        assert "weights compared. (38 tensors)" in lines
        now = torch_model.head.final_layer.weight.detach().clone()
        assert not torch.equal(now, before)
        before = now


def test_3_ten_steps_with_one_input(log: Log) -> None:
    paddle_model, torch_model, layer_map = prepared()
    log()
    result = auto_diff(
        paddle_model,
        torch_model,
        one_input(),
        auto_weights=False,
        layer_map=layer_map,
        options=dict(BOTH),
        optimizer=optimizers(paddle_model, torch_model),
        steps=10,
    )
    assert result is True
    lines = log()
    assert [line for line in lines if "Train Step" in line][-1] == "================= Train Step 9 ================="
    assert lines.count("grads compared. (38 tensors)") == 10
    assert lines.count("weights compared. (38 tensors)") == 10
    assert lines[-1] == "SUCCESS !!!"


def test_3_an_optimizer_that_differs_is_named(log: Log) -> None:
    paddle_model, torch_model, layer_map = prepared()
    paddle_opt, torch_opt = optimizers(paddle_model, torch_model)
    paddle_opt.set_lr(0.02)
    log()
    result = auto_diff(
        paddle_model,
        torch_model,
        one_input(),
        auto_weights=False,
        layer_map=layer_map,
        options=dict(BOTH),
        optimizer=[paddle_opt, torch_opt],
        steps=10,
    )
    assert result is False
    lines = log()
    assert "    Diff found in `Optimizer Stage` (parameters) in step: 0" in lines
    assert "grads compared. (38 tensors)" in lines
    assert sum("Train Step" in line for line in lines) == 1


def test_4_the_last_snippet_as_printed(log: Log) -> None:
    paddle_model, torch_model, layer_map = prepared()
    log()
    result = auto_diff(
        paddle_model,
        torch_model,
        one_input(),
        auto_weights=False,
        layer_map=layer_map,
        options={"atol": 0.0, "rtol": 1e-5, "single_step": False, "diff_phase": "both"},
    )
    assert result is True
    assert log()[-1] == "SUCCESS !!!"


@pytest.mark.parametrize("phase", ["forward", "backward", "both"])
def test_4_single_step(phase: str, log: Log) -> None:
    paddle_model, torch_model, layer_map = prepared()
    log()
    options = {"atol": 0.0, "rtol": 1e-5, "single_step": True, "diff_phase": phase}
    call = {"auto_weights": False, "layer_map": layer_map, "options": options}
    assert auto_diff(paddle_model, torch_model, one_input(), **call) is True
    lines = log()
    assert "  single_step: `True`" in lines
    assert any("forward stage compared" in line for line in lines) is (phase != "backward")
    assert any("backward stage compared" in line for line in lines) is (phase != "forward")
    assert lines[-1] == "SUCCESS !!!"
