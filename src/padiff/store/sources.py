"""The user's lines that a trace points at, kept with the dump: the machine that reads it may not have them."""

from __future__ import annotations

import linecache
from collections.abc import Mapping, Sequence
from typing import Any

from padiff.records import Frame, SourceLine
from padiff.store import strict

_WIDEST = 200
"""Lines between two calls of one function that are kept as well."""


class SourceText:
    """Gathers lines: those of all frames and, within a function, those between them."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], tuple[int, int]] = {}
        self._lines: dict[str, dict[int, str]] = {}

    def see(self, frame: Frame) -> None:
        place = (frame.file, frame.function)
        first, last = self._seen.get(place, (frame.line, frame.line))
        first, last = min(first, frame.line), max(last, frame.line)
        if last - first > _WIDEST:
            first = last = frame.line
        elif self._seen.get(place) == (first, last):
            return
        self._seen[place] = first, last
        known = self._lines.setdefault(frame.file, {})
        for line in range(first, last + 1):
            if line not in known:
                known[line] = linecache.getline(frame.file, line).strip()

    def document(self) -> dict[str, dict[str, str]]:
        return {file: {str(n): lines[n] for n in sorted(lines) if lines[n]} for file, lines in self._lines.items()}


class KnownSources:
    """The lines of a dump, by file and number."""

    def __init__(self, lines: Mapping[str, Mapping[int, str]]) -> None:
        self._lines = lines

    def line(self, frame: Frame) -> SourceLine:
        text = self._lines.get(frame.file, {}).get(frame.line, "")
        return SourceLine(frame.file, frame.line, frame.function, text)

    def files(self) -> Mapping[str, Mapping[int, str]]:
        return self._lines

    def lines(self, stack: Sequence[Frame]) -> tuple[SourceLine, ...]:
        return tuple(self.line(frame) for frame in stack)


def decode_sources(value: Any) -> KnownSources:
    found: dict[str, dict[int, str]] = {}
    for file, lines in strict.table(value, "sources").items():
        found[file] = {}
        for line, text in strict.table(lines, "sources").items():
            found[file][strict.key_number(line, "a line")] = strict.text(text, "sources")
    return KnownSources(found)
