"""What rounding explains is measured on base, and nothing has to be guessed."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff
from padiff.errors import ArgumentError
from tests.twins import batch, net, read

PAIRS = [("torch", "torch"), ("torch", "paddle"), ("paddle", "torch"), ("paddle", "paddle")]


def state(model: Any) -> dict[str, np.ndarray]:
    return {name: np.array(read(tensor)) for name, tensor in model.state_dict().items()}


def seed() -> None:
    torch.manual_seed(3)
    paddle.seed(3)


def draw(seeded: bool = False) -> np.ndarray:
    if not seeded:
        seed()
    return np.concatenate([torch.rand(3).numpy(), paddle.rand([3]).numpy()])


@pytest.mark.parametrize("frameworks", PAIRS, ids="-".join)
def test_base_is_left_to_the_bit(frameworks: tuple[str, str]) -> None:
    """Shaken and run again as it is, its weights, buffers, gradients, mode and random state stay."""
    base, raw = (net(framework) for framework in frameworks)
    base.train()
    for model in (base, raw):
        for parameter in model.parameters():
            gradient = np.full(tuple(parameter.shape), 0.5, "float32")
            parameter.grad = (
                torch.from_numpy(gradient) if isinstance(model, torch.nn.Module) else paddle.to_tensor(gradient)
            )
    before = state(base)
    drawn = draw()
    seed()
    result = padiff.compare(base, raw, batch(), weights="keep")
    assert not result.aligned
    after = state(base)
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert base.training
    assert all(np.all(read(parameter.grad) == 0.5) for parameter in base.parameters())
    assert np.array_equal(draw(seeded=True), drawn)


def test_gradients_of_torch_are_the_tensors_that_they_were() -> None:
    """Where they can be held they are not copied; what is added up in a tensor of its own is."""
    base, raw = net("torch"), net("torch")
    first, second = list(base.parameters())[:2]
    first.grad = torch.full_like(first, 0.5)
    second.main_grad = torch.full_like(second, 0.25)
    before = first.grad, second.main_grad
    padiff.compare(base, raw, batch())
    assert first.grad is before[0] and bool((first.grad == 0.5).all())
    assert second.main_grad is before[1] and bool((second.main_grad == 0.25).all())


@pytest.mark.parametrize("frameworks", PAIRS[1:3], ids="-".join)
def test_what_was_predicted_is_about_what_comes(frameworks: tuple[str, str]) -> None:
    base, raw = (net(framework) for framework in frameworks)
    result = padiff.compare(base, raw, batch())
    assert result.aligned, str(result)
    ratios = [c.outcome.ratio for c in result.comparisons if c.phase == "forward" and c.role == "output"]
    known = [ratio for ratio in ratios if ratio]
    assert len(known) > 10
    assert 0.05 < np.median(known) < 3
    assert max(known) < 10


@pytest.mark.parametrize("factor", [1e-3, 1.01, 1 + 2e-4])
@pytest.mark.parametrize("frameworks", PAIRS, ids="-".join)
def test_small_faults_are_seen_with_no_tolerance_given(frameworks: tuple[str, str], factor: float) -> None:
    base, raw = (net(framework) for framework in frameworks)
    assert padiff.compare(base, raw, batch()).aligned
    weight = raw.blocks[1].fc1.weight
    with torch.no_grad(), paddle.no_grad():
        if isinstance(raw, torch.nn.Module):
            weight.mul_(factor)
        else:
            weight.set_value(weight * factor)
    result = padiff.compare(base, raw, batch(), weights="keep")
    assert result.divergence is not None
    assert result.divergence.raw_path == "blocks.1.fc1"


def test_large_and_small_activations_and_float64() -> None:
    for scale in (1e-3, 1.0, 1e3):
        for dtype in ("float32", "float64"):
            base = net("torch").to(getattr(torch, dtype))
            raw = copy.deepcopy(base)
            x = (batch() * scale).astype(dtype)
            assert padiff.compare(base, raw, x).aligned
            with torch.no_grad():
                raw.blocks[2].two.weight.mul_(1.001)
            result = padiff.compare(base, raw, x, weights="keep")
            assert result.divergence is not None
            assert result.divergence.raw_path == "blocks.2.two"


def test_a_fault_that_a_norm_cancels_is_seen() -> None:
    class Model(torch.nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.first = torch.nn.Linear(12, 12)
            self.norm = torch.nn.LayerNorm(12)
            self.last = torch.nn.Linear(12, 5)
            self.scale = scale

        def forward(self, x: Any) -> Any:
            return self.last(self.norm(self.first(x) * self.scale))

    result = padiff.compare(Model(1.0), Model(1.5), torch.randn(4, 12))
    assert result.divergence is not None
    assert result.divergence.raw_path == ""
    assert "between its children first" in result.divergence.note
    assert "norm" in result.divergence.note


def test_several_faults_are_all_listed_in_order() -> None:
    base = net("torch")
    raw = copy.deepcopy(base)
    with torch.no_grad():
        raw.blocks[2].two.bias.add_(0.1)
        raw.blocks[0].fc1.weight.mul_(1.1)
    result = padiff.compare(base, raw, batch(), weights="keep")
    assert [one.raw_path for one in result.divergences] == ["blocks.0.fc1", "blocks.2.two"]


def test_more_calibration() -> None:
    base, raw = net("torch"), net("paddle")
    strict = padiff.compare(base, raw, batch(), tolerance=padiff.Calibration(runs=3, factor=4.0))
    assert strict.aligned, str(strict)
    assert strict.tolerance.runs == 3


@pytest.mark.parametrize(
    ("calibration", "message"),
    [
        (padiff.Calibration(runs=0), "runs is 0, expected a whole number of at least 1"),
        (padiff.Calibration(factor=0.0), "factor is 0.0, expected a number above 0"),
        (padiff.Calibration(factor=float("nan")), "factor is nan"),
    ],
)
def test_wrong_calibrations(calibration: padiff.Calibration, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        padiff.compare(net("torch"), net("torch"), batch(), tolerance=calibration)


def test_several_steps_of_adam_across_frameworks() -> None:
    base, raw = net("torch"), net("paddle")
    padiff.compare(base, raw, batch())
    optimizers = (
        torch.optim.AdamW(base.parameters(), lr=1e-3, weight_decay=0.01),
        paddle.optimizer.AdamW(1e-3, parameters=raw.parameters(), weight_decay=0.01),
    )
    result = padiff.compare(base, raw, batch(), optimizers=optimizers, steps=4, weights="keep")
    assert result.aligned, str(result)
    assert len(result.steps) == 4


def test_a_model_that_checks_its_inputs_is_not_shaken() -> None:
    class Picky(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 3)

        def forward(self, x: Any) -> Any:
            assert float(x.sum()) == 6.0
            return self.linear(x)

    base = Picky()
    raw = copy.deepcopy(base)
    x = torch.full((4, 4), 0.375)
    assert padiff.compare(base, raw, x).aligned
    with torch.no_grad():
        raw.linear.bias.add_(0.01)
    result = padiff.compare(base, raw, x, weights="keep")
    assert result.divergence is not None
    assert result.divergence.raw_path == "linear"
