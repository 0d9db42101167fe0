"""Reading the log as a user does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

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
