"""Planted differences: each must be named at its exact place, by both doors, on all pairs of frameworks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff
from tests.twins import PAIRS, adam, after, batch, net, read, sgd, write

TOLERANCE = padiff.Tolerance(rtol=1e-4, atol=1e-5, mode="mean")


def is_torch(model: Any) -> bool:
    return isinstance(model, torch.nn.Module)


def set_eps(module: Any, value: float) -> None:
    if is_torch(module):
        module.eps = value
    else:
        module._epsilon = value


def nudge(tensor: Any) -> None:
    values = read(tensor)
    values.flat[3] += 0.5
    write(tensor, values)


def nan_at(output: Any) -> Any:
    mask = np.zeros(tuple(output.shape), dtype="float32")
    mask.flat[5] = np.nan
    return output + (torch.from_numpy(mask) if isinstance(output, torch.Tensor) else paddle.to_tensor(mask))


def to_double(output: Any) -> Any:
    return output.double() if isinstance(output, torch.Tensor) else output.astype("float64")


def replace_activation(raw: Any) -> None:
    raw.blocks[1].act = torch.nn.ReLU() if is_torch(raw) else paddle.nn.ReLU()


def scale_weight_gradient(raw: Any) -> None:
    raw.blocks[1].fc2.weight.register_hook(lambda gradient: gradient * 1.1)


@dataclass(frozen=True)
class Plant:
    """One mistake in raw, and where it must be found."""

    name: str
    do: Callable[[Any], None]
    path: str
    phase: str = "forward"
    role: str = "output"
    train: bool = False


PLANTS = [
    Plant("weight", lambda raw: nudge(raw.blocks[1].fc1.weight), "blocks.1.fc1"),
    Plant("bias", lambda raw: nudge(raw.blocks[2].two.bias), "blocks.2.two"),
    Plant("eps", lambda raw: set_eps(raw.blocks[1].norm, 1e-3), "blocks.1.norm"),
    Plant("activation", replace_activation, "blocks.1.act"),
    Plant("residual", lambda raw: setattr(raw.blocks[1], "residual", False), "blocks.1"),
    Plant("swapped layers", lambda raw: setattr(raw.blocks[1], "swap", True), "blocks.1"),
    Plant("nan", lambda raw: after(raw.blocks[2].fc2, nan_at), "blocks.2.fc2"),
    Plant("dtype", lambda raw: after(raw.head, to_double), "head"),
    Plant("extra output", lambda raw: setattr(raw.blocks[1], "extra", True), "blocks.1"),
    Plant("statistics", lambda raw: nudge(raw.state_dict()["bn.running_mean" if is_torch(raw) else "bn._mean"]), "bn"),
    Plant(
        "own code's gradient",
        lambda raw: setattr(raw.blocks[1], "scale_gradient", True),
        "blocks.1",
        "backward",
        "input",
    ),
    Plant("parameter's gradient", scale_weight_gradient, "blocks.1.fc2", "gradient", "parameter"),
]


def twins(base: str, raw: str) -> tuple[Any, Any]:
    """A pair that agrees."""
    left, right = net(base), net(raw)
    result = padiff.compare(left, right, batch(), tolerance=TOLERANCE)
    assert result.aligned, str(result)
    return left, right


@pytest.mark.parametrize("frameworks", PAIRS, ids="-".join)
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
def test_place_is_named(frameworks: tuple[str, str], plant: Plant, capsys: pytest.CaptureFixture[str]) -> None:
    base, raw = twins(*frameworks)
    plant.do(raw)
    result = padiff.compare(base, raw, batch(), weights="keep", tolerance=TOLERANCE)
    found = result.divergence
    assert not result.aligned
    assert found is not None
    assert (found.base_path, found.raw_path) == (plant.path, plant.path), str(found)
    assert (found.phase, found.role, found.step) == (plant.phase, plant.role, 0)

    same = padiff.auto_diff(
        base_model=base, raw_model=raw, inputs=({"x": batch()}, {"x": batch()}), auto_init=False, atol=1e-5, rtol=1e-4
    )
    assert same is False
    log = capsys.readouterr().out
    route = f"{type(raw).__name__}(raw_model).{plant.path}"
    assert any(line.endswith((route, route + ".weight")) for line in log.splitlines()), log
    assert log.count("<---  *** HERE ***") >= 2


@pytest.mark.parametrize("frameworks", PAIRS, ids="-".join)
def test_lines_of_the_parents_own_code(frameworks: tuple[str, str]) -> None:
    base, raw = twins(*frameworks)
    raw.blocks[1].residual = False
    found = padiff.compare(base, raw, batch(), weights="keep", tolerance=TOLERANCE).divergence
    assert found is not None
    assert "between its children blocks.1.fc2" in found.note
    for lines in found.source:
        assert any("x = x + h if self.residual else h" in line.text for line in lines)


@pytest.mark.parametrize("frameworks", PAIRS, ids="-".join)
@pytest.mark.parametrize("side", ["base", "raw"])
@pytest.mark.parametrize("more", ["another", "the same"])
def test_one_model_returns_more(
    frameworks: tuple[str, str], side: str, more: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the loss, which is made of it, and which differs for that alone."""
    base, raw = twins(*frameworks)
    after(base if side == "base" else raw, lambda out: (out, out + 1 if more == "another" else out))
    result = padiff.compare(base, raw, batch(), weights="keep", tolerance=TOLERANCE)
    assert result.divergence is not None
    assert (result.divergence.raw_path, result.divergence.phase, result.divergence.role) == ("", "forward", "output")
    assert str(result.divergence.comparison.outcome.message).endswith(f"exists in {side} only")
    inputs = ({"x": batch()}, {"x": batch()})
    bounds: dict[str, Any] = {"auto_init": False, "atol": 1e-5, "rtol": 1e-4}
    assert padiff.auto_diff(base_model=base, raw_model=raw, inputs=inputs, **bounds) is False
    log = capsys.readouterr().out
    assert f"     output '1' (float32[7, 5]) exists in {side} only" in log
    assert "Diff found in `Forward Stage` in step: 0" in log


@pytest.mark.parametrize("frameworks", PAIRS, ids="-".join)
@pytest.mark.parametrize("change", [lambda x: x + 1, lambda x: x[:5]], ids=["values", "shape"])
def test_inputs_that_are_no_pair(frameworks: tuple[str, str], change: Any) -> None:
    """No layer is to blame for what the models were given."""
    base, raw = twins(*frameworks)
    pair = ({"x": batch()}, {"x": change(batch())})
    found = padiff.compare(base, raw, pair, weights="keep", tolerance=TOLERANCE).divergence
    assert found is not None
    assert (found.base_path, found.raw_path, found.phase, found.role) == ("", "", "forward", "input")
    assert found.note == "the two models were given different inputs"


@pytest.mark.parametrize("frameworks", PAIRS, ids="-".join)
def test_loss(frameworks: tuple[str, str]) -> None:
    base, raw = twins(*frameworks)
    result = padiff.compare(
        base, raw, batch(), loss=(lambda out: (out * out).mean(), lambda out: out.mean()), tolerance=TOLERANCE
    )
    found = result.divergence
    assert found is not None
    assert (found.base_path, found.role, found.phase) == ("", "loss", "forward")
    assert "loss" in found.note


def before_a_norm(framework: str) -> Any:
    """A bias that the norm after it takes out again: its gradient is zero, but for rounding."""
    if framework == "torch":
        return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
    return paddle.nn.Sequential(paddle.nn.Linear(6, 8), paddle.nn.BatchNorm1D(8), paddle.nn.Linear(8, 2))


def test_whole_steps_along_no_gradient_are_told_from_an_optimizer_at_fault() -> None:
    def found(rate: float) -> Any:
        base, raw = before_a_norm("torch"), before_a_norm("paddle")
        result = padiff.compare(
            base,
            raw,
            batch(),
            loss=lambda out: (out * out).mean(),
            optimizers=(adam(base, 1e-8, 0.01), adam(raw, 1e-8, rate)),
            tolerance=TOLERANCE,
        )
        assert result.divergence is not None
        return result.divergence

    noise = found(0.01)
    assert (noise.raw_path, noise.phase, noise.comparison.name) == ("0", "weight", "bias")
    assert "the gradient there is what rounding leaves of zero" in noise.note
    fault = found(0.02)
    assert (fault.raw_path, fault.phase, fault.comparison.name) == ("0", "weight", "weight")
    assert fault.note.endswith("look at the optimizer")


@pytest.mark.parametrize("frameworks", PAIRS, ids="-".join)
def test_gradients_that_one_function_leaves_behind(frameworks: tuple[str, str]) -> None:
    base, raw = twins(*frameworks)
    optimizers = sgd(base), sgd(raw)

    def step_and_clear() -> None:
        optimizers[0].step()
        optimizers[0].zero_grad() if is_torch(base) else optimizers[0].clear_grad()

    functions = (step_and_clear, optimizers[1].step)
    result = padiff.compare(base, raw, batch(), optimizers=functions, steps=3, weights="keep", tolerance=TOLERANCE)
    assert result.divergence is not None
    assert (result.divergence.step, result.divergence.phase) == (1, "gradient")
    assert any("the optimizer's function of raw leaves gradients behind" in note for note in result.notes)


def test_gradients_clipped_by_one_optimizer_are_no_other_rate() -> None:
    base, raw = twins("torch", "paddle")
    clip = paddle.nn.ClipGradByGlobalNorm(0.03)
    optimizers = sgd(base), paddle.optimizer.SGD(0.1, parameters=raw.parameters(), grad_clip=clip)
    found = padiff.compare(
        base,
        raw,
        batch(),
        loss=lambda out: (out * out).mean(),
        optimizers=optimizers,
        weights="keep",
        tolerance=TOLERANCE,
    ).divergence
    assert found is not None
    assert (found.phase, found.causes[0].name) == ("weight", "gradient clipping")


OPTIMIZERS = {
    "lr": (lambda model: sgd(model, lr=0.1), lambda model: sgd(model, lr=0.2)),
    "weight decay": (lambda model: sgd(model), lambda model: sgd(model, weight_decay=0.1)),
    "eps": (lambda model: adam(model, eps=1e-3), lambda model: adam(model, eps=1.0)),
}


@pytest.mark.parametrize("frameworks", PAIRS, ids="-".join)
@pytest.mark.parametrize("what", OPTIMIZERS)
def test_optimizer(frameworks: tuple[str, str], what: str) -> None:
    base, raw = twins(*frameworks)
    ours, theirs = OPTIMIZERS[what]
    right = padiff.compare(base, raw, batch(), optimizers=(ours(base), ours(raw)), steps=3, tolerance=TOLERANCE)
    assert right.aligned, str(right)
    assert len(right.steps) == 3
    found = padiff.compare(base, raw, batch(), optimizers=(ours(base), theirs(raw)), tolerance=TOLERANCE).divergence
    assert found is not None
    assert (found.phase, found.role, found.step) == ("weight", "parameter", 0)
    assert "optimizer" in found.note


@pytest.mark.parametrize("frameworks", PAIRS, ids="-".join)
def test_momentum_shows_in_buffers_only(frameworks: tuple[str, str]) -> None:
    base, raw = twins(*frameworks)
    base.train()
    raw.train()
    clean = padiff.compare(base, raw, batch(), tolerance=TOLERANCE)
    assert clean.aligned, str(clean)
    if is_torch(raw):
        raw.bn.momentum = 0.3
    else:
        raw.bn._momentum = 0.7
    found = padiff.compare(base, raw, batch(), tolerance=TOLERANCE).divergence
    assert found is not None
    assert (found.base_path, found.raw_path, found.phase) == ("bn", "bn", "buffer")


@pytest.mark.parametrize("frameworks", PAIRS, ids="-".join)
def test_train_mode_steps_agree(frameworks: tuple[str, str]) -> None:
    base, raw = twins(*frameworks)
    base.train()
    raw.train()
    result = padiff.compare(base, raw, batch(), optimizers=(sgd(base), sgd(raw)), steps=4, tolerance=TOLERANCE)
    assert result.aligned, str(result)


@pytest.mark.parametrize("frameworks", PAIRS, ids="-".join)
def test_second_step_of_three(frameworks: tuple[str, str]) -> None:
    base, raw = twins(*frameworks)
    calls = []

    def later(output: Any) -> Any:
        calls.append(1)
        return output * 1.1 if len(calls) == 2 else output

    after(raw.blocks[1].fc1, later)
    found = padiff.compare(
        base, raw, batch(), optimizers=(sgd(base), sgd(raw)), steps=3, weights="keep", tolerance=TOLERANCE
    ).divergence
    assert found is not None
    assert (found.raw_path, found.step, found.phase) == ("blocks.1.fc1", 1, "forward")


@pytest.mark.parametrize("frameworks", PAIRS, ids="-".join)
def test_errors_of_opposite_sign_do_not_cancel(frameworks: tuple[str, str]) -> None:
    base, raw = twins(*frameworks)

    def seesaw(output: Any) -> Any:
        signs = np.where(np.arange(5) % 2 == 0, 1.0, -1.0).astype("float32") * np.array([1, 1, 1, 2, 1], "float32")
        return output + (torch.from_numpy(signs) if isinstance(output, torch.Tensor) else paddle.to_tensor(signs))

    after(raw.head, seesaw)
    found = padiff.compare(base, raw, batch(), weights="keep", tolerance=TOLERANCE).divergence
    assert found is not None
    assert found.raw_path == "head"
