"""Whether two units lie in blocks that belong together, by what else those hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from padiff.weights.fitting import UnitPair
from padiff.weights.units import Unit

AT_HOME = 2.0
"""What that counts beside names and numbers."""


class Homes:
    """The innermost place around a unit that holds units whose partners are known, and where those partners lie."""

    def __init__(self, known: Sequence[UnitPair]) -> None:
        self._of = _partners(known, 0), _partners(known, 1)
        self._found: tuple[dict[str, str | None], dict[str, str | None]] = ({}, {})

    def shared(self, base: Unit, raw: Unit) -> bool:
        """Whether each lies where the partners of what lies beside the other do."""
        there, here = self._home(0, base.path), self._home(1, raw.path)
        return there is not None and here is not None and _inside(raw.path, there) and _inside(base.path, here)

    def _home(self, side: int, path: str) -> str | None:
        found = self._found[side]
        if path not in found:
            around = path
            while around and around not in self._of[side]:
                around = around.rpartition(".")[0]
            found[path] = self._of[side].get(around)
        return found[path]


def _partners(known: Sequence[UnitPair], side: int) -> dict[str, str]:
    """Every place that holds units of one side to the place around all of their partners."""
    paths: dict[str, set[str]] = defaultdict(set)
    for pair in known:
        own, others = (pair.base, pair.raw) if side == 0 else (pair.raw, pair.base)
        for unit in own:
            around = unit.path.rpartition(".")[0]
            while around:
                paths[around].update(other.path for other in others)
                around = around.rpartition(".")[0]
    return {around: _around(found) for around, found in paths.items()}


def _around(paths: set[str]) -> str:
    steps = [path.split(".") for path in paths]
    first, last = min(steps), max(steps)
    shared = 0
    while shared < min(len(first), len(last)) - 1 and first[shared] == last[shared]:
        shared += 1
    return ".".join(first[:shared])


def _inside(path: str, place: str) -> bool:
    return not place or path.startswith(f"{place}.")
