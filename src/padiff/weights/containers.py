"""Modules beside each other that some of what they hold tells apart: the rest goes along.

base  cls.conv [8, 8]  cls.pred [12, 8]   box.conv [8, 8]  box.pred [4, 8]
raw   reg.conv [8, 8]  reg.out  [4, 8]    cla.conv [8, 8]  cla.out  [12, 8]      the preds say: cls - cla, box - reg

Order of use fills reg.conv from cls.conv, where one author calls the heads the other way round.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from padiff.weights.fitting import UnitPair, fits

Around = tuple[str, str]
"""Paths of base and raw around some modules."""


@dataclass(frozen=True)
class _Seat:
    """One way to read a pair: something in a module of base, and in one of raw."""

    base: str
    raw: str
    """Names of the two modules."""
    pair: int


def moved_along(pairs: Sequence[UnitPair]) -> list[UnitPair]:
    """The pairs, those exchanged that order of use had put into another module than what shapes tell."""
    rows = _rows(pairs)
    told = _told(pairs, rows)
    found = list(pairs)
    for (around, _, _), seats in rows.items():
        partner = told.get(around)
        if partner is None or len(seats) < 2:
            continue
        held = {seat.base: seat for seat in seats}
        for seat in seats:
            wanted = next((name for name, raw in partner.items() if raw == seat.raw), None)
            source = None if wanted is None else held.get(wanted)
            if source is None or source is seat or seat.base not in partner:
                continue
            unit = pairs[source.pair].base
            if fits(unit[0], pairs[seat.pair].raw[0]) and _by_order(pairs[seat.pair], pairs[source.pair]):
                found[seat.pair] = replace(pairs[seat.pair], base=unit, evidence="shape, with the rest of its module")
    taken = [id(unit) for pair in found for unit in pair.base]
    return found if len(set(taken)) == len(taken) else list(pairs)


def _by_order(*pairs: UnitPair) -> bool:
    return all(pair.evidence.startswith("order") for pair in pairs)


def _rows(pairs: Sequence[UnitPair]) -> Mapping[tuple[Around, str, str], list[_Seat]]:
    """What lies at the same place of modules beside each other, on both sides."""
    found: dict[tuple[Around, str, str], list[_Seat]] = defaultdict(list)
    for number, pair in enumerate(pairs):
        if len(pair.base) != 1 or len(pair.raw) != 1 or pair.stacked:
            continue
        for base_around, base, base_inside in _cuts(pair.base[0].path):
            for raw_around, raw, raw_inside in _cuts(pair.raw[0].path):
                found[(base_around, raw_around), base_inside, raw_inside].append(_Seat(base, raw, number))
    return found


def _cuts(path: str) -> Iterator[tuple[str, str, str]]:
    """A path as what lies around a module, the module, and what lies in it."""
    parts = path.split(".")
    for place in range(len(parts) - 1):
        if not parts[place].isdigit():  # numbers count, and tell by themselves
            yield ".".join(parts[:place]), parts[place], ".".join(parts[place + 1 :])


def _told(
    pairs: Sequence[UnitPair], rows: Mapping[tuple[Around, str, str], list[_Seat]]
) -> dict[Around, dict[str, str]]:
    """Per place the modules of base with those of raw that hold something which fits no other of them."""
    found: dict[Around, dict[str, str]] = {}
    broken: set[Around] = set()
    for (around, _, _), seats in rows.items():
        if len(seats) < 2 or len({seat.base for seat in seats}) < len(seats):
            continue
        apart = all(
            not fits(pairs[one.pair].base[0], pairs[other.pair].raw[0])
            for one in seats
            for other in seats
            if one is not other
        )
        if not apart:
            continue
        known = found.setdefault(around, {})
        for seat in seats:
            if known.setdefault(seat.base, seat.raw) != seat.raw:
                broken.add(around)
    for around, known in found.items():
        if len(set(known.values())) < len(known):
            broken.add(around)
    return {around: known for around, known in found.items() if around not in broken}
