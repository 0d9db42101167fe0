"""Small drawings in text: a folded tree, a line of error along depth, and the signs for both kinds of terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from padiff.report.record import Module

NEAR = 1
"""How many neighbours of the marked branch are shown on each side."""
INSIDE = 4
"""How many children of the place itself."""

WIDEST = 3
"""How many columns one value may take where there is room."""


@dataclass(frozen=True)
class Signs:
    """What is drawn with: meaning is never by colour alone."""

    verdict: Mapping[str, str]
    outcome: Mapping[str, str]
    none: str
    """No error at all."""
    levels: str
    """From the least to the most."""
    no_number: str
    here: str
    left: str
    bar: str
    branch: str
    last: str
    through: str
    more: str
    up: str


UNICODE = Signs(
    verdict={"aligned": "✓", "diverged": "✗", "unsure": "?"},
    outcome={"equal": "=", "rounding": "✓", "precision": "✓", "different": "✗"},
    none="·",
    levels="▁▂▃▄▅▆▇█",
    no_number="–",
    here="❯",
    left="◀",
    bar="│",
    branch="├ ",
    last="└ ",
    through="│ ",
    more="⋮",
    up="▲",
)
ASCII = Signs(
    verdict={"aligned": "OK", "diverged": "!!", "unsure": "?"},
    outcome={"equal": "=", "rounding": "ok", "precision": "ok", "different": "!!"},
    none=" ",
    levels="_.:-=+*#",
    no_number="-",
    here=">",
    left="<--",
    bar="|",
    branch="|-",
    last="`-",
    through="| ",
    more=":",
    up="^",
)


# ------------------------------------------------------------------ a tree, folded to what matters


def fold(modules: Sequence[Module], path: str, signs: Signs) -> Iterator[tuple[str, bool]]:
    """Lines of the tree around a path, and which of them is the place; what is far from it is counted only."""
    if not modules:
        return
    children: dict[int, list[int]] = {}
    for index, module in enumerate(modules):
        children.setdefault(module.parent, []).append(index)
    places = {module.path: index for index, module in enumerate(modules)}
    target = places.get(path, 0)
    chain = [target]
    while modules[chain[-1]].parent >= 0:
        chain.append(modules[chain[-1]].parent)
    yield _label(modules[0]), target == 0
    yield from _below(modules, children, 0, set(chain), target, "", signs)


def _label(module: Module) -> str:
    name = module.path.rpartition(".")[2]
    return f"{name}  {module.kind}" if name else module.kind


def _below(
    modules: Sequence[Module],
    children: Mapping[int, list[int]],
    index: int,
    chain: set[int],
    target: int,
    before: str,
    signs: Signs,
) -> Iterator[tuple[str, bool]]:
    inside = children.get(index, [])
    at = next((place for place, child in enumerate(inside) if child in chain), None)
    first, stop = (max(0, at - NEAR), at + NEAR + 1) if at is not None else (0, INSIDE)
    if at is not None and first == 1:
        first = 0  # one that is left out takes as much room as one that is shown
    if stop == len(inside) - 1:
        stop = len(inside)
    if first:
        yield f"{before}{signs.more} {first} before", False
    for place, child in enumerate(inside[first:stop], first):
        ends = place == len(inside) - 1
        yield f"{before}{signs.last if ends else signs.branch}{_label(modules[child])}", child == target
        if child in chain:
            deeper = before + ("  " if ends else signs.through)
            yield from _below(modules, children, child, chain, target, deeper, signs)
    if stop < len(inside):
        yield f"{before}{signs.more} {len(inside) - stop} {'after' if at is not None else 'more'}", False


# ------------------------------------------------------------------ a line of error


@dataclass(frozen=True)
class Sparkline:
    """One line of levels, the range it spans, and where the mark goes."""

    line: str
    low: str
    high: str
    none: bool = False
    """Whether some have no error at all."""
    marker: str = ""
    at: int = field(default=-1)

    def under(self, text: str, width: int) -> str:
        """The mark with a text, below the line."""
        label = text if len(text) + 2 <= width else text[: max(0, width - 5)] + "..."
        if self.at + 2 + len(label) <= width:
            return " " * self.at + f"{self.marker} {label}"
        return " " * max(0, self.at - len(label) - 1) + f"{label} {self.marker}"


def sparkline(values: Sequence[float | None], width: int, signs: Signs, mark: int = -1) -> Sparkline | None:
    """The largest value of each stretch on a logarithmic scale; None where there is nothing above zero."""
    known = [math.log10(value) for value in values if value is not None and 0 < value < math.inf]
    odd = any(value is not None and not math.isfinite(value) for value in values)
    if not known and not odd:
        return None
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    columns, wide = min(width, len(values)), min(WIDEST, max(1, width // len(values)))
    line = ""
    for column in range(columns):
        stretch = values[column * len(values) // columns : (column + 1) * len(values) // columns]
        line += wide * _level([value for value in stretch if value is not None], low, high, signs)
    at = -1 if mark < 0 else wide * min(columns - 1, mark * columns // len(values))
    top = "no number" if odd else f"{10**high:.1e}"
    none = any(value == 0 for value in values)
    return Sparkline(line, f"{10**low:.1e}" if known else "0", top, none, signs.up if mark >= 0 else "", at)


def _level(values: Sequence[float], low: float, high: float, signs: Signs) -> str:
    if any(not math.isfinite(value) for value in values):
        return "!"
    if not values:
        return " "
    peak = max(values)
    if peak <= 0:
        return signs.none
    share = (math.log10(peak) - low) / (high - low) if high > low else 0.5
    return signs.levels[min(len(signs.levels) - 1, int(share * len(signs.levels)))]
