"""Loops as trainers write them: schedulers, accumulated gradients, labels that are the inputs, masks of two dtypes."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import padiff


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.last = torch.nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        out = self.last(torch.tanh(self.norm(self.first(x))))
        return out if labels is None else (out, (out.sum() - labels.sum()).square())


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def batch(seed: int) -> torch.Tensor:
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(seed))


def train(model: Any, to: Path, *, accumulate: int = 2, lr: float = 1e-2, steps: int = 2, **options: Any) -> Path:
    """With a scheduler that is made inside the block, as trainers do."""
    optimizer = torch.optim.AdamW(model.parameters(), lr)
    with padiff.capture(model, to, optimizer=optimizer, overwrite=True, **options):
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        for step in range(steps):
            for part in range(accumulate):
                (model(batch(10 * step + part)).square().mean() / accumulate).backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    return to


def test_a_scheduler_made_inside_goes_on_outside(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    with padiff.capture(model, tmp_path / "run", optimizer=optimizer) as run:
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        for _ in range(2):
            model(batch(0)).sum().backward()
            optimizer.step()
            schedule.step()
    assert run.steps == [0, 1]
    before = model.first.weight.detach().clone()
    gone = weakref.ref(run)
    del run
    optimizer.step()  # a scheduler whose mark was taken off warns here, which is an error
    schedule.step()
    assert not torch.equal(before, model.first.weight)
    gc.collect()
    assert gone() is None


def test_accumulated_steps_are_aligned_and_calibrated(tmp_path: Path) -> None:
    one, other = train(net(), tmp_path / "a"), train(net(), tmp_path / "b")
    assert padiff.compare_dumps(one, other).aligned
    for step in padiff.load(one).steps:
        noise = step.noise["parameters"]
        assert set(noise) == {name for name, _ in net().named_parameters()}
        for path, gap in noise.items():
            gradient = step.parameter_gradients[path]
            assert gradient is not None
            # A bias before a norm has a gradient of rounding alone.
            assert path == "first.bias" or gap < 1e-4 * np.sqrt(np.mean(gradient.numpy() ** 2)), path
        assert step.noise["buffers"]["norm.running_var"] < 1e-5


def slower(model: Net) -> None:
    model.norm.momentum = 0.2


def half(model: Net) -> None:
    model.last.weight.register_hook(lambda gradient: 0.99 * gradient)


@pytest.mark.parametrize(
    ("plant", "place"),
    [(slower, ("buffer", "norm")), (half, ("gradient", "last"))],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_faults_in_accumulated_steps_are_named(
    plant: Callable[[Net], None], place: tuple[str, str], tmp_path: Path
) -> None:
    raw = net()
    plant(raw)
    result = padiff.compare_dumps(train(net(), tmp_path / "a"), train(raw, tmp_path / "b"))
    assert result.divergence is not None
    assert (result.divergence.phase, result.divergence.raw_path) == place
    assert result.divergence.step == 0


def test_a_learning_rate_shows_in_the_weights_of_accumulated_steps(tmp_path: Path) -> None:
    result = padiff.compare_dumps(train(net(), tmp_path / "a"), train(net(), tmp_path / "b", lr=2e-2))
    assert result.divergence is not None
    assert (result.divergence.phase, result.divergence.step) == ("weight", 0)
    assert result.divergence.causes[0].name == "lr"


def test_unequally_many_calls_in_a_step_are_told(tmp_path: Path) -> None:
    result = padiff.compare_dumps(train(net(), tmp_path / "a"), train(net(), tmp_path / "b", accumulate=3))
    assert not result.aligned
    assert any(
        note.startswith("step 0: base calls the model twice, raw calls the model 3 times") for note in result.notes
    )


def test_gradients_of_an_earlier_step_are_no_noise(tmp_path: Path) -> None:
    def gather(model: Any, to: Path) -> Path:
        model(batch(5)).square().mean().backward()
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        with padiff.capture(model, to, optimizer=optimizer):
            model(batch(6)).square().mean().backward()
            optimizer.step()
        return to

    raw = net()
    half(raw)
    result = padiff.compare_dumps(gather(net(), tmp_path / "a"), gather(raw, tmp_path / "b"))
    assert result.divergence is not None
    assert (result.divergence.phase, result.divergence.raw_path) == ("gradient", "last")


def test_one_tensor_under_two_names_runs_again(tmp_path: Path) -> None:
    model, x = net(), batch(1)
    with padiff.capture(model, tmp_path / "run"):
        model(x, labels=x)[1].backward()
    step = padiff.load(tmp_path / "run").step(0)
    assert step.extra.get("repeats") is not False
    assert set(step.noise["parameters"]) == {name for name, _ in model.named_parameters()}


class Masked(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> Any:
        return self.inner(x * mask.to(x.dtype)[:, None])


@pytest.mark.parametrize("kind", ["full", "stats"])
@pytest.mark.parametrize("flipped", [False, True])
def test_a_mask_may_be_of_another_dtype_but_not_another(kind: Any, flipped: bool, tmp_path: Path) -> None:
    model = Masked()
    mask = torch.tensor([1, 0, 1, 1, 0])
    other = mask.bool().clone()
    other[0] ^= flipped
    for to, given in (("a", mask), ("b", other)):
        with padiff.capture(model, tmp_path / to, kind=kind):
            model(batch(1), given)
    result = padiff.compare_dumps(tmp_path / "a", tmp_path / "b")
    assert result.aligned is not flipped
    if flipped:
        assert result.divergence is not None
        assert (result.divergence.raw_path, result.divergence.comparison.role) == ("", "input")


class Clipping(torch.optim.AdamW):
    """Clips when it steps, as paddle's optimizers do."""

    def step(self, closure: Any = None) -> Any:
        torch.nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 0.01)
        return super().step(closure)


def clipped(model: Any, to: Path, optimizer: Any, *, before: bool, **options: Any) -> Path:
    with padiff.capture(model, to, optimizer=optimizer, overwrite=True, **options):
        for step in range(2):
            model(batch(step)).square().mean().backward()
            if before:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()
            optimizer.zero_grad()
    return to


@pytest.mark.parametrize("sync", [False, True], ids=["free", "synchronised"])
def test_clipping_before_or_inside_the_step(sync: bool, tmp_path: Path) -> None:
    model = net()
    base = clipped(model, tmp_path / "a", torch.optim.AdamW(model.parameters(), 1e-2), before=True)

    def raw(kind: Any = Clipping, **options: Any) -> Any:
        port = net()
        optimizer = kind(port.parameters(), **{"lr": 1e-2, **options})
        dump = clipped(port, tmp_path / "b", optimizer, before=False, base=base, sync=sync)
        return padiff.compare_dumps(base, dump)

    result = raw()
    assert result.aligned, str(result)
    assert any("differ by one factor" in note for note in result.notes)
    other = raw(lr=2e-2).divergence
    assert (other.phase, other.step, other.causes[0].name) == ("weight", 0, "lr")
    other = raw(betas=(0.9, 0.99)).divergence
    assert (other.phase, other.step, other.causes[0].name) == ("weight", 0, "betas")
    never = raw(torch.optim.AdamW).divergence
    assert (never.phase, never.step) == ("gradient", 0)


def test_every_call_of_a_step_is_given_what_bases_was(tmp_path: Path) -> None:
    base = train(net(), tmp_path / "a")
    raw, seed = net(), 100
    optimizer = torch.optim.AdamW(raw.parameters(), 1e-2)
    with padiff.capture(raw, tmp_path / "b", optimizer=optimizer, base=base):
        for step in range(2):
            for group in optimizer.param_groups:
                group["lr"] = 1e-2 / (1 + step)
            for _ in range(2):
                seed += 1
                (raw(batch(seed)).square().mean() / 2).backward()
            optimizer.step()
            optimizer.zero_grad()
    result = padiff.compare_dumps(base, tmp_path / "b")
    assert result.aligned, str(result)
