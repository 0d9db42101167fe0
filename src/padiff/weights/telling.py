"""Pairs that need no order: units that hold the same values, and units whose names say the same."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from padiff.weights.fitting import UnitPair, fits
from padiff.weights.units import Unit
from padiff.weights.words import words_of


def by_values(base: Sequence[Unit], raw: Sequence[Unit]) -> list[UnitPair]:
    """Where both sides hold the same weights already: units with the same least and greatest element, no others'.

    A few that agree by chance, or were left by something else, are no evidence: most of them must.
    """
    sides = []
    for units in (base, raw):
        found: dict[object, list[Unit]] = defaultdict(list)
        for unit in units:
            if unit.values is not None:
                found[(unit.values, math.prod(unit.main.shape))].append(unit)
        sides.append({key: group[0] for key, group in found.items() if len(group) == 1})
    ones, others = sides
    both = [(unit, others[key]) for key, unit in ones.items() if key in others]
    pairs = [UnitPair((unit,), (other,), "values", 1.0) for unit, other in both if fits(unit, other)]
    return pairs if len(pairs) > 0.5 * min(len(ones), len(others)) else []


def by_names(base: Sequence[Unit], raw: Sequence[Unit]) -> list[UnitPair]:
    """Units whose names say the same and no other's do: no order of use argues against that.

    A model that uses two equal layers in the wrong order must not have their weights swapped to match. But names that
    pair only some of a family of equal layers, and leave others over on both sides, are counted differently
    (conv1 to conv3, conv0 to conv2), and say nothing. Nor do numbers in lists of different names that do the same
    (features.1 and late.1), nor names of which only the end is the same, where both sides are left with another layer
    of that last name (mid_attn.qkv and downs.1.qkv, enc_attn.qkv and middle.1.qkv).
    """
    pairs: list[UnitPair] = []
    left, right = list(base), list(raw)
    for depth in (99, 3, 2):
        ones, others = _once(left, depth), _once(right, depth)
        for key, unit in ones.items():
            other = others.get(key)
            # Under all its names it is the same, however much it is given: another batch, or a part of it.
            sized = replace(unit, made=0) if depth == 99 else unit
            if other is not None and fits(sized, other):
                pairs.append(UnitPair((unit,), (other,), "names, shape", 1.0))
        left, right = rest(left, right, pairs)
    doubtful = {_family(unit) for unit in left} & {_family(unit) for unit in right}
    stems = {_stems(unit) for unit in left} & {_stems(unit) for unit in right}
    in_lists = {_in_any_list(unit) for unit in left} & {_in_any_list(unit) for unit in right}
    last_names = {_last_name(unit) for unit in left} & {_last_name(unit) for unit in right}

    def counted_alike(base: Unit, raw: Unit) -> bool:
        if _family(base) in doubtful or _family(raw) in doubtful or _stems(base) in stems:
            return False
        if words_of(base.label) == words_of(raw.label):
            return True
        return _in_any_list(base) not in in_lists and _last_name(base) not in last_names

    return [pair for pair in pairs if counted_alike(pair.base[0], pair.raw[0])]


def _family(unit: Unit) -> object:
    """Units that only names and order tell apart: of one block, one shape."""
    return unit.counted, _shapes(unit)


def _stems(unit: Unit) -> object:
    """Units that only numbers in their names tell apart, of whatever blocks."""
    words = (word for word in words_of(unit.label) if not word[-1].isdigit())
    return unit.numbers, tuple(words), _shapes(unit)


def _in_any_list(unit: Unit) -> object:
    """Units that only their blocks tell apart: of one name and shape."""
    return words_of(unit.label)[-2:], _shapes(unit)


def _last_name(unit: Unit) -> object:
    """Units that only what is around them tells apart."""
    return words_of(unit.label)[-1:], _shapes(unit)


def _shapes(unit: Unit) -> object:
    return tuple(sorted((role, unit.atoms[role].neutral) for role in unit.required))


def _once(units: Sequence[Unit], depth: int) -> dict[object, Unit]:
    """Units by their last words and all places in lists, those whose key no other has."""
    found: dict[object, list[Unit]] = defaultdict(list)
    for unit in units:
        words = words_of(unit.label)
        if depth == 99 or len(words) >= depth:
            found[(words[-depth:], unit.numbers if depth == 99 else unit.counted)].append(unit)
    return {key: group[0] for key, group in found.items() if len(group) == 1}


def rest(base: Sequence[Unit], raw: Sequence[Unit], pairs: Sequence[UnitPair]) -> tuple[list[Unit], list[Unit]]:
    done = {id(unit) for pair in pairs for unit in (*pair.base, *pair.raw)}
    return [u for u in base if id(u) not in done], [u for u in raw if id(u) not in done]
