"""The exit code is the verdict, whoever reads what is printed: a pipe that closes, no output at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import padiff

torch = pytest.importorskip("torch")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(padiff.__file__).parents[1])}


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dumps")
    for name, eps in (("a", 1e-5), ("b", 1e-5), ("c", 1e-1)):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4, eps))
        with padiff.capture(model, folder / name):
            model(torch.ones(2, 4)).square().mean().backward()
    return folder


def code(folder: Path, words: str) -> int:
    """Of the command, run by a shell that adds what becomes of its output."""
    return subprocess.run(
        ["sh", "-c", words.format(sys.executable)], cwd=folder, env=ENVIRONMENT, check=False
    ).returncode


@pytest.mark.skipif(sys.platform == "win32", reason="another shell")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("compare a b", 0),
        ("compare a c", 1),
        ("compare a c --json", 1),
        ("show a", 0),
        ("compare a nowhere", 2),
    ],
)
@pytest.mark.parametrize("closed", ["pipe", "both"])
def test_the_code_is_the_verdict(words: str, expected: int, closed: str, dumps: Path) -> None:
    if closed == "both":
        assert code(dumps, f"{{}} -m padiff {words} >&- 2>&-") == expected
        return
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "padiff", *words.split()]
    try:
        done = subprocess.run(
            command, cwd=dumps, env=ENVIRONMENT, stdout=writer, stderr=subprocess.DEVNULL, check=False
        )
    finally:
        os.close(writer)
    assert done.returncode == expected
