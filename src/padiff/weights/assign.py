"""Which unit of base fills which of raw, for models of different make.

Units stand in the order in which the running models use them. One alignment of the two sequences, in which one
unit may answer to several that are joined (query, key, value to a fused projection), pairs most; what is left is
matched out of order, by shape and name; stacks of numbered siblings against one tensor with one more axis first.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from padiff.weights.units import UNKNOWN, Unit
from padiff.weights.words import likeness, words_of

MOST_JOINED = 4
_FULL_CELLS = 200_000
_NARROW = 60
PART_ORDER = ("query", "key", "value", "gate", "fc1")


@dataclass(frozen=True)
class UnitPair:
    """Units of base that fill units of raw; more than one on a side are parts of the one on the other."""

    base: tuple[Unit, ...]
    raw: tuple[Unit, ...]
    evidence: str
    confidence: float
    stacked: bool = False


def assign(base: Sequence[Unit], raw: Sequence[Unit]) -> tuple[list[UnitPair], list[Unit], list[Unit]]:
    """Pairs, and what has no partner in base and in raw."""
    pairs = _by_values(base, raw)
    base, raw = _rest(base, raw, pairs)
    named = _by_names(base, raw)
    stacked, base, raw = _stacks(*_rest(base, raw, named))
    pairs += named + stacked
    found = _Alignment(_in_named_order(base), _in_named_order(raw)).pairs()
    pairs += found
    base, raw = _rest(base, raw, found)
    for step in (_joined_leftovers, _single_leftovers):
        found = step(base, raw)
        pairs += found
        base, raw = _rest(base, raw, found)
    return pairs, list(base), list(raw)


def _by_values(base: Sequence[Unit], raw: Sequence[Unit]) -> list[UnitPair]:
    """Where both sides hold the same weights already: units with the same least and greatest element, no others'."""
    sides = []
    for units in (base, raw):
        found: dict[object, list[Unit]] = defaultdict(list)
        for unit in units:
            if unit.values is not None:
                found[(unit.values, math.prod(unit.main.shape))].append(unit)
        sides.append({key: group[0] for key, group in found.items() if len(group) == 1})
    ones, others = sides
    both = [(unit, others[key]) for key, unit in ones.items() if key in others]
    return [UnitPair((unit,), (other,), "values", 1.0) for unit, other in both if fits(unit, other)]


def _by_names(base: Sequence[Unit], raw: Sequence[Unit]) -> list[UnitPair]:
    """Units whose names say the same and no other's do: no order of use argues against that.

    A model that uses two equal layers in the wrong order must not have their weights swapped to match. But names that
    pair only some of a family of equal layers, and leave others over on both sides, are counted differently
    (conv1 to conv3, conv0 to conv2), and say nothing.
    """
    pairs: list[UnitPair] = []
    left, right = list(base), list(raw)
    for depth in (99, 3, 2):
        ones, others = _once(left, depth), _once(right, depth)
        for key, unit in ones.items():
            other = others.get(key)
            if other is not None and fits(unit, other):
                pairs.append(UnitPair((unit,), (other,), "names, shape", 1.0))
        left, right = _rest(left, right, pairs)
    doubtful = {_family(unit) for unit in left} & {_family(unit) for unit in right}
    return [pair for pair in pairs if _family(pair.base[0]) not in doubtful and _family(pair.raw[0]) not in doubtful]


def _family(unit: Unit) -> object:
    """Units that only names and order tell apart: of one block, one shape."""
    return unit.numbers, tuple(sorted((role, unit.atoms[role].neutral) for role in unit.required))


def _once(units: Sequence[Unit], depth: int) -> dict[object, Unit]:
    """Units by their last words and all numbers, those whose key no other has."""
    found: dict[object, list[Unit]] = defaultdict(list)
    for unit in units:
        words = words_of(unit.label)
        if depth == 99 or len(words) >= depth:
            found[(words[-depth:], unit.numbers)].append(unit)
    return {key: group[0] for key, group in found.items() if len(group) == 1}


def _in_named_order(units: Sequence[Unit]) -> list[Unit]:
    """Query, key and value of one attention in this order, in whichever they are computed."""
    found: list[Unit] = []
    run: list[Unit] = []
    for unit in (*units, None):
        if unit is not None and part_role(unit) and (not run or _siblings(run[-1], unit)):
            run.append(unit)
            continue
        found += in_part_order(run)[0] if len(run) > 1 else run
        run = [unit] if unit is not None and part_role(unit) else []
        if unit is not None and not run:
            found.append(unit)
    return found


def _siblings(one: Unit, other: Unit) -> bool:
    return _parent(one) == _parent(other)


def _parent(unit: Unit) -> str:
    return unit.label.rpartition(".")[0]


def _rest(base: Sequence[Unit], raw: Sequence[Unit], pairs: Sequence[UnitPair]) -> tuple[list[Unit], list[Unit]]:
    done = {id(unit) for pair in pairs for unit in (*pair.base, *pair.raw)}
    return [u for u in base if id(u) not in done], [u for u in raw if id(u) not in done]


# ------------------------------------------------------------------ one with one


def fits(base: Unit, raw: Unit) -> bool:
    """Whether every tensor of one can go into its partner in the other."""
    if base.required != raw.required or (base.made and raw.made and base.made != raw.made):
        return False
    for role in base.required:
        one, two = base.atoms[role], raw.atoms[role]
        if UNKNOWN in (one.axes, two.axes):
            if sorted(one.shape) != sorted(two.shape) and not merges(one.shape, two.shape):
                return False
        elif one.neutral != two.neutral and _flat(one.shape) != _flat(two.shape):
            loose = base.layer is None or raw.layer is None
            if not (loose and one.parts == two.parts == 1 and merges(one.shape, two.shape)):
                return False
    return True


def merges(one: tuple[int, ...], two: tuple[int, ...]) -> bool:
    """Whether one shape is the other with neighbouring axes merged: [48, 4, 12] and [48, 48]."""
    short, long = sorted((one, two), key=len)
    if len(short) == len(long) or math.prod(one) != math.prod(two) or not short:
        return False
    place = 0
    for size in short:
        product = 1
        while product < size and place < len(long):
            product *= long[place]
            place += 1
        if product != size:
            return False
    return all(size == 1 for size in long[place:])


def _flat(shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Tables and tokens may carry axes of length one: [1, n, d] is [n, d]."""
    return tuple(size for size in shape if size != 1) if 1 in shape or len(shape) == 1 else shape


def score(base: Unit, raw: Unit) -> float:
    """How well two units that fit belong together."""
    found = 3.0 + 3.0 * likeness(base.label, raw.label)
    if base.layer is not None and base.layer == raw.layer:
        found += 1.0
    elif base.layer is not None and raw.layer is not None:
        found -= 1.5
    if base.numbers and raw.numbers:
        same = base.numbers == raw.numbers
        found += 1.0 if same else (-0.5 if len(base.numbers) == len(raw.numbers) else 0.0)
    return found


# ------------------------------------------------------------------ several with one


def joins(parts: Sequence[Unit], whole: Unit) -> bool:
    """Whether the parts, one after the other along their outputs, make up the whole."""
    main = whole.main
    if len(main.shape) != 2 or any(len(part.main.shape) != 2 for part in parts):
        return False
    if any(part.required != whole.required for part in parts) or "embedding" in {
        whole.layer,
        *(p.layer for p in parts),
    }:
        return False
    if main.axes == UNKNOWN:
        return any(_sums(parts, shape) for shape in (main.shape, main.shape[::-1]))
    return _sums(parts, main.neutral)


def _sums(parts: Sequence[Unit], whole: tuple[int, ...]) -> bool:
    return all(p.main.neutral[1] == whole[1] for p in parts) and sum(p.main.neutral[0] for p in parts) == whole[0]


def join_score(parts: Sequence[Unit], whole: Unit) -> float:
    parents = {_parent(part) for part in parts}
    alike = max(likeness(_parent(part), _parent(whole)) for part in parts)
    return len(parts) * 3.5 + 2.0 * alike + (1.0 if len(parents) == 1 else -2.0) + _roles_told(parts)


def _roles_told(parts: Sequence[Unit]) -> float:
    """Parts that name themselves query, key and value, or gate and up, are meant to be joined."""
    return 1.0 if len({role for part in parts if (role := part_role(part))}) == len(parts) else 0.0


def part_role(unit: Unit) -> str:
    """``query``, ``key``, ``value``, ``gate``, ``fc1`` where the unit's own name says so."""
    last = words_of(unit.label.rpartition(".")[2])
    return next((word for word in last if word in PART_ORDER), "")


def in_part_order(parts: Sequence[Unit]) -> tuple[list[Unit], bool]:
    """Parts in the usual order of a fused tensor, and whether their names told it."""
    roles = [part_role(part) for part in parts]
    if all(roles) and len(set(roles)) == len(roles):
        return sorted(parts, key=lambda part: PART_ORDER.index(part_role(part))), True
    return list(parts), False


class _Alignment:
    """The best order-preserving alignment of two sequences of units with moves 1-1, k-1 and 1-k."""

    def __init__(self, base: Sequence[Unit], raw: Sequence[Unit]) -> None:
        self.base, self.raw = list(base), list(raw)
        self._fits: dict[tuple[object, object], bool] = {}
        self._base_keys = [_signature(unit) for unit in self.base]
        self._raw_keys = [_signature(unit) for unit in self.raw]

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
        rows, columns = len(self.base), len(self.raw)
        best: list[dict[int, float]] = [{} for _ in range(rows + MOST_JOINED + 1)]
        move: list[dict[int, tuple[int, int]]] = [{} for _ in range(rows)]
        for i in range(rows - 1, -1, -1):
            middle = round(i * columns / rows)
            for j in range(min(columns - 1, middle + band), max(-1, middle - band - 1), -1):
                best[i][j], move[i][j] = self._best(i, j, best)
        return self._walk(move)

    def _best(self, i: int, j: int, best: list[dict[int, float]]) -> tuple[float, tuple[int, int]]:
        found, step = best[i + 1].get(j, 0.0), (1, 0)
        other = best[i].get(j + 1, 0.0)
        if other > found:
            found, step = other, (0, 1)
        if self._fit(i, j):
            value = score(self.base[i], self.raw[j]) + best[i + 1].get(j + 1, 0.0)
            if value >= found:
                found, step = value, (1, 1)
        for count in range(2, MOST_JOINED + 1):
            if i + count <= len(self.base) and self._may_join(self.base, i, count, self.raw[j]):
                value = join_score(self.base[i : i + count], self.raw[j]) + best[i + count].get(j + 1, 0.0)
                if value > found:
                    found, step = value, (count, 1)
            if j + count <= len(self.raw) and self._may_join(self.raw, j, count, self.base[i]):
                value = join_score(self.raw[j : j + count], self.base[i]) + best[i + 1].get(j + count, 0.0)
                if value > found:
                    found, step = value, (1, count)
        return found, step

    def _fit(self, i: int, j: int) -> bool:
        key = (self._base_keys[i], self._raw_keys[j])
        known = self._fits.get(key)
        if known is None:
            known = self._fits[key] = fits(self.base[i], self.raw[j])
        return known

    def _may_join(self, units: Sequence[Unit], start: int, count: int, whole: Unit) -> bool:
        # Cheap to refuse: the sizes are checked before anything is put together.
        if len(whole.main.shape) != 2 or len(units[start].main.shape) != 2:
            return False
        elements = math.prod(whole.main.shape)
        total = 0
        for unit in units[start : start + count]:
            total += math.prod(unit.main.shape)
            if total > elements:
                return False
        return total == elements and joins(units[start : start + count], whole)

    def _walk(self, move: list[dict[int, tuple[int, int]]]) -> list[UnitPair]:
        pairs: list[UnitPair] = []
        i = j = 0
        while i < len(self.base) and j < len(self.raw):
            down, right = move[i].get(j, (1, 0) if i * len(self.raw) < j * len(self.base) else (0, 1))
            if down and right:
                pairs.append(_pair(self.base[i : i + down], self.raw[j : j + right]))
            i, j = i + down, j + right
        return pairs


def _pair(base: Sequence[Unit], raw: Sequence[Unit]) -> UnitPair:
    named = likeness(base[0].label, raw[0].label)
    used = all(unit.use < math.inf for unit in (*base, *raw))
    order = "order of use" if used else "order of definition"
    if len(base) == len(raw) == 1:
        same_layer = base[0].layer is not None and base[0].layer == raw[0].layer
        evidence = f"{order}, shape" + (", names" if named > 0.5 else "") + (", kind" if same_layer else "")
        return UnitPair((base[0],), (raw[0],), evidence, 1.0 if named > 0.5 or used else 0.8)
    parts, told = in_part_order(base if len(base) > 1 else raw)
    evidence = f"{order}, shapes add up" + (", parts named" if told else "")
    confidence = 0.95 if told else 0.6
    if len(base) > 1:
        return UnitPair(tuple(parts), (raw[0],), evidence, confidence)
    return UnitPair((base[0],), tuple(parts), evidence, confidence)


def _signature(unit: Unit) -> object:
    """Equal for units that fit the same others."""
    shapes = sorted((r, a.axes == UNKNOWN, a.neutral, a.shape) for r, a in unit.atoms.items() if not a.held.lenient)
    return unit.layer is None, unit.made, tuple(shapes)


# ------------------------------------------------------------------ out of order


def _joined_leftovers(base: Sequence[Unit], raw: Sequence[Unit]) -> list[UnitPair]:
    """Siblings that make up one unit of the other side, though something else is used between them."""
    pairs: list[UnitPair] = []
    for parts_of, wholes_of, base_has_parts in ((base, raw, True), (raw, base, False)):
        families: dict[str, list[Unit]] = defaultdict(list)
        for unit in parts_of:
            families[_parent(unit)].append(unit)
        taken: set[int] = set()
        for whole in wholes_of:
            candidates = [
                members
                for members in families.values()
                if not any(id(m) in taken for m in members)
                and 2 <= len(members) <= MOST_JOINED
                and joins(members, whole)
            ]
            if not candidates:
                continue
            chosen = max(
                candidates, key=lambda members: join_score(members, whole) + 2 * (members[0].numbers == whole.numbers)
            )
            taken.update(id(member) for member in chosen)
            pairs.append(_pair(chosen, [whole]) if base_has_parts else _pair([whole], chosen))
        if pairs:
            return pairs
    return pairs


def _single_leftovers(base: Sequence[Unit], raw: Sequence[Unit]) -> list[UnitPair]:
    """The best fit first; a name, or being the only one that fits, must speak for it."""
    options = [(score(one, two), i, j) for i, one in enumerate(base) for j, two in enumerate(raw) if fits(one, two)]
    by_base, by_raw = Counter(i for _, i, _ in options), Counter(j for _, _, j in options)
    pairs: list[UnitPair] = []
    done_base: set[int] = set()
    done_raw: set[int] = set()
    for _, i, j in sorted(options, key=lambda option: (-option[0], option[1], option[2])):
        if i in done_base or j in done_raw:
            continue
        named = likeness(base[i].label, raw[j].label)
        only = by_base[i] == 1 and by_raw[j] == 1
        if named < 0.3 and not only:
            continue
        done_base.add(i)
        done_raw.add(j)
        evidence = "shape" + (", names" if named >= 0.3 else "") + (", the only one that fits" if only else "")
        pairs.append(UnitPair((base[i],), (raw[j],), evidence, 0.9 if named >= 0.5 else 0.7))
    return pairs


# ------------------------------------------------------------------ stacks


def _stacks(base: Sequence[Unit], raw: Sequence[Unit]) -> tuple[list[UnitPair], list[Unit], list[Unit]]:
    """Experts as a list on one side, as one tensor with one more axis on the other."""
    pairs: list[UnitPair] = []
    for stacks_of, lists_of, base_is_stack in ((base, raw, True), (raw, base, False)):
        stacks = [u for u in stacks_of if len(u.main.shape) == 3 and u.layer is None and len(u.atoms) == 1]
        if not stacks:
            continue
        families = _families(lists_of)
        taken: set[int] = set()
        for stack in stacks:
            found = _members(stack, families, taken)
            if found:
                taken.update(id(unit) for unit in found)
                evidence = "one axis more, numbered siblings"
                left, right = ((stack,), tuple(found)) if base_is_stack else (tuple(found), (stack,))
                pairs.append(UnitPair(left, right, evidence, 0.9, stacked=True))
    base, raw = _rest(base, raw, pairs)
    return pairs, base, raw


def _families(units: Sequence[Unit]) -> dict[tuple[str, ...], list[Unit]]:
    """Matrices whose paths differ in one number, by that path; in the order of the number."""
    found: dict[tuple[str, ...], list[Unit]] = defaultdict(list)
    for unit in units:
        parts = unit.path.split(".")
        if len(unit.main.shape) == 2 and len(unit.atoms) == 1:
            for place, part in enumerate(parts):
                if part.isdigit():
                    siblings = (*parts[:place], "*", *parts[place + 1 :])
                    found[siblings].append(unit)
    for family in found.values():
        family.sort(key=lambda unit: unit.numbers)
    return {key: family for key, family in found.items() if len(family) > 1}


def _members(stack: Unit, families: dict[tuple[str, ...], list[Unit]], taken: set[int]) -> list[Unit]:
    """The siblings, or per sibling the parts in order, that fill a stack; empty when none do."""
    count, rows, columns = stack.main.shape
    best: tuple[float, list[Unit]] = (0.0, [])
    same = {
        key: family
        for key, family in families.items()
        if len(family) == count
        and _outer(family[0].numbers) == stack.numbers
        and not any(id(unit) in taken for unit in family)
    }
    for key, family in same.items():
        out, into = family[0].main.neutral
        value = 1.0 + 3 * likeness(".".join(key[:-1]), stack.path) + likeness(key[-1], stack.path.rpartition(".")[2])
        if {out, into} == {rows, columns} or (out, into) in ((rows, columns), (columns, rows)):
            best = max(best, (value, family), key=lambda option: option[0])
        for other_key, other in same.items():
            if other_key[:-1] != key[:-1] or other is family or other[0].main.neutral != (out, into):
                continue
            if {2 * out, into} == {rows, columns} and part_role(family[0]) == "gate" and part_role(other[0]) == "fc1":
                both = [unit for pair in zip(family, other, strict=True) for unit in pair]
                best = max(best, (value + 1.0, both), key=lambda option: option[0])
    return best[1]


def _outer(numbers: tuple[int, ...]) -> tuple[int, ...]:
    return numbers[:-1]
