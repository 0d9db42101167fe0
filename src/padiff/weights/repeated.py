"""A module that base calls again and again, and that raw has a copy of for every time: all are filled from the one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from padiff.records import Usage
from padiff.weights.fitting import UnitPair, signature
from padiff.weights.units import Unit


def repeated(pairs: Sequence[UnitPair], raw_left: Sequence[Unit], base_use: Usage) -> tuple[list[UnitPair], list[Unit]]:
    """Pairs for units of raw that are left over, like one that is filled but for a number; and what stays left."""
    left: dict[str, dict[str, Unit]] = defaultdict(dict)
    for unit in raw_left:
        for pattern, number in _stars(unit.path):
            left[pattern][number] = unit
    found: list[UnitPair] = []
    taken: set[int] = set()
    for pair in pairs:
        times = min(base_use.times.get(unit.node.index, 0) for unit in pair.base)
        for place, (pattern, _) in enumerate(_stars(pair.raw[0].path) if times > 1 and not pair.stacked else ()):
            copies = left.get(pattern, {})
            if len(copies) + 1 != times or any(id(unit) in taken for unit in copies.values()):
                continue
            others = [[left.get(_stars(unit.path)[place][0], {}).get(n) for unit in pair.raw] for n in copies]
            if all(
                one and signature(one) == signature(two)
                for row in others
                for one, two in zip(row, pair.raw, strict=True)
            ):
                evidence = f"base calls {pair.base[0].node.path} {times} times, raw has a copy for each"
                for row in others:
                    units = tuple(unit for unit in row if unit is not None)
                    taken.update(id(unit) for unit in units)
                    found.append(replace(pair, raw=units, evidence=evidence, confidence=min(pair.confidence, 0.95)))
    return found, [unit for unit in raw_left if id(unit) not in taken]


def _stars(path: str) -> list[tuple[str, str]]:
    """The path with one of its numbers left out, and that number."""
    parts = path.split(".")
    return [
        (".".join((*parts[:place], "*", *parts[place + 1 :])), part)
        for place, part in enumerate(parts)
        if part.isdigit()
    ]
