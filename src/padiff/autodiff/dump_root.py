"""Where dumps go by default: ``padiff_dump/`` in the current directory, or where the user says."""

from __future__ import annotations

import os
from pathlib import Path

from padiff.errors import ArgumentError

FOLDER = "padiff_dump"

_chosen: list[str] = []
"""The documented call sets it for the whole process; there is nothing to hand it to."""


def set_dump_root_path(path: str | os.PathLike[str] | None) -> None:
    """Have models that ``create_model`` makes from now on dump below this folder; None goes back to the default.

    The folder is made when something is written to it.
    """
    if path is not None and (not isinstance(path, (str, os.PathLike)) or not os.fspath(path)):
        raise ArgumentError(f"path is {path!r}, expected the path of a folder, or None for the default")
    _chosen[:] = [] if path is None else [str(Path.cwd() / os.fspath(path))]


def get_dump_root_path() -> str:
    """The folder that dumps go below: the last one set, else ``padiff_dump`` in the current directory."""
    return _chosen[0] if _chosen else str(Path.cwd() / FOLDER)
