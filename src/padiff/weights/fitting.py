"""Whether units fit each other, one with one or several with one, and how well."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from padiff.records import merged_axes
from padiff.weights.units import UNKNOWN, Atom, Unit
from padiff.weights.words import canonical, likeness, words_of

PART_ORDER = ("query", "key", "value", "gate", "fc1")
_INITIALS = {"q": "query", "k": "key", "v": "value"}


@dataclass(frozen=True)
class UnitPair:
    """Units of base that fill units of raw; more than one on a side are parts of the one on the other."""

    base: tuple[Unit, ...]
    raw: tuple[Unit, ...]
    evidence: str
    confidence: float
    stacked: bool = False
    others: tuple[Unit, ...] = ()
    """Units of base that could fill raw's as well, where the evidence does not settle it."""
    added: bool = False
    """The parts are cut along their inputs, and what they return is added up."""
    along: str = ""
    """Where parts go along with those of another pair, as norms do with kernels: the path of its first unit in raw."""

    @property
    def numbered(self) -> bool:
        """Parts that are members of one list, in its order: whoever cuts a layer among ranks counts them so."""
        parts = self.base if len(self.base) > 1 else self.raw
        last = [part.label.rpartition(".")[2] for part in parts]
        return len(parts) > 1 and last == [str(place) for place in range(len(parts))]


def signature(unit: Unit) -> object:
    """Equal for units that fit the same others."""
    atoms = [(role, atom) for role, atom in unit.atoms.items() if not atom.held.lenient]
    shapes = sorted((role, atom.axes == UNKNOWN, flat(atom.neutral), flat(atom.shape)) for role, atom in atoms)
    return unit.layer is None, unit.made, tuple(shapes)


def parent(unit: Unit) -> str:
    return unit.label.rpartition(".")[0]


def fits(base: Unit, raw: Unit) -> bool:
    """Whether every tensor of one can go into its partner in the other."""
    if base.required != raw.required or not return_as_much([base], raw):
        return False
    for role in base.required:
        one, two = base.atoms[role], raw.atoms[role]
        if UNKNOWN in (one.axes, two.axes):
            if sorted(one.shape) != sorted(two.shape) and not merges_somehow(one.shape, two.shape):
                return False
        elif one.neutral != two.neutral and flat(one.shape) != flat(two.shape):
            loose = base.layer is None or raw.layer is None
            merged = loose and one.parts == two.parts == 1 and merges_somehow(one.shape, two.shape)
            flattened = len(one.shape) != len(two.shape) and one.matrix == two.matrix is not None
            if not merged and not flattened and not turned_stacks(one, two):
                return False
    return True


def return_as_much(parts: Sequence[Unit], whole: Unit) -> bool:
    """Whether some units returned together what one did, in their first calls or in all; also where that is not
    known."""
    if not whole.made or not all(part.made for part in parts):
        return True
    in_all = sum(part.in_all for part in parts)
    return sum(part.made for part in parts) == whole.made or in_all == whole.in_all > 0


def merges(one: tuple[int, ...], two: tuple[int, ...]) -> bool:
    """Whether one shape is the other with neighbouring axes merged: [48, 4, 12] and [48, 48]."""
    short, long = sorted((one, two), key=len)
    if len(short) == len(long) or math.prod(one) != math.prod(two) or not short:
        return False
    merged = merged_axes(long, short)
    return merged is not None and all(size == 1 for size in long[merged:])


def turned_merge(one: tuple[int, ...], two: tuple[int, ...]) -> tuple[int, ...] | None:
    """The permutation after which one of a matrix and a tensor of three axes is the other, merged or cut, with inputs
    and outputs in each other's place: [32, 4, 12] is [48, 32] so. What both have for a batch of one is passed over: a
    table of places as a picture, [1, 24, 4, 4], is [1, 16, 24]."""
    if one[:1] == two[:1] == (1,):
        found = turned_merge(one[1:], two[1:])
        return None if found is None else (0, *(axis + 1 for axis in found))
    if sorted((len(one), len(two))) != [2, 3] or 1 in one or 1 in two:
        return None
    if len(one) == 2:
        return (1, 0) if merges(one[::-1], two) else None
    turned = [first for first in (1, 2) if (math.prod(one[first:]), math.prod(one[:first])) == two]
    return (*range(turned[0], 3), *range(turned[0])) if turned else None


def turned_stacks(one: Atom, two: Atom) -> bool:
    """Whether both are matrices in a stack, such as experts', with inputs and outputs in each other's place."""
    unnamed = not one.axes and not two.axes and one.parts == two.parts == 1
    return unnamed and len(one.shape) == 3 and one.shape != two.shape == turned_stack(one.shape)


def turned_stack(shape: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*shape[:-2], shape[-1], shape[-2])


def merges_somehow(one: tuple[int, ...], two: tuple[int, ...]) -> bool:
    return merges(one, two) or turned_merge(one, two) is not None


def flat(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Tables and tokens may carry axes of length one: [1, n, d] is [n, d]."""
    return tuple(size for size in shape if size != 1) if 1 in shape or len(shape) == 1 else shape


def score(base: Unit, raw: Unit) -> float:
    """How well two units that fit belong together."""
    return score_of_kinds(base, raw) + numbered_alike(base, raw)


def kind_to_score(unit: Unit) -> object:
    """Equal for units that belong equally well to all others, their numbers aside."""
    return words_of(unit.label), unit.layer, bool(part_role(unit)), unit.strides, bool(unit.made)


def score_of_kinds(base: Unit, raw: Unit) -> float:
    """The same without their numbers."""
    found = 3.0 + 3.0 * likeness(base.label, raw.label)
    if base.layer is not None and base.layer == raw.layer:
        found += 1.0
    elif base.layer is not None and raw.layer is not None:
        found -= 1.5
    if bool(part_role(base)) != bool(part_role(raw)):
        found -= 0.5
    if base.strides != raw.strides and not (base.made and raw.made):  # else what they returned tells more
        found -= 1.0
    return found


def numbered_alike(base: Unit, raw: Unit) -> float:
    if not base.counted or not raw.counted:
        return 0.0
    return 1.0 if base.counted == raw.counted else -0.5 if len(base.counted) == len(raw.counted) else 0.0


def part_role(unit: Unit) -> str:
    """``query``, ``key``, ``value``, ``gate``, ``fc1`` where the unit's own name says so."""
    return _part_named(unit.label)


@functools.lru_cache(maxsize=65536)
def _part_named(label: str) -> str:
    return next((word for word in words_of(label.rpartition(".")[2]) if word in PART_ORDER), "")


def first_role(unit: Unit) -> str:
    """The same; of a unit that its own name says is several of them joined, such as ``kv``, the first."""
    return part_role(unit) or next(iter(_roles_in(unit.label.rpartition(".")[2])), "")


def in_part_order(parts: Sequence[Unit], whole: Unit | None = None) -> tuple[list[Unit], bool]:
    """Parts in the order that the fused unit's name spells, else in the usual one; and whether names told it."""
    roles = [first_role(part) for part in parts]
    if all(roles) and len(set(roles)) == len(roles):
        order = (_spelt(whole, roles) if whole is not None else ()) or PART_ORDER
        return sorted(parts, key=lambda part: order.index(first_role(part))), True
    return list(parts), False


def tells_order(whole: Unit) -> bool:
    """Whether a fused unit's name says in which order its parts come."""
    last = whole.label.rpartition(".")[2]
    return bool({"qkv", "gateup"} & set(words_of(whole.label))) or len(_roles_in(last)) > 1


def _spelt(whole: Unit, roles: Sequence[str]) -> tuple[str, ...]:
    """The order of the parts as the fused unit is called: ``kqv``, ``key_query_value``, ``up_gate_proj``."""
    found = _roles_in(whole.label.rpartition(".")[2])
    return found if set(found) >= set(roles) else ()


def _roles_in(name: str) -> tuple[str, ...]:
    found: list[str] = []
    for token in re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()):
        letters = token.removeprefix("w") if len(token) > 1 else token
        if set(letters) <= set(_INITIALS) and len(set(letters)) == len(letters) > 1:
            found += [_INITIALS[letter] for letter in letters]
        elif canonical(token) in PART_ORDER:
            found.append(canonical(token))
    return tuple(dict.fromkeys(found))


def pair_up(base: Sequence[Unit], raw: Sequence[Unit]) -> UnitPair:
    named = likeness(base[0].label, raw[0].label)
    used = all(unit.use < math.inf for unit in (*base, *raw))
    order = "order of use" if used else "order of definition"
    if len(base) == len(raw) == 1:
        same_layer = base[0].layer is not None and base[0].layer == raw[0].layer
        evidence = f"{order}, shape" + (", names" if named > 0.5 else "") + (", kind" if same_layer else "")
        return UnitPair((base[0],), (raw[0],), evidence, 1.0 if named > 0.5 or used else 0.8)
    parts, told = in_part_order(base, raw[0]) if len(base) > 1 else in_part_order(raw, base[0])
    evidence = f"{order}, shapes add up" + (", parts named" if told else "")
    confidence = 0.95 if told else 0.6
    if len(base) > 1:
        return UnitPair(tuple(parts), (raw[0],), evidence, confidence)
    return UnitPair((base[0],), tuple(parts), evidence, confidence)
