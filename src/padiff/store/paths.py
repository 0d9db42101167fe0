"""What users give as the place of a dump."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from padiff.errors import ArgumentError


def folder_given(value: Any, name: str) -> Path:
    """The argument ``name`` as a path; raises ArgumentError for what names no folder."""
    given = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(given, str):
        raise ArgumentError(
            f"{name} is of type {type(value).__name__}, expected the path of a folder",
            f'{name}="run_a", or a pathlib.Path',
        )
    if not given or "\0" in given:
        raise ArgumentError(f"{name} is {given!r}, expected the path of a folder", f'{name}="run_a"')
    return Path(given)
