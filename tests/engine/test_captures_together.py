"""Captures inside each other, in forked processes, and used twice: none sees what another runs for itself."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import padiff
from padiff.errors import ArgumentError

torch = pytest.importorskip("torch")
nn = torch.nn
X = torch.linspace(-2.0, 2.0, 24).reshape(4, 6)


def net() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))


def train(model: Any, steps: int = 3) -> None:
    for _ in range(steps):
        model(X).square().mean().backward()


def whole(path: Path) -> list[Any]:
    return [[call.path for call in step.calls] for step in padiff.load(path).steps]


@pytest.mark.parametrize("inside", ["", "1"], ids=["the same model", "a part of it"])
@pytest.mark.parametrize("turned", [False, True], ids=["", "turned"])
def test_two_blocks_inside_each_other(inside: str, turned: bool, tmp_path: Path) -> None:
    model = net()
    with padiff.capture(model, tmp_path / "plain"):
        train(model)
    model = net()
    parts = [(model, tmp_path / "outer"), (model.get_submodule(inside), tmp_path / "inner")]
    (one, first), (other, second) = reversed(parts) if turned else parts
    with padiff.capture(one, first), padiff.capture(other, second):
        train(model)
    result = padiff.compare_dumps(tmp_path / "plain", tmp_path / "outer", tolerance="exact")
    assert result.aligned, result
    assert whole(tmp_path / "outer") == whole(tmp_path / "plain") == [["0", "1", "2", "3", ""]] * 3
    assert len(whole(tmp_path / "inner")) == 3
    if not inside:
        assert padiff.compare_dumps(tmp_path / "plain", tmp_path / "inner", tolerance="exact").aligned


def test_a_block_is_had_once(tmp_path: Path) -> None:
    model = net()
    capture = padiff.capture(model, tmp_path / "run", overwrite=True)
    with capture:
        train(model, 1)
    with pytest.raises(ArgumentError, match="has had its block already"), capture:
        pass


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked there")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_leaves_the_block_quietly(tmp_path: Path) -> None:
    """It runs the model, and leaves the block as its parent will: nothing hangs, and the parent's dump is its own."""
    model = net()
    with padiff.capture(model, tmp_path / "run") as run:
        train(model, 1)
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            try:
                train(model, 1)
                run.__exit__(None, None, None)
            except BaseException:
                os._exit(1)
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        train(model, 1)
    assert whole(tmp_path / "run") == [["0", "1", "2", "3", ""]] * 2


def test_ranks_that_only_the_framework_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = net()
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with padiff.capture(model, tmp_path / "run", calibrate=False) as run:
        train(model, 1)
    assert run.path == tmp_path / "run" / "rank_1"
    assert padiff.load(run.path).facts.ranks == 2
