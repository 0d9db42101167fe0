"""Compiled models that somebody else runs: what is compiled is recorded as a whole, never half, and it is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff
from tests.twins import batch, net, read, sgd, write

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    torch._dynamo.reset()


def in_place(model: Any) -> Any:
    model.compile(backend="aot_eager")
    return model


def traced(model: Any) -> Any:
    """Tracing runs the model, which moves its statistics: they are put back."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    script = torch.jit.trace(model, torch.from_numpy(batch()), check_trace=False)
    script.load_state_dict(before)
    return script


WAYS: dict[str, tuple[str, Callable[[Any], Any], int]] = {
    "torch.compile": ("torch", lambda model: torch.compile(model, backend="aot_eager"), 1),
    "Module.compile": ("torch", in_place, 1),
    "torch.export": ("torch", lambda model: torch.export.export(model, (torch.from_numpy(batch()),)).module(), 25),
    "torch.jit": ("torch", traced, 1),
    "paddle.jit.to_static": ("paddle", lambda model: paddle.jit.to_static(model, full_graph=False), 1),
}
"""By what it is compiled, how, and how many calls are seen."""


def built(framework: str, *, residual: bool = True) -> Any:
    model = net(framework)
    model.train()
    model.blocks[1].residual = residual
    if framework == "paddle":  # the numbers of the other one
        for (name, tensor), other in zip(model.named_parameters(), net("torch").parameters(), strict=False):
            if "bn._" not in name:
                write(tensor, np.transpose(read(other)))
        for own, theirs in (("weight", "weight"), ("bias", "bias"), ("_mean", "running_mean")):
            write(getattr(model.bn, own), read(getattr(net("torch").bn, theirs)))
        write(model.bn._variance, read(net("torch").bn.running_var))
        for own, theirs in zip(model.head.parameters(), net("torch").head.parameters(), strict=True):
            write(own, np.transpose(read(theirs)))
    return model


def train(model: Any, framework: str) -> None:
    optimizer, x = sgd(model), batch()
    for _ in range(2):
        out = model(torch.from_numpy(x) if framework == "torch" else paddle.to_tensor(x))
        (out**2).mean().backward()
        optimizer.step()
        optimizer.zero_grad() if framework == "torch" else optimizer.clear_grad()


@pytest.mark.parametrize("way", WAYS)
def test_captured(way: str, tmp_path: Path) -> None:
    framework, compiled, calls = WAYS[way]
    base = built("torch")
    with padiff.capture(base, to=tmp_path / "base"):
        train(base, "torch")
    for residual in (True, False):
        model = compiled(built(framework, residual=residual))
        if way != "torch.export":
            model.training = True
        with padiff.capture(model, to=tmp_path / f"{residual}"):
            train(model, framework)
        dump = padiff.load(tmp_path / f"{residual}")
        assert [len(step.trace().calls) for step in dump.steps] == [calls, calls]
        result = padiff.compare_dumps(tmp_path / "base", tmp_path / f"{residual}")
        assert result.aligned is residual, str(result)
        assert any(f"raw is compiled ({way}: the whole model)" in note for note in result.notes)
        assert {c.phase for c in result.comparisons} >= {"forward", "gradient", "weight"}
        if not residual:
            assert result.divergence is not None
            place = "" if calls == 1 else "blocks.1"
            assert (result.divergence.raw_path, result.divergence.phase) == (place, "forward")


@pytest.mark.parametrize("way", WAYS)
def test_proxies(way: str, tmp_path: Path) -> None:
    framework, compiled, _ = WAYS[way]
    proxies = padiff.create_model(built("torch"), "base"), padiff.create_model(compiled(built(framework)), "raw")
    for proxy in proxies:
        x = torch.from_numpy(batch()) if proxy.framework == "torch" else paddle.to_tensor(batch())
        proxy.backward((proxy(x) ** 2).mean())
        proxy.try_dump(str(tmp_path / proxy.name))
    assert padiff.check_grads(str(tmp_path / "base"), str(tmp_path / "raw"), {"atol": 1e-4, "rtol": 1e-4})
