"""A bar for those who wait."""

from __future__ import annotations

import io
import threading
import time

import numpy as np
import pytest
import torch
from rich.console import Console

import padiff
from padiff.report.progress import stages


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
