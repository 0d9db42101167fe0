"""Sets of equal-shaped units: what tells their members apart, and what nothing but running can.

Names come first, against the order of use too: a port that uses two equal layers in the wrong order must not have
their weights exchanged. Where names say nothing, layers used one after the other go by order of use, and blocks that
repeat go alike. What is left, layers that could have been called in any order, is open.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from padiff.records import ModuleTree, Side, Usage
from padiff.weights.bundles import Bundle, Likes, likes_among
from padiff.weights.fitting import UnitPair
from padiff.weights.naming import either_way, said_by_all, told
from padiff.weights.units import Unit

Place = tuple[str, Sequence[Unit]]
"""A path, and the units that lie there."""
OPEN = 0.6
_SIDES: tuple[Side, Side] = ("base", "raw")
_MOST_NAMED = 8


@dataclass(frozen=True)
class OpenSet:
    """Bundles that nothing at rest tells apart, in all blocks that have them."""

    base: tuple[str, ...]
    raw: tuple[str, ...]
    """Names of the bundles, in the order in which they are paired."""
    around: str
    """The place in raw that they lie in, ``*`` for the numbers of blocks."""
    blocks: tuple[tuple[tuple[int, ...], ...], ...]
    """Per block and bundle the numbers of its pairs."""


class Flow:
    """Which modules of a model could have been called in any order."""

    def __init__(self, tree: ModuleTree, usage: Usage) -> None:
        self._nodes = tree.by_path()
        self._usage = usage
        self.ran = bool(usage.calls)

    def apart(self, one: Place, other: Place) -> bool:
        """Neither was given what the other had made; of tensors that one module keeps itself nobody knows."""
        if not self.ran or len({unit.node.index for unit in (*one[1], *other[1])}) == 1:
            return True
        first, second = self._span(*one), self._span(*other)
        if first is None or second is None:
            return False
        (entered, _), (_, ready) = sorted((first, second))
        return ready <= entered

    def kind(self, path: str) -> str:
        """The class of what lies at a path; nothing where that is a tensor."""
        node = self._nodes.get(path)
        return "" if node is None else node.kind

    def _span(self, path: str, units: Sequence[Unit]) -> tuple[int, int] | None:
        """When it was first called, and when what it was given was there."""
        calls, ready = self._usage.calls, self._usage.ready
        nodes = [unit.node.index for unit in units]
        own = self._nodes.get(path)
        if own is not None and own.index in ready:
            nodes = [own.index]
        spans = [(calls[node], ready[node]) for node in nodes if node in ready]
        return min(spans) if spans else None


def settle(pairs: Sequence[UnitPair], base: Flow, raw: Flow) -> tuple[list[UnitPair], list[OpenSet]]:
    """The pairs, exchanged where names or other blocks say so; what stays open is marked, and returned."""
    work = _Settling(list(pairs), base, raw)
    sets = [_Set(likes) for likes in likes_among(pairs)]
    open_ = [one for one in sets if not work.known(one)]  # asked first: names of blocks say nothing of what is in them
    for one in open_:
        work.by_names(one)
    work.alike_in_all_blocks()
    return work.pairs, work.declare()


class _Set:
    """Likes, and which bundle of base each bundle of raw is filled from."""

    def __init__(self, likes: Likes) -> None:
        self.likes, self.bundles = likes, likes.bundles
        self.base_names, self.raw_names = likes.names()
        self.source = list(range(len(likes.bundles)))
        self.untold: list[int] = []

    def numbers(self) -> list[int]:
        """Of all its pairs."""
        return [number for bundle in self.bundles for number in bundle.pairs]

    def family(self) -> object:
        """Equal for the same set in blocks that repeat."""
        return (
            _star(self.likes.base),
            _star(self.likes.raw),
            tuple(sorted(self.base_names)),
            tuple(sorted(self.raw_names)),
        )

    def by_name(self) -> tuple[tuple[str, str], ...]:
        """Raw's names with base's, as they are paired now."""
        return tuple(sorted((name, self.base_names[b]) for name, b in zip(self.raw_names, self.source, strict=True)))


class _Settling:
    def __init__(self, pairs: list[UnitPair], base: Flow, raw: Flow) -> None:
        self.pairs, self._base, self._raw = pairs, base, raw
        self._families: dict[object, list[_Set]] = defaultdict(list)
        self._moved: set[int] = set()
        """Numbers of the pairs that names have exchanged."""

    # --- names

    def by_names(self, one: _Set) -> None:
        if self._moved and not self._moved.isdisjoint(one.numbers()) and self.known(one):
            return
        norms = self._norms(one)
        found = told(one.base_names, one.raw_names, norms=norms)
        places = range(len(one.bundles))
        if not self._in_any_order(one, [place for place in found if found[place] != one.source[place]]):
            # What all of them are tells none apart, though one is called so: attn, of two attentions in a row.
            idle = self._what_they_are(one) | either_way(one.base_names, one.raw_names)
            found = told(one.base_names, one.raw_names, norms=norms, idle=idle)
        if self._counts_down(one, found):
            found = {}
        taken = set(found.values())
        one.untold = [place for place in places if place not in found]
        free = [place for place in places if place not in taken]
        kept = set(one.untold) & set(free)
        moved = zip([p for p in one.untold if p not in kept], [p for p in free if p not in kept], strict=True)
        changed = self._exchange(one, {**found, **{p: p for p in kept}, **dict(moved)})
        self._moved |= {number for place in changed for number in one.bundles[place].pairs}
        if found and (changed or not self._raw.ran):
            parallel = self._in_any_order(one, changed)
            for place in changed if self._raw.ran else found:
                if parallel:
                    self._mark(one, place, "names, shape", 1.0)
                else:
                    self._mark(one, place, "names, shape, against the order of use", 0.9, others=[place])
        if len(one.untold) > 1:
            self._families[one.family()].append(one)

    def _in_any_order(self, one: _Set, some: Sequence[int]) -> bool:
        """Whether some of a set could have been called before or after all others of it."""
        return all(self._apart(one, a, b) for a in some for b in range(len(one.bundles)) if a != b)

    def _what_they_are(self, one: _Set) -> frozenset[str]:
        base = said_by_all([self._base.kind(bundle.base) for bundle in one.bundles])
        return base | said_by_all([self._raw.kind(bundle.raw) for bundle in one.bundles])

    def known(self, one: _Set) -> bool:
        """Equal values or names that are sure decided, or nobody uses them."""
        pairs = [self.pairs[number] for number in one.numbers()]
        sure = all(pair.evidence.startswith(("values", "names")) for pair in pairs)
        idle = all(unit.use == math.inf for pair in pairs for unit in (*pair.base, *pair.raw))
        return sure or (idle and self._raw.ran)

    def _counts_down(self, one: _Set, found: Mapping[int, int]) -> bool:
        """One side numbers upwards what is used in sequence, the other downwards, as decoders do."""
        last = len(one.bundles) - 1
        return (
            last > 1
            and all(found.get(place) == last - place for place in range(last + 1))
            and set(one.base_names) != set(one.raw_names)
            and all(re.search(r"\d", name) for name in (*one.base_names, *one.raw_names))
            and not all(self._apart(one, place, place + 1) for place in range(last))
        )

    def _norms(self, one: _Set) -> bool:
        units = [unit for number in one.bundles[0].pairs for unit in self.pairs[number].base]
        return len(units) == 1 and len(units[0].main.shape) == 1

    # --- blocks that repeat

    def alike_in_all_blocks(self) -> None:
        """Each block's bundles pair as most blocks pair theirs; of two ways equally common, as the first does."""
        for family in self._families.values():
            usual = dict(Counter(one.by_name() for one in family).most_common(1)[0][0])
            for one in family:
                wanted = {place: one.base_names.index(usual[name]) for place, name in enumerate(one.raw_names)}
                for place in self._exchange(one, wanted):
                    self._mark(one, place, "as in the other blocks", 0.8)

    # --- what is open

    def declare(self) -> list[OpenSet]:
        """Bundles that no name told and that could have been called in any order, on both sides."""
        found: list[OpenSet] = []
        for family in self._families.values():
            first = family[0]
            for places in self._clusters(first):
                self._uncross(family, places)
                raw = tuple(first.raw_names[place] for place in places)
                base = tuple(first.base_names[first.source[place]] for place in places)
                blocks = []
                for one in family:
                    group = [one.raw_names.index(name) for name in raw]
                    for place in group:
                        others = [other for other in group if other != place]
                        evidence = self.pairs[one.bundles[place].pairs[0]].evidence
                        self._mark(one, place, evidence, OPEN, others=others[:_MOST_NAMED])
                    blocks.append(tuple(one.bundles[place].pairs for place in group))
                found.append(OpenSet(base, raw, _star(first.likes.raw), tuple(blocks)))
        return found

    def _uncross(self, family: Sequence[_Set], places: Sequence[int]) -> None:
        """What is open begins with the order of use, where one side's layers are used one after the other."""
        for one in family:
            if all(self._apart(one, a, b) for a, b in combinations(places, 2)):
                continue
            raw = sorted(places, key=lambda place: self._use(one.bundles[place], "raw"))
            base = sorted(places, key=lambda place: self._use(one.bundles[place], "base"))
            self._exchange(one, {place: one.source[other] for place, other in zip(raw, base, strict=True)})

    def _use(self, bundle: Bundle, side: Side) -> float:
        return min((unit.use for unit in self._units(bundle, side)), default=math.inf)

    def _units(self, bundle: Bundle, side: Side) -> list[Unit]:
        return [unit for number in bundle.pairs for unit in getattr(self.pairs[number], side)]

    def _clusters(self, one: _Set) -> list[list[int]]:
        clusters: list[list[int]] = []
        for place in one.untold:
            for cluster in clusters:
                if all(self._open(one, place, other) for other in cluster):
                    cluster.append(place)
                    break
            else:
                clusters.append([place])
        return [cluster for cluster in clusters if len(cluster) > 1]

    # --- carrying out

    def _apart(self, one: _Set, place: int, other: int) -> bool:
        a, b = one.bundles[place], one.bundles[other]
        return self._raw.apart(
            (a.raw, self._units(a, "raw")),
            (b.raw, self._units(b, "raw")),
        ) and self._base.apart(self._base_place(one, place), self._base_place(one, other))

    def _open(self, one: _Set, place: int, other: int) -> bool:
        """Whether nothing says which of two of raw's is which; of tensors that a module keeps itself not even the
        order in which the other model calls its layers does where something has crossed them."""
        units = ([u for at in (place, other) for u in self._units(one.bundles[at], side)] for side in _SIDES)
        kept = self._raw.ran and any(len({unit.node.index for unit in of_side}) == 1 for of_side in units)
        return (kept and self._crossed(one, place, other)) or self._apart(one, place, other)

    def _crossed(self, one: _Set, place: int, other: int) -> bool:
        """Whether base uses first what raw uses later."""
        first, second = ([self._use(one.bundles[at], side) for side in _SIDES] for at in (place, other))
        return all(map(math.isfinite, (*first, *second))) and (first[0] - second[0]) * (first[1] - second[1]) < 0

    def _base_place(self, one: _Set, place: int) -> Place:
        return one.bundles[one.source[place]].base, self._units(one.bundles[place], "base")

    def _exchange(self, one: _Set, wanted: Mapping[int, int]) -> list[int]:
        """Fill each bundle of raw from the wanted bundle of base; returns the places that changed."""
        now = {source: place for place, source in enumerate(one.source)}
        held = [[self.pairs[number].base for number in bundle.pairs] for bundle in one.bundles]
        changed = [place for place, source in wanted.items() if one.source[place] != source]
        for place in changed:
            for number, units in zip(one.bundles[place].pairs, held[now[wanted[place]]], strict=True):
                self.pairs[number] = replace(self.pairs[number], base=units)
        for place in changed:
            one.source[place] = wanted[place]
        return changed

    def _mark(self, one: _Set, place: int, evidence: str, confidence: float, others: Sequence[int] = ()) -> None:
        for order, number in enumerate(one.bundles[place].pairs):
            pair = self.pairs[number]
            units = tuple(self.pairs[one.bundles[other].pairs[order]].base for other in others if other != place)
            single = tuple(unit[0] for unit in units if len(unit) == len(pair.raw) == len(pair.base) == 1)
            self.pairs[number] = replace(pair, evidence=evidence, confidence=confidence, others=single)


def permuted(pairs: Sequence[UnitPair], one: OpenSet, order: Sequence[int]) -> dict[int, UnitPair]:
    """The pairs of an open set by number, with each bundle of raw filled from another of base, in all blocks alike."""
    found: dict[int, UnitPair] = {}
    for block in one.blocks:
        for place, source in enumerate(order):
            for number, other in zip(block[place], block[source], strict=True):
                found[number] = replace(pairs[number], base=pairs[other].base)
    return found


def _star(path: str) -> str:
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", path)
