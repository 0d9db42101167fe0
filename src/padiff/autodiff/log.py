"""The ``[AutoDiff]`` log: every line prefixed; what is long goes to files under ``padiff_log/``."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

PREFIX = "[AutoDiff]"
FOLDER = "padiff_log"


def say(*lines: str) -> None:
    """Print lines, each with the prefix."""
    for text in lines:
        for line in text.split("\n"):
            sys.stdout.write(f"{PREFIX} {line}".rstrip() + "\n")
    sys.stdout.flush()


def write_file(name: str, lines: Iterable[str]) -> Path:
    """Write a log file under ``padiff_log/`` of the current directory, made when first needed; returns its path."""
    folder = Path.cwd() / FOLDER
    folder.mkdir(exist_ok=True)
    path = folder / re.sub(r"[^\w().\-]", "_", name)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
