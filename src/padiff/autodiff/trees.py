"""A model's modules drawn as a tree, with the place marked."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

from padiff.records import ModuleTree

HERE = "    <---  *** HERE ***"
LONGEST_PRINTED = 40


def draw(tree: ModuleTree, marked: int = -1, skipped: Collection[int] = ()) -> list[str]:
    """One line per module in definition order."""
    routes = os.environ.get("PADIFF_PATH_LOG", "OFF").upper() == "ON"
    lines: list[str] = []

    def line(index: int, lead: str) -> str:
        node = tree.nodes[index]
        text = lead + node.kind
        if routes:
            text += f"  ({tree.name}{'.' + node.path if node.path else ''})"
        if index in skipped:
            text += " (skip)"
        return text + (HERE if index == marked else "")

    def visit(index: int, lead: str, below: str) -> None:
        lines.append(line(index, lead))
        children = tree.nodes[index].children
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


def route(tree: ModuleTree, role: str, path: str) -> str:
    """The address of a module or tensor as the log writes it: ``Net(base_model).encoder.0.weight``."""
    return f"{tree.name}({role}){'.' + path if path else ''}"


def titled(name: str, lines: Sequence[str]) -> list[str]:
    return [name, "=" * 40, *(f"    {text}" for text in lines)]
