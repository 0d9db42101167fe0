"""Mixed precision in runs apart: scaled losses, autocast, updates that are skipped."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import padiff

torch = pytest.importorskip("torch")
nn = torch.nn


def net() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))


def train(
    to: Path,
    *,
    model: Any = None,
    scale: float = 1.0,
    autocast: bool = False,
    optimizer: bool = True,
    spoilt: int = -1,
    steps: int = 3,
    **options: Any,
) -> None:
    """A loop as people write it; in step ``spoilt`` the loss is infinite, and the scaler skips the update."""
    model = net() if model is None else model
    stepped = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=scale != 1.0)
    generator = torch.Generator().manual_seed(1)
    with padiff.capture(model, to, optimizer=stepped if optimizer else None, **options):
        for step in range(steps):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = model(torch.randn(4, 6, generator=generator)).float().square().mean()
            scaler.scale(loss * (math.inf if step == spoilt else 1.0)).backward()
            scaler.step(stepped)
            scaler.update()
            stepped.zero_grad()


@pytest.mark.parametrize("optimizer", [True, False], ids=["optimizer given", "found"])
@pytest.mark.parametrize("sync", [False, True], ids=["free", "sync"])
def test_a_scaled_loss_is_no_difference(sync: bool, optimizer: bool, tmp_path: Path) -> None:
    train(tmp_path / "a", optimizer=optimizer)
    train(tmp_path / "b", scale=1024.0, optimizer=optimizer, base=tmp_path / "a", sync=sync)
    result = padiff.compare_dumps(tmp_path / "a", tmp_path / "b")
    assert result.aligned, result
    assert [one.step for one in result.steps] == [0, 1, 2]
    assert any(one.phase == "backward" for one in result.comparisons) or sync


@pytest.mark.parametrize(("base", "raw"), [(False, True), (True, False)], ids=["raw", "base"])
@pytest.mark.parametrize("sync", [False, True], ids=["free", "sync"])
def test_autocast_on_one_side_is_a_matter_of_precision(base: bool, raw: bool, sync: bool, tmp_path: Path) -> None:
    train(tmp_path / "a", autocast=base)
    train(tmp_path / "b", autocast=raw, scale=256.0, base=tmp_path / "a", sync=sync)
    result = padiff.compare_dumps(tmp_path / "a", tmp_path / "b")
    assert result.aligned, result
    assert any("precision" in note for note in result.notes)


def test_a_fault_shows_above_that_precision(tmp_path: Path) -> None:
    train(tmp_path / "a")
    model = net()
    model[1].eps = 0.1
    train(tmp_path / "b", model=model, autocast=True)
    result = padiff.compare_dumps(tmp_path / "a", tmp_path / "b")
    assert result.divergence is not None and result.divergence.raw_path == "1"


def test_gradients_are_there_without_an_update(tmp_path: Path) -> None:
    """The block ends before the optimizer steps; the other run was given none."""
    for name, given in (("a", False), ("b", True)):
        model = net()
        stepped = torch.optim.SGD(model.parameters(), 0.1)
        with padiff.capture(model, tmp_path / name, optimizer=stepped if given else None):
            model(torch.ones(4, 6)).square().mean().backward()
    result = padiff.compare_dumps(tmp_path / "a", tmp_path / "b")
    assert result.aligned, result
    assert {one.name for one in result.comparisons if one.phase == "gradient"} == {"weight", "bias"}
    assert not result.notes


def test_an_update_that_one_side_skips_is_told(tmp_path: Path) -> None:
    train(tmp_path / "a", scale=1024.0)
    train(tmp_path / "b", scale=1024.0, spoilt=2)
    result = padiff.compare_dumps(tmp_path / "a", tmp_path / "b")
    assert result.divergence is not None and result.divergence.step == 2
    assert any("step 2: base's optimizer stepped and raw's did not" in note for note in result.notes)


def test_an_update_that_both_skip_is_no_difference(tmp_path: Path) -> None:
    for name in "ab":
        train(tmp_path / name, scale=1024.0, spoilt=2)
    result = padiff.compare_dumps(tmp_path / "a", tmp_path / "b")
    assert result.aligned, result


def test_clipping_that_one_side_forgets_is_told(tmp_path: Path) -> None:
    for name, clips in (("a", True), ("b", False)):
        model = net()
        stepped = torch.optim.SGD(model.parameters(), 0.1)
        with padiff.capture(model, tmp_path / name, optimizer=stepped):
            model(torch.linspace(-2.0, 2.0, 24).reshape(4, 6)).square().sum().backward()
            if clips:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            stepped.step()
    result = padiff.compare_dumps(tmp_path / "a", tmp_path / "b")
    assert result.divergence is not None and result.divergence.phase == "gradient"
    assert any("one side clips or scales them before its optimizer steps" in note for note in result.notes)
