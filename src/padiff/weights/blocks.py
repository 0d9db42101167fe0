"""Repeated blocks pair alike: where one block's units are paired otherwise than its likes', it is brought in line.

A port that uses two equal layers in the wrong order in one block only must show, not have their weights exchanged.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

from padiff.weights.fitting import UnitPair, fits
from padiff.weights.units import Unit


def in_line(pairs: Sequence[UnitPair]) -> list[UnitPair]:
    """The pairs, with the odd block's units paired as most blocks pair theirs."""
    votes: dict[str, Counter[str]] = defaultdict(Counter)
    for pair in pairs:
        if _single(pair):
            votes[_star(pair.raw[0])][_star(pair.base[0])] += 1
    usual = {raw: found.most_common(1)[0][0] for raw, found in votes.items() if _clear(found)}
    odd = [pair for pair in pairs if _single(pair) and usual.get(_star(pair.raw[0])) not in (None, _star(pair.base[0]))]
    wanted = {(usual[_star(pair.raw[0])], pair.base[0].numbers): pair for pair in odd}
    changed: dict[int, UnitPair] = {}
    for pair in odd:
        for other in odd:
            source = other.base[0]
            key = (_star(source), source.numbers)
            if wanted.get(key) is pair and fits(source, pair.raw[0]):
                changed[id(pair)] = replace(pair, base=(source,), evidence="as in the other blocks", confidence=0.8)
    if len(changed) != len(odd) or len({id(pair.base[0]) for pair in changed.values()}) != len(odd):
        return list(pairs)
    return [changed.get(id(pair), pair) for pair in pairs]


def _single(pair: UnitPair) -> bool:
    return len(pair.base) == len(pair.raw) == 1 and bool(pair.raw[0].numbers)


def _clear(found: Counter[str]) -> bool:
    """Most blocks agree, and there are enough of them to speak of most."""
    return found.most_common(1)[0][1] * 2 > found.total() and found.total() >= 3


def _star(unit: Unit) -> str:
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", unit.label)
