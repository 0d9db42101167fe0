"""The ``[AutoDiff]`` log: every line prefixed; what is long goes to files under ``padiff_log/``."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

PREFIX = "[AutoDiff]"
FOLDER = "padiff_log"
WIDTH = 120 - len(PREFIX) - 1


def say(*lines: str) -> None:
    """Print lines, each with the prefix."""
    for text in lines:
        for line in text.split("\n"):
            sys.stdout.write(f"{PREFIX} {line}".rstrip() + "\n")
    sys.stdout.flush()


def wrapped(text: str, indent: str = "", after: str | None = None) -> list[str]:
    """Text broken into lines that fit; lines after the first begin with ``after``."""
    rest = indent if after is None else after
    found: list[str] = []
    for line in text.split("\n"):
        found += textwrap.wrap(
            line,
            WIDTH,
            initial_indent=rest if found else indent,
            subsequent_indent=rest,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return found


def count(number: int, noun: str) -> str:
    """``1 tensor``, ``2 tensors``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def write_file(name: str, lines: Iterable[str]) -> Path:
    """Write a log file under ``padiff_log/`` of the current directory, made when first needed; returns its path."""
    folder = Path.cwd() / FOLDER
    folder.mkdir(exist_ok=True)
    path = folder / re.sub(r"[^\w().\-]", "_", name)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
