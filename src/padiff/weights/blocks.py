"""Whether two units lie in blocks that belong together, by what else those hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from padiff.weights.fitting import UnitPair, fits
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
        there, here = self.of(0, base.path), self.of(1, raw.path)
        return there is not None and here is not None and _inside(raw.path, there) and _inside(base.path, here)

    def of(self, side: int, path: str) -> str | None:
        """Where the partners lie of what lies around a unit of base, 0, or of raw; None where nothing is known."""
        found = self._found[side]
        if path not in found:
            around = path
            while around and around not in self._of[side]:
                around = around.rpartition(".")[0]
            found[path] = self._of[side].get(around)
        return found[path]


def norms_at_home(pairs: Sequence[UnitPair], base: Sequence[Unit]) -> list[UnitPair]:
    """The pairs, norms exchanged for the one that lies where the rest of their module comes from, where that went into
    another module: who uses two modules in the wrong order uses their norms in the wrong order, too. The norms between
    which that was done are left over. Nothing where all norms are at home."""
    homes = Homes([pair for pair in pairs if not _is_norm(pair)])
    partner = {id(unit): pair for pair in pairs for unit in pair.base}
    norms = [unit for unit in base if len(unit.main.shape) == 1]
    moved: dict[int, Unit] = {}
    """Pair, by identity, to what fills it instead."""
    blocks: set[str] = set()
    """Places of raw around norms that were exchanged."""
    for pair in pairs:
        here = homes.of(1, pair.raw[0].path) if _is_norm(pair) else None
        if not here or _inside(pair.base[0].path, here):
            continue
        raw = pair.raw[0]
        found = [one for one in norms if _inside(one.path, here) and one.layer == raw.layer and fits(one, raw)]
        if len(found) != 1 or not homes.shared(found[0], raw):
            continue
        there, held = homes.of(0, found[0].path), partner.get(id(found[0]))
        if there and (held is None or not any(_inside(unit.path, there) for unit in held.raw)):
            moved[id(pair)] = found[0]
            blocks.add(_around({raw.path, *(unit.path for unit in (() if held is None else held.raw))}))
    taken = [*moved.values()]

    def loosened(pair: UnitPair) -> bool:
        beside = any(_inside(pair.raw[0].path, block) for block in blocks)
        return _is_norm(pair) and beside and any(fits(one, pair.raw[0]) for one in taken)

    kept = [pair for pair in pairs if id(pair) in moved or not loosened(pair)]
    at_home = "shape, with the rest of its module"
    exchanged = [replace(one, base=(moved[id(one)],), evidence=at_home) if id(one) in moved else one for one in kept]
    return exchanged if moved else []


def _is_norm(pair: UnitPair) -> bool:
    """Whether order of use, or nothing but its shape, made a pair of two norms."""
    told = pair.evidence.startswith(("names", "values"))
    return not told and len(pair.base) == len(pair.raw) == 1 and len(pair.base[0].main.shape) == 1


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
