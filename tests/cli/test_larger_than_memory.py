"""Dumps are compared by a process that may hold far less than they do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import padiff
from padiff.cli import main

torch = pytest.importorskip("torch")
resource = pytest.importorskip("resource")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the limit counts something else")

ALLOWED = 120 << 20
"""Of this the interpreter, numpy and padiff take 70 MiB. Mapped pages of files don't count: they can be dropped."""


class Long(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Seven tensors of 32 MiB."""

    def __init__(self, last: float = 1.0) -> None:
        super().__init__()
        self.steps = torch.nn.ModuleList([torch.nn.Hardtanh(-1.0, 1.0) for _ in range(2)])
        self.steps.append(torch.nn.Hardtanh(-1.0, last))

    def forward(self, x: Any) -> Any:
        for step in self.steps:
            x = step(x * 0.99)
        return x


def dump(model: Any, to: Path) -> Path:
    with torch.no_grad(), padiff.capture(model, to, calibrate=False):
        model(torch.linspace(-2, 2, 1 << 23).reshape(4096, 2048))
    return to


def limited(*words: Any) -> subprocess.CompletedProcess[str]:
    paths = {"PYTHONPATH": str(Path(padiff.__file__).parents[1]), "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "padiff", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **paths},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (ALLOWED, ALLOWED)),
    )


def test_dumps_larger_than_memory(tmp_path: Path) -> None:
    base = dump(Long(), tmp_path / "base")
    for last, code in ((1.0, 0), (0.5, 1)):
        raw = dump(Long(last), tmp_path / f"raw{last}")
        assert sum(file.stat().st_size for file in raw.rglob("*") if file.is_file()) > 1.5 * ALLOWED
        done = limited("compare", base, raw)
        assert done.returncode == code, done.stderr
        assert code == 0 or "steps.2" in done.stdout


@pytest.mark.parametrize("error", [MemoryError(), ZeroDivisionError("by zero")], ids=["memory", "mistake"])
def test_what_goes_wrong_is_no_verdict(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*words: Any, **options: Any) -> Any:
        raise error

    monkeypatch.setattr("padiff.cli.compare.compare_dumps", fail)
    assert main(["compare", "a", "b"]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.startswith("padiff: ") and "Traceback" not in told.err
    expected = "not enough memory" if isinstance(error, MemoryError) else "ZeroDivisionError: by zero"
    assert expected in told.err
