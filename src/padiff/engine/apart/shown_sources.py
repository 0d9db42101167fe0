"""The user's lines as dumps keep them, where those who print lines look for them."""

from __future__ import annotations

import linecache
from pathlib import Path

from padiff.store import Dump


def show_sources(*dumps: Dump) -> None:
    """Let Python's cache of source lines know the lines of files that are not here, or read otherwise by now."""
    for dump in dumps:
        for file, lines in dump.sources.items():
            if Path(file).exists() and all(linecache.getline(file, n).strip() == text for n, text in lines.items()):
                continue
            text = [f"{lines.get(number, '')}\n" for number in range(1, max(lines, default=0) + 1)]
            linecache.cache[file] = (sum(map(len, text)), None, text, file)
