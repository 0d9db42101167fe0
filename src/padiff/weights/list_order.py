"""Blocks of a list in the list's own order, where that is not the one they are used in, or some are not used at all."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from padiff.weights.units import Unit  # whose order this is


def in_list_order(units: list[Unit]) -> list[Unit]:
    """Members of a list that are used out of their order, or not at all, taken in it, each as a whole.

    Experts are used as the router will; and blocks that a port calls in the wrong order, or leaves out, are not
    to be filled with each other's weights.
    """
    lists = _lists(units)
    for name, members in sorted(lists.items(), key=lambda item: item[0].count(".")):
        if len(members) < 2 or not _out_of_order(members):
            continue
        placed = _beside_their_peers(units, members, _peers(lists, name))
        if placed:
            units = placed
            continue
        inside = {unit.order for one in members.values() for unit in one}
        start = next(place for place, unit in enumerate(units) if unit.order in inside)
        later = [unit for unit in units[start:] if unit.order not in inside]
        place_of = {unit.order: place for place, unit in enumerate(units)}
        ordered = [unit for number in sorted(members) for unit in _as_in_others(name, members, number, place_of)]
        units = [*units[:start], *ordered, *later]
    return units


def _as_in_others(name: str, members: Mapping[int, list[Unit]], number: int, place_of: Mapping[int, int]) -> list[Unit]:
    """What a member of a list holds, in order of use: of one that is not used, as in the nearest that is."""
    used = [n for n, own in members.items() if any(unit.use < math.inf for unit in own)]
    like: dict[str, int] = {}
    if used and number not in used:
        nearest = min(used, key=lambda other: abs(other - number))
        like = {_below(unit, name): place_of[unit.order] for unit in members[nearest]}
    return sorted(members[number], key=lambda unit: (like.get(_below(unit, name), len(place_of)), place_of[unit.order]))


def _below(unit: Unit, name: str) -> str:
    """Where a unit is inside a member of a list."""
    parts = unit.path.split(".")
    for place, part in enumerate(parts):
        stem = part.rstrip("0123456789")
        if stem != part and ".".join((*parts[:place], *([stem] if stem else []))) == name:
            return ".".join(parts[place + 1 :])
    return unit.path


def _lists(units: Sequence[Unit]) -> dict[str, dict[int, list[Unit]]]:
    """Path of a list to what each of its members holds, by number."""
    found: dict[str, dict[int, list[Unit]]] = defaultdict(lambda: defaultdict(list))
    named: dict[str, dict[int, list[Unit]]] = defaultdict(lambda: defaultdict(list))
    for unit in units:
        parts = unit.path.split(".")
        for place, part in enumerate(parts):
            if part.isdigit():
                found[".".join(parts[:place])][int(part)].append(unit)
            elif counting := re.fullmatch(r"(.*\D)(\d+)", part):
                named[".".join((*parts[:place], counting[1]))][int(counting[2])].append(unit)
    return found | {name: members for name, members in named.items() if _are_blocks(name, members)}


def _are_blocks(name: str, members: Mapping[int, Sequence[Unit]]) -> bool:
    """Whether names that count are of equal blocks of which some are not used, and the others in order."""
    used = {n: own for n, own in members.items() if any(unit.use < math.inf for unit in own)}
    if not used or len(used) == len(members) or _out_of_order(used):
        return False
    inside = [sorted(_below(unit, name) for unit in own) for own in members.values()]
    return len(inside[-1]) > 1 and inside.count(inside[-1]) > 1


def left_out_of_lists(units: Sequence[Unit]) -> set[int]:
    """Units of members of lists that are not used at all, where another member is: they stand in the list's order."""
    found: set[int] = set()
    for members in _lists(units).values():
        idle = [own for own in members.values() if all(unit.use == math.inf for unit in own)]
        if 0 < len(idle) < len(members):
            found.update(unit.order for own in idle for unit in own)
    return found


def _peers(lists: Mapping[str, Mapping[int, list[Unit]]], name: str) -> dict[int, list[int]]:
    """By number, which units lie in the other lists beside one, as long as it is and used in order: blocks that are
    kept sort by sort."""
    found: dict[int, list[int]] = defaultdict(list)
    for other, members in lists.items():
        beside = other.rpartition(".")[0] == name.rpartition(".")[0] and members.keys() == lists[name].keys()
        if beside and other != name and not _out_of_order(members):
            for number, own in members.items():
                found[number] += [unit.order for unit in own]
    return found


def _beside_their_peers(
    units: Sequence[Unit], members: Mapping[int, list[Unit]], peers: Mapping[int, Sequence[int]]
) -> list[Unit]:
    """Members that are not used stand among their peers as those do that are; empty where nothing says how."""
    idle = {n: own for n, own in members.items() if all(unit.use == math.inf for unit in own)}
    used = {n: own for n, own in members.items() if n not in idle}
    if not peers or not idle or _out_of_order(used):
        return []
    outside = {unit.order for own in idle.values() for unit in own}
    found = [unit for unit in units if unit.order not in outside]
    for number, own in sorted(idle.items()):
        like = min(used, key=lambda other: abs(other - number))
        place_of = {unit.order: place for place, unit in enumerate(found)}
        begins = min(place_of[unit.order] for unit in used[like])
        before = sum(place_of[order] < begins for order in peers[like])
        ranks = sorted(place_of[order] for order in peers[number])
        at = ranks[min(before, len(ranks)) - 1] + 1 if before else ranks[0]
        found[at:at] = own
    return found


def _out_of_order(members: Mapping[int, Sequence[Unit]]) -> bool:
    used = [min(unit.use for unit in members[number]) for number in sorted(members)]
    return min(used) < math.inf and (used != sorted(used) or max(used) == math.inf)
