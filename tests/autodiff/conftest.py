"""Reading the log as a user does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from padiff import set_dump_root_path

Log = Callable[[], list[str]]


@pytest.fixture
def log(capsys: pytest.CaptureFixture[str]) -> Log:
    """Gives the lines printed since it was last asked, without their prefix, which every one of them must have."""

    def read() -> list[str]:
        lines = capsys.readouterr().out.splitlines()
        assert lines
        for line in lines:
            assert line.split(" ")[0] == "[AutoDiff]", line
        return [line[len("[AutoDiff] ") :] for line in lines]

    return read


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of one's own to be in, and the dump root in it."""
    monkeypatch.chdir(tmp_path)
    set_dump_root_path(tmp_path / "dumps")
    yield tmp_path / "dumps"
    set_dump_root_path(None)
