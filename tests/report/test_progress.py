"""A bar for those who wait."""

from __future__ import annotations

import io
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import padiff
from padiff.engine.filling.matching import Matching, match
from padiff.engine.inputs import Inputs, fresh_arguments
from padiff.engine.job import Job
from padiff.engine.pipeline import run_job
from padiff.frameworks import adapter_of_model, module_tree
from padiff.report.progress import stages


def job_of(base: torch.nn.Module, raw: torch.nn.Module, x: Any) -> tuple[Job, Matching]:
    lives = [module_tree(adapter_of_model(one, "model"), one) for one in (base, raw)]
    job = Job(lives[0], lives[1], fresh_arguments(lives[0], lives[1], Inputs(x), Inputs(x)))
    return job, match(job, run=True)


def console(terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=60, color_system=None)


def printed(target: Console) -> str:
    assert isinstance(target.file, io.StringIO)
    return target.file.getvalue()


def test_a_long_run_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("padiff.report.progress.DELAY", 0.0)
    target = console(terminal=True)
    before = threading.active_count()
    with stages(None, target) as shown:
        shown.now("matching weights")
        shown.done(1, 4)
        end = time.monotonic() + 5
        while "matching weights" not in printed(target) and time.monotonic() < end:
            time.sleep(0.01)
    assert "matching weights" in printed(target)
    while threading.active_count() > before and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() == before


def test_calls_are_counted_without_being_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("padiff.report.progress.DELAY", 0.0)
    target = console(terminal=True)
    end = time.monotonic() + 5
    with stages(True, target) as shown:
        shown.now("comparing")
        shown.done(1, 4)
        shown.follow(lambda: ("raw", 1200, 5000))
        while "raw: call 1,200 of 5,000" not in printed(target) and time.monotonic() < end:
            time.sleep(0.01)
    assert "comparing, step 2 of 4, raw: call 1,200 of 5,000" in printed(target)


def test_a_run_says_how_far_it_has_come() -> None:
    seen: list[tuple[str, int, int | None]] = []

    class Looking(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(shown.seen())
            return x * 2

    def model() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(), Looking())

    with stages(False) as shown:
        shown.now("running")
        job, matching = job_of(model(), model(), np.ones((2, 3), "float32"))
        seen.clear()
        run_job(job, matching, copied=False, watch=shown.follow)
    assert seen[0] == ("running, base: call 2 of 4", 2, 4)
    assert ("running, raw: call 2 of 4", 2, 4) in seen
    assert shown.seen() == ("running", 0, None)


def test_a_short_run_is_not() -> None:
    target = console(terminal=True)
    with stages(True, target) as shown:
        shown.now("matching weights")
    assert "matching" not in printed(target)


@pytest.mark.parametrize("wanted", [None, False])
def test_where_nobody_looks_there_is_nothing(wanted: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("padiff.report.progress.DELAY", 0.0)
    target = console(terminal=wanted is False)
    with stages(wanted, target) as shown:
        shown.now("matching weights")
        time.sleep(0.05)
    assert printed(target) == ""


def test_compare_keeps_stdout_free(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("padiff.report.progress.DELAY", 0.0)
    linear = torch.nn.Linear(3, 3)

    class Slow(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = linear

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            time.sleep(0.1)
            return self.fc(x)  # type: ignore[no-any-return]

    result = padiff.compare(Slow(), Slow(), np.ones((2, 3), "float32"), progress=True)
    assert result.aligned
    assert capfd.readouterr().out == ""
    padiff.compare(Slow(), Slow(), np.ones((2, 3), "float32"), progress=False)
    assert capfd.readouterr() == ("", "")
