"""A model's modules drawn as a tree, with the place marked."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import Protocol

HERE = "    <---  *** HERE ***"
LONGEST_PRINTED = 40


class Drawn(Protocol):
    """A module as a live tree or a report keeps it."""

    @property
    def path(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def parent(self) -> int: ...


def draw(name: str, modules: Sequence[Drawn], marked: int = -1, skipped: Collection[int] = ()) -> list[str]:
    """One line per module in definition order."""
    routes = os.environ.get("PADIFF_PATH_LOG", "OFF").upper() == "ON"
    lines: list[str] = []
    inside: dict[int, list[int]] = {}
    for index, module in enumerate(modules):
        inside.setdefault(module.parent, []).append(index)

    def line(index: int, lead: str) -> str:
        module = modules[index]
        text = lead + module.kind
        if routes:
            text += f"  ({name}{'.' + module.path if module.path else ''})"
        if index in skipped:
            text += " (skip)"
        return text + (HERE if index == marked else "")

    def visit(index: int, lead: str, below: str) -> None:
        lines.append(line(index, lead))
        children = inside.get(index, [])
        for place, child in enumerate(children):
            last = place == len(children) - 1
            visit(child, below + (" +--- " if last else " |--- "), below + ("      " if last else " |    "))

    visit(0, "", "")
    return lines


def around(lines: Sequence[str], most: int = LONGEST_PRINTED) -> list[str]:
    """The lines near the marked one when there are too many to print."""
    if len(lines) <= most:
        return list(lines)
    place = next((i for i, text in enumerate(lines) if text.endswith(HERE)), 0)
    start = max(0, min(place - most // 2, len(lines) - most))
    shown = list(lines[start : start + most])
    head = [f"... {start} lines before ..."] if start else []
    rest = len(lines) - start - most
    return head + shown + ([f"... {rest} lines after ..."] if rest else [])


def route(name: str, role: str, path: str) -> str:
    """The address of a module or tensor as the log writes it: ``Net(base_model).encoder.0.weight``."""
    return f"{name}({role}){'.' + path if path else ''}"


def titled(name: str, lines: Sequence[str]) -> list[str]:
    return [name, "=" * 40, *(f"    {text}" for text in lines)]
