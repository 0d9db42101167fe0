"""What optimizers remember is compared: it tells of a beta before weights do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import paddle
import pytest
import torch

import padiff
from padiff.engine.explaining.moments import few_of
from tests.twins import PAIRS, batch, net

Make = Callable[[Any], Any]


def adam(model: Any, b1: float = 0.9, b2: float = 0.999, decay: float = 0.0, apart: bool = True) -> Any:
    if isinstance(model, torch.nn.Module):
        kind = torch.optim.AdamW if apart else torch.optim.Adam
        return kind(model.parameters(), lr=1e-3, betas=(b1, b2), eps=1e-3, weight_decay=decay)
    other = paddle.optimizer.AdamW if apart else paddle.optimizer.Adam
    return other(1e-3, b1, b2, epsilon=1e-3, parameters=model.parameters(), weight_decay=decay)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "beta1": ({"b1": 0.8}, "moment1"),
    "beta1, hardly": ({"b1": 0.91}, "moment1"),
    "beta2": ({"b2": 0.99}, "moment2"),
    "beta2, hardly": ({"b2": 0.9985}, "moment2"),
}


@pytest.mark.parametrize("frameworks", PAIRS, ids="-".join)
@pytest.mark.parametrize("what", WRONG)
def test_betas_show_in_the_first_step(frameworks: tuple[str, str], what: str) -> None:
    changed, moment = WRONG[what]
    base, raw = (net(framework) for framework in frameworks)
    found = padiff.compare(base, raw, batch(), optimizers=(adam(base), adam(raw, **changed)), steps=3).divergence
    assert found is not None
    assert (found.phase, found.role, found.step) == ("weight", "parameter", 0)
    assert found.comparison.name.endswith(f": {moment}")
    assert found.note.endswith("look at the optimizer")
    assert found.causes[0].name == "betas"
    assert what.partition(",")[0] in found.causes[0].evidence


@pytest.mark.parametrize("frameworks", PAIRS, ids="-".join)
@pytest.mark.parametrize("changed", [{}, {"b1": 0.8, "b2": 0.99}, {"decay": 0.1}, {"decay": 0.1, "apart": False}])
def test_moments_agree(frameworks: tuple[str, str], changed: dict[str, Any]) -> None:
    base, raw = (net(framework) for framework in frameworks)
    optimizers = adam(base, **changed), adam(raw, **changed)
    result = padiff.compare(base, raw, batch(), optimizers=optimizers, steps=4)
    assert result.aligned, str(result.divergence)
    names = {one.name.partition(": ")[2] for step in result.steps for one in step.comparisons if one.phase == "weight"}
    assert names == {"", "moment1", "moment2"}


@pytest.mark.parametrize("frameworks", PAIRS, ids="-".join)
def test_velocities_agree(frameworks: tuple[str, str]) -> None:
    base, raw = (net(framework) for framework in frameworks)

    def made(model: Any) -> Any:
        if isinstance(model, torch.nn.Module):
            return torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, weight_decay=0.1)
        return paddle.optimizer.Momentum(1e-2, 0.9, parameters=model.parameters(), weight_decay=0.1)

    result = padiff.compare(base, raw, batch(), optimizers=(made(base), made(raw)), steps=3)
    assert result.aligned, str(result.divergence)
    assert any(one.name.endswith(": velocity") for one in result.steps[2].comparisons)


def captured(model: Any, optimizer: Any, to: Path, steps: int = 3, **options: Any) -> None:
    x = torch.from_numpy(batch()) if isinstance(model, torch.nn.Module) else paddle.to_tensor(batch())
    with padiff.capture(model, to, optimizer=optimizer, **options):
        for _ in range(steps):
            model(x).square().mean().backward()
            optimizer.step()
            for parameter in model.parameters():
                parameter.grad = None


@pytest.mark.parametrize("sync", [False, True], ids=["free", "synchronised"])
@pytest.mark.parametrize("frameworks", [("torch", "paddle"), ("paddle", "torch")], ids="-".join)
@pytest.mark.parametrize("what", WRONG)
def test_betas_show_in_dumps(frameworks: tuple[str, str], what: str, sync: bool, tmp_path: Path) -> None:
    changed, moment = WRONG[what]
    base, raw = (net(framework) for framework in frameworks)
    captured(base, adam(base), tmp_path / "a")
    captured(raw, adam(raw, **changed), tmp_path / "b", base=tmp_path / "a", sync=sync)
    found = padiff.compare_dumps(tmp_path / "a", tmp_path / "b").divergence
    assert found is not None
    assert (found.phase, found.role, found.step) == ("weight", "parameter", 0)
    assert found.comparison.name.endswith(f": {moment}")
    assert found.note.endswith("look at the optimizer")
    assert found.causes[0].name == "betas"
    assert what.partition(",")[0] in found.causes[0].evidence


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("frameworks", PAIRS, ids="-".join)
def test_moments_in_dumps_agree(frameworks: tuple[str, str], every: int, tmp_path: Path) -> None:
    base, raw = (net(framework) for framework in frameworks)
    captured(base, adam(base), tmp_path / "a", steps=7, every=every)
    captured(raw, adam(raw), tmp_path / "b", steps=7, base=tmp_path / "a")
    result = padiff.compare_dumps(tmp_path / "a", tmp_path / "b")
    assert result.aligned, str(result.divergence)
    names = {one.name.partition(": ")[2] for step in result.steps for one in step.comparisons if one.phase == "weight"}
    assert names == {"", "moment1", "moment2"}
    held = padiff.load(tmp_path / "b").step(0)
    assert set(held.moments["moment1"]) == set(held.weights)


def test_dumps_of_large_models_hold_few_moments() -> None:
    sizes = {"norm": 1000, "bias": 4000, "first": 10**6, "second": 10**6}
    assert few_of(sizes, 2) == {"norm", "bias"}
    assert few_of({path: size // 100 for path, size in sizes.items()}, 2) == set(sizes)
    assert few_of({f"w{n}": 10**5 for n in range(100)}, 2) == {"w0", "w1"}


@pytest.mark.parametrize("large", [1e18, 1e20])
def test_squares_that_are_no_numbers_in_one_framework(large: float) -> None:
    base, raw = net("torch"), net("paddle")
    optimizers = adam(base), adam(raw)
    result = padiff.compare(base, raw, batch(), optimizers=optimizers, steps=2, loss=lambda out: out.sum() * large)
    assert result.aligned, str(result.divergence)
