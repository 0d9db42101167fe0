"""Single step: every layer of raw is fed what base's was fed, so what differs arose in the layer itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from padiff import auto_diff
from tests.autodiff.conftest import Log
from tests.own_code import batch as own_batch
from tests.own_code import model as own_model
from tests.test_planted import PAIRS, PLANTS, Plant, twins
from tests.twins import adam, batch, read

BOUNDS: dict[str, Any] = {"atol": 1e-6, "rtol": 1e-5, "auto_init": False}


def both() -> tuple[dict[str, Any], dict[str, Any]]:
    return {"x": batch()}, {"x": batch()}


@pytest.mark.parametrize("frameworks", PAIRS, ids="-".join)
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
def test_the_layer_itself_is_named(frameworks: tuple[str, str], plant: Plant, log: Log) -> None:
    base, raw = twins(*frameworks)
    plant.do(raw)
    phase = "forward" if plant.phase == "forward" else "backward"
    assert (
        auto_diff(base_model=base, raw_model=raw, inputs=both(), single_step=True, diff_phase=phase, **BOUNDS) is False
    )
    lines = log()
    route = ".".join(part for part in (f"{type(raw).__name__}(raw_model)", plant.path) if part)
    assert any(line.strip() in (route, f"{route}.weight") for line in lines), lines


@pytest.mark.parametrize("frameworks", PAIRS, ids="-".join)
def test_an_error_does_not_reach_the_layers_after_it(frameworks: tuple[str, str], log: Log) -> None:
    base, raw = twins(*frameworks)
    PLANTS[0].do(raw)
    assert (
        auto_diff(base_model=base, raw_model=raw, inputs=both(), single_step=True, diff_phase="forward", **BOUNDS)
        is False
    )
    compared = next(line for line in log() if line.startswith("forward stage compared"))
    assert compared.endswith(", 1 differ)")


@pytest.mark.parametrize("frameworks", PAIRS, ids="-".join)
@pytest.mark.parametrize("phase", ["forward", "backward", "both"])
def test_training_state_is_left_alone(frameworks: tuple[str, str], phase: str) -> None:
    base, raw = twins(*frameworks)
    before = [{name: np.array(read(tensor)) for name, tensor in model.state_dict().items()} for model in (base, raw)]
    base.train()
    raw.train()
    assert (
        auto_diff(base_model=base, raw_model=raw, inputs=both(), single_step=True, diff_phase=phase, **BOUNDS) is True
    )
    for model, kept in zip((base, raw), before, strict=True):
        assert model.training
        for name, tensor in model.state_dict().items():
            assert np.array_equal(read(tensor), kept[name]), name
        assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("frameworks", PAIRS, ids="-".join)
def test_several_steps_with_optimizers(frameworks: tuple[str, str], log: Log) -> None:
    base, raw = twins(*frameworks)
    optimizers = (adam(base), adam(raw))
    bounds = {"atol": 1e-6, "rtol": 1e-4, "auto_init": False}
    assert (
        auto_diff(
            base_model=base, raw_model=raw, inputs=both(), single_step=True, steps=3, optimizers=optimizers, **bounds
        )
        is True
    )
    assert sum("Train Step" in line for line in log()) == 3


class Noisy(torch.nn.Module):
    """May draw, and does not look as if it did."""

    def __init__(self, draws: bool) -> None:
        super().__init__()
        self.draws = draws
        self.linear = torch.nn.Linear(6, 6)

    def forward(self, x: Any) -> Any:
        return self.linear(x) + (torch.empty(x.shape).uniform_() if self.draws else 0.5)


@pytest.mark.parametrize(("draws", "runs"), [(False, (1, 1)), (True, (4, 3))], ids=["quiet", "drawing"])
def test_a_model_runs_once_unless_it_draws(draws: bool, runs: tuple[int, int]) -> None:
    """One that turns out to draw runs by itself first, so that raw can be given what base draws."""
    base, raw = Noisy(draws), Noisy(draws)
    calls: list[str] = []
    base.register_forward_hook(lambda *_: calls.append("base"))
    raw.register_forward_hook(lambda *_: calls.append("raw"))
    assert auto_diff(base, raw, both(), single_step=True, atol=1e-6, rtol=1e-5) is True
    assert (calls.count("base"), calls.count("raw")) == runs


def own_code() -> tuple[dict[str, Any], dict[str, Any]]:
    return {"x": own_batch()}, {"x": own_batch()}


@pytest.mark.parametrize("frameworks", PAIRS, ids="-".join)
@pytest.mark.parametrize("phase", ["forward", "both"])
def test_ops_are_compared(frameworks: tuple[str, str], phase: str, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    for switch in ("OFF", "ON", "ALL"):
        monkeypatch.setenv("PADIFF_API_CHECK", switch)
        base, raw = (own_model(framework) for framework in frameworks)
        bounds: dict[str, Any] = {"atol": 1e-5, "rtol": 1e-4, "diff_phase": phase}
        assert auto_diff(base_model=base, raw_model=raw, inputs=own_code(), single_step=True, **bounds) is True
        compared = [line for line in log() if "stage compared" in line]
        counts.append([int(line.partition("(")[2].split()[0]) for line in compared])
    assert len(counts[0]) == (1 if phase == "forward" else 2)
    assert all(none < own for none, own in zip(counts[0], counts[1], strict=True)), counts
    assert counts[1][0] < counts[2][0], counts


@pytest.mark.parametrize("frameworks", PAIRS, ids="-".join)
def test_an_op_is_named(frameworks: tuple[str, str], log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PADIFF_API_CHECK", "ON")
    base, raw = own_model(frameworks[0]), own_model(frameworks[1], "axis")
    bounds: dict[str, Any] = {"atol": 1e-5, "rtol": 1e-4}
    assert auto_diff(base_model=base, raw_model=raw, inputs=own_code(), single_step=True, **bounds) is False
    lines = log()
    assert any(line.strip() == f"weights = {frameworks[0]}.nn.functional.softmax(scores, -1)" for line in lines), lines
    assert any(line.strip() == f"weights = {frameworks[1]}.nn.functional.softmax(scores, -2)" for line in lines), lines


@pytest.mark.parametrize("frameworks", PAIRS, ids="-".join)
@pytest.mark.parametrize("phase", ["forward", "both"])
def test_momentum_shows_in_the_buffers(frameworks: tuple[str, str], phase: str, log: Log) -> None:
    base, raw = twins(*frameworks)
    base.train()
    raw.train()
    options = {"inputs": both(), "single_step": True, "diff_phase": phase, **BOUNDS}
    assert auto_diff(base_model=base, raw_model=raw, **options) is True
    agreeing = next(line for line in log() if line.startswith("buffers compared"))
    assert "differ" not in agreeing
    setattr(raw.bn, *(("momentum", 0.3) if frameworks[1] == "torch" else ("_momentum", 0.7)))
    assert auto_diff(base_model=base, raw_model=raw, **options) is False
    lines = log()
    assert any(line.startswith("buffers compared") and line.endswith(", 2 differ)") for line in lines), lines
    assert any(line.strip().startswith(f"{type(raw).__name__}(raw_model).bn") for line in lines), lines
    assert any("momentum" in line for line in lines), lines
    assert not any("differ" in line for line in lines if line.startswith(("forward stage", "backward stage", "grads")))


@pytest.mark.parametrize("frameworks", PAIRS, ids="-".join)
def test_buffers_of_a_layer_do_not_suffer_from_the_layers_before_it(frameworks: tuple[str, str], log: Log) -> None:
    base, raw = twins(*frameworks)
    base.train()
    raw.train()
    PLANTS[0].do(raw)
    options = {"inputs": both(), "single_step": True, "diff_phase": "forward", **BOUNDS}
    assert auto_diff(base_model=base, raw_model=raw, **options) is False
    compared = next(line for line in log() if line.startswith("buffers compared"))
    assert "differ" not in compared


@pytest.mark.parametrize("frameworks", PAIRS, ids="-".join)
def test_buffers_over_several_steps(frameworks: tuple[str, str], log: Log) -> None:
    base, raw = twins(*frameworks)
    base.train()
    raw.train()
    optimizers = (adam(base), adam(raw))
    options = {"inputs": both(), "single_step": True, "steps": 3, "optimizers": optimizers}
    assert auto_diff(base_model=base, raw_model=raw, atol=1e-5, rtol=1e-4, auto_init=False, **options) is True
    compared = [line for line in log() if line.startswith("buffers compared")]
    assert len(compared) == 3 and not any("differ" in line for line in compared)
