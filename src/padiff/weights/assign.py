"""Which unit of base fills which of raw, for models of different make.

Units stand in the order in which the running models use them. One alignment of the two sequences, in which one
unit may answer to several that are joined (query, key, value to a fused projection), pairs most; what is left is
matched out of order, by shape and name; stacks of numbered siblings against one tensor with one more axis first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, compress

from padiff.weights.blocks import norms_at_home
from padiff.weights.branches import branches_sorted
from padiff.weights.chains import chain_at, chain_score, norms_along
from padiff.weights.fitting import (
    UnitPair,
    first_role,
    fits,
    in_part_order,
    kind_to_score,
    numbered_alike,
    pair_up,
    parent,
    score_of_kinds,
    signature,
)
from padiff.weights.joining import MOST_JOINED, join_score, joins
from padiff.weights.leftovers import (
    added_leftovers,
    beside_partners,
    joined_leftovers,
    parts_by_names,
    single_leftovers,
)
from padiff.weights.list_order import left_out_of_lists
from padiff.weights.stacks import pair_stacks
from padiff.weights.telling import by_names, by_values, rest
from padiff.weights.units import Unit, halves

_FULL_CELLS = 15_000
"""Pairs of units up to which all are looked at; the cost of larger models is to grow with their length alone."""
_NARROW = 60
_DOWN, _RIGHT, _BOTH = (1, 0), (0, 1), (1, 1)


def assign(
    base: Sequence[Unit], raw: Sequence[Unit], *, values: bool = False
) -> tuple[list[UnitPair], list[Unit], list[Unit]]:
    """Pairs, and what has no partner in base and in raw. ``values``: both hold the same weights already."""
    base, base_buffers = _without_buffers(base)
    raw, raw_buffers = _without_buffers(raw)
    pairs, base_left, raw_left = _assigned(base, raw, values)
    found = beside_partners(pairs, base_buffers, raw_buffers)
    others, base_buffers, raw_buffers = _assigned(*rest(base_buffers, raw_buffers, found), values)
    return pairs + found + others, base_left + base_buffers, raw_left + raw_buffers


def _without_buffers(units: Sequence[Unit]) -> tuple[list[Unit], list[Unit]]:
    """Units, and apart from them the buffers of modules that hold others, which say better whose partner they are."""
    held = {unit.node.index for unit in units if unit.required}
    apart = [not unit.required and unit.node.index in held for unit in units]
    return [u for u, out in zip(units, apart, strict=True) if not out], list(compress(units, apart))


def _assigned(base: Sequence[Unit], raw: Sequence[Unit], values: bool) -> tuple[list[UnitPair], list[Unit], list[Unit]]:
    every = base, raw
    pairs = by_names(base, raw)
    base, raw = rest(base, raw, pairs)
    found = parts_by_names(base, raw)
    pairs += found
    base, raw = rest(base, raw, found)
    valued = by_values(base, raw) if values else []
    stacked, base, raw = pair_stacks(*rest(base, raw, valued))
    pairs += valued + stacked
    found = _used_first(base, raw)
    pairs += found
    base, raw = rest(base, raw, found)
    found, base, raw = _leftovers(base, raw, found)
    pairs += found
    found = added_leftovers(base, raw)
    pairs += found
    found, base, raw = _of_other_sizes(*rest(base, raw, found))
    pairs += found
    if at_home := norms_at_home(pairs, every[0]):
        pairs = at_home
        pairs += _in_order(*rest(*every, pairs))
        found, base, raw = _leftovers(*rest(*every, pairs), pairs)
        pairs += found
    if any(unit.required for unit in base) and any(unit.required for unit in raw):
        found, base, raw = _in_halves(base, raw)
        pairs += found
    return pairs, list(base), list(raw)


def _used_first(base: Sequence[Unit], raw: Sequence[Unit]) -> list[UnitPair]:
    """Pairs by order of use. What one side never uses, a norm that was left out, stands last among its units, and is
    no partner there for what the other side uses last; a block that was left out stands in its place."""
    placed = [left_out_of_lists(units) for units in (base, raw)]
    used = [
        [unit for unit in units if unit.use < math.inf or unit.order in known]
        for units, known in zip((base, raw), placed, strict=True)
    ]
    if not all(used) or all(len(some) == len(every) for some, every in zip(used, (base, raw), strict=True)):
        return _in_order(base, raw)
    found = _in_order(*used)
    for side in (0, 1):
        left = list(rest(base, raw, found))
        left[side] = [unit for unit in left[side] if unit.use == math.inf and unit.order not in placed[side]]
        found += _in_order(*left)
    return found


def _in_order(base: Sequence[Unit], raw: Sequence[Unit]) -> list[UnitPair]:
    """Pairs by order of use; where branches are computed in another order, by one that both have in common."""
    found = _Alignment(_in_named_order(base), _in_named_order(raw)).pairs()
    if sum(len(pair.base) for pair in found) == len(base) or sum(len(pair.raw) for pair in found) == len(raw):
        return found
    other = _Alignment(*(_in_named_order(branches_sorted(units)) for units in (base, raw))).pairs()
    return max(found, other, key=lambda pairs: sum(len(pair.base) + len(pair.raw) for pair in pairs))


def _leftovers(
    base: Sequence[Unit], raw: Sequence[Unit], known: Sequence[UnitPair] = ()
) -> tuple[list[UnitPair], list[Unit], list[Unit]]:
    """``known`` are pairs that order of use found: norms go along with those of them that are joined."""
    pairs = joined_leftovers(base, raw)
    pairs += norms_along([*known, *pairs], *rest(base, raw, pairs))
    pairs += single_leftovers(*rest(base, raw, pairs), known)
    base, raw = rest(base, raw, pairs)
    return pairs, base, raw


def _of_other_sizes(base: Sequence[Unit], raw: Sequence[Unit]) -> tuple[list[UnitPair], list[Unit], list[Unit]]:
    """Layers that return another number of elements than their partners: padded elsewhere, or wrong."""
    known: dict[int, Unit] = {}

    def without_size(units: Sequence[Unit]) -> list[Unit]:
        found = [replace(unit, made=0) for unit in units]
        known.update((id(new), old) for new, old in zip(found, units, strict=True))
        return found

    sizeless = without_size(base), without_size(raw)
    pairs = _Alignment(*map(_in_named_order, sizeless)).pairs()
    found, base_left, raw_left = _leftovers(*rest(*sizeless, pairs), pairs)
    restored = [
        replace(pair, base=tuple(known[id(u)] for u in pair.base), raw=tuple(known[id(u)] for u in pair.raw))
        for pair in (*pairs, *found)
    ]
    return restored, [known[id(unit)] for unit in base_left], [known[id(unit)] for unit in raw_left]


def _in_halves(base: Sequence[Unit], raw: Sequence[Unit]) -> tuple[list[UnitPair], list[Unit], list[Unit]]:
    """Weights and biases each for themselves, where they don't come together on both sides."""
    base, raw = ([half for unit in units for half in halves(unit)] for units in (base, raw))
    pairs = by_names(base, raw)
    base, raw = rest(base, raw, pairs)
    found = _Alignment(_in_named_order(base), _in_named_order(raw)).pairs()
    pairs += found
    found, base, raw = _leftovers(*rest(base, raw, found), found)
    pairs += found
    found = added_leftovers(base, raw)
    base, raw = rest(base, raw, found)
    return pairs + found, list(base), list(raw)


def _in_named_order(units: Sequence[Unit]) -> list[Unit]:
    """Query, key and value of one attention in this order, joined or not, in whichever they are computed."""
    found: list[Unit] = []
    run: list[Unit] = []
    for unit in (*units, None):
        if unit is not None and first_role(unit) and (not run or _siblings(run[-1], unit)):
            run.append(unit)
            continue
        found += in_part_order(run)[0] if len(run) > 1 else run
        run = [unit] if unit is not None and first_role(unit) else []
        if unit is not None and not run:
            found.append(unit)
    return found


def _siblings(one: Unit, other: Unit) -> bool:
    return parent(one) == parent(other)


class _Alignment:
    """The best order-preserving alignment of two sequences of units with moves 1-1, k-1 and 1-k; and 2k-2 and 2-2k, for
    kernels with a norm each against one with its own."""

    def __init__(self, base: Sequence[Unit], raw: Sequence[Unit]) -> None:
        self.base, self.raw = list(base), list(raw)
        kinds: dict[object, int] = {}
        self._kinds = tuple(
            [kinds.setdefault((signature(unit), unit.in_all, unit.layer, unit.strides), len(kinds)) for unit in units]
            for units in (base, raw)
        )
        self._fits: dict[int, list[bool]] = {}
        numbers: dict[object, int] = {}
        self._scored = tuple(
            [numbers.setdefault(kind_to_score(unit), len(numbers)) for unit in units] for units in (base, raw)
        )
        self._scores: dict[int, dict[int, float]] = {}
        """How well two kinds of units belong together, their numbers aside; by base's, then by raw's."""
        self._joins: dict[tuple[tuple[int, ...], tuple[int, ...]], bool] = {}
        self._sums = _Sums(self.base), _Sums(self.raw)

    def pairs(self) -> list[UnitPair]:
        rows, columns = len(self.base), len(self.raw)
        if not rows or not columns:
            return []
        if rows * columns <= _FULL_CELLS:
            return self._within(columns)
        # Long models: near the diagonal first, which is nearly always enough.
        found = self._within(_NARROW)
        paired = sum(len(pair.base) for pair in found)
        return found if paired >= 0.98 * rows else self._within(abs(rows - columns) + 2 * _NARROW)

    def _within(self, band: int) -> list[UnitPair]:
        """Every cell is the best of what lies below it and to its right; few can be more than that, and which is known
        beforehand."""
        rows, columns = len(self.base), len(self.raw)
        width = columns + 2 * MOST_JOINED + 1
        best: list[list[float]] = [[0.0] * width] * (rows + 2 * MOST_JOINED + 1)
        move: list[dict[int, tuple[int, int]]] = [{} for _ in range(rows)]
        for i in range(rows - 1, -1, -1):
            row, below, steps = [0.0] * width, best[i + 1], move[i]
            best[i] = row
            one, scores, kinds = self.base[i], self._scores.setdefault(self._scored[0][i], {}), self._scored[1]
            fitting, joining = self._fitting(i), self._sums[0].making_up(i, self._sums[1])
            middle = round(i * columns / rows)
            for j in range(min(columns - 1, middle + band), max(-1, middle - band - 1), -1):
                found, step = below[j], _DOWN
                if row[j + 1] > found:
                    found, step = row[j + 1], _RIGHT
                if fitting[j]:
                    kind = kinds[j]
                    if kind not in scores:
                        scores[kind] = score_of_kinds(one, self.raw[j])
                    value = scores[kind] + numbered_alike(one, self.raw[j]) + below[j + 1]
                    if value >= found:
                        found, step = value, _BOTH
                for down, right in joining.get(j, ()):
                    joined = self._joined(i, j, down, right)
                    if joined is not None and joined + best[i + down][j + right] > found:
                        found, step = joined + best[i + down][j + right], (down, right)
                row[j], steps[j] = found, step
        return self._walk(move)

    def _joined(self, i: int, j: int, down: int, right: int) -> float | None:
        """How well parts belong to what they may make up; None where they don't make it up."""
        if min(down, right) > 1:
            chain = self._chain(i, j, down, right)
            return sum(map(chain_score, chain)) if chain else None
        parts, (whole,) = self._of(i, j, down, right)
        key = (tuple(self._kinds[0][i : i + down]), tuple(self._kinds[1][j : j + right]))
        known = self._joins.get(key)
        if known is None:
            known = self._joins[key] = joins(parts, whole)
        return join_score(parts, whole) if known else None

    def _fitting(self, i: int) -> list[bool]:
        """For each unit of raw whether it fits one of base's."""
        kind = self._kinds[0][i]
        known = self._fits.get(kind)
        if known is None:
            by_kind: dict[int, bool] = {}
            for j, other in enumerate(self._kinds[1]):
                if other not in by_kind:
                    by_kind[other] = fits(self.base[i], self.raw[j])
            known = self._fits[kind] = [by_kind[other] for other in self._kinds[1]]
        return known

    def _of(self, i: int, j: int, down: int, right: int) -> tuple[list[Unit], list[Unit]]:
        """The parts and what they may make up."""
        base, raw = self.base[i : i + down], self.raw[j : j + right]
        return (base, raw) if down > right else (raw, base)

    def _chain(self, i: int, j: int, down: int, right: int) -> list[UnitPair]:
        return chain_at(*self._of(i, j, down, right), base_has_parts=down > right)

    def _walk(self, move: list[dict[int, tuple[int, int]]]) -> list[UnitPair]:
        pairs: list[UnitPair] = []
        i = j = 0
        while i < len(self.base) and j < len(self.raw):
            down, right = move[i].get(j, (1, 0) if i * len(self.raw) < j * len(self.base) else (0, 1))
            if min(down, right) > 1:
                pairs += self._chain(i, j, down, right)
            elif down and right:
                pairs.append(pair_up(self.base[i : i + down], self.raw[j : j + right]))
            i, j = i + down, j + right
        return pairs


class _Sums:
    """How many elements neighbours have together: cheap to refuse, before anything is put together."""

    def __init__(self, units: Sequence[Unit]) -> None:
        before = [0, *accumulate(math.prod(unit.main.shape) for unit in units)]
        joined = [len(unit.main.shape) > 1 for unit in units]  # vectors are joined only along with others
        self._whole = [self._over(before, place, 1) if one else None for place, one in enumerate(joined)]
        self._two = [self._over(before, place, 2) if one else None for place, one in enumerate(joined)]
        self._parts = [self._by_sum(before, place, 1) if one else {} for place, one in enumerate(joined)]
        self._pairs = [self._by_sum(before, place, 2) if one else {} for place, one in enumerate(joined)]
        self._wholes_at, self._twos_at = (_places([one] for one in sizes) for sizes in (self._whole, self._two))
        self._parts_at, self._pairs_at = _places(self._parts), _places(self._pairs)

    @staticmethod
    def _over(before: Sequence[int], place: int, count: int) -> int | None:
        return before[place + count] - before[place] if place + count < len(before) else None

    def _by_sum(self, before: Sequence[int], place: int, each: int) -> dict[int | None, int]:
        """What the next two, three or more have together to how many these are; nothing where they don't go so far."""
        found = {self._over(before, place, each * count): each * count for count in range(MOST_JOINED, 1, -1)}
        found.pop(None, None)
        return found

    def making_up(self, i: int, other: _Sums) -> dict[int, list[tuple[int, int]]]:
        """By the other's places: how many from a place may be parts of what lies there, and the other way round; one
        against two or more, or two against twice as many."""
        found: dict[int, list[tuple[int, int]]] = {}
        for parts, wholes_at, count in ((self._parts, other._wholes_at, 1), (self._pairs, other._twos_at, 2)):
            for size, many in parts[i].items():
                for j in wholes_at.get(size, ()):
                    found.setdefault(j, []).append((many, count))
        for wholes, others, at, count in (
            (self._whole, other._parts, other._parts_at, 1),
            (self._two, other._pairs, other._pairs_at, 2),
        ):
            for j in at.get(wholes[i], ()):
                found.setdefault(j, []).append((count, others[j][wholes[i]]))
        return found


def _places(numbers: Iterable[Iterable[int | None]]) -> dict[int | None, list[int]]:
    """Where each of some numbers is."""
    found: dict[int | None, list[int]] = {}
    for place, here in enumerate(numbers):
        for one in here:
            found.setdefault(one, []).append(place)
    return found
