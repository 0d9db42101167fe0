"""The plan for models of different make: units in order of use, assigned, composed and checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from padiff.frameworks.tree import LiveTree
from padiff.records import (
    Anchors,
    Unmatched,
    Usage,
    WeightEntry,
    WeightPlan,
    WeightProblem,
    WeightSource,
)
from padiff.weights import problems
from padiff.weights.anchors import anchors_of
from padiff.weights.apply import build
from padiff.weights.assign import assign
from padiff.weights.choices import Question, questions_of
from padiff.weights.compose import compose
from padiff.weights.containers import moved_along
from padiff.weights.dtypes import loses
from padiff.weights.fitting import UnitPair
from padiff.weights.leftovers import frozen_and_buffers
from padiff.weights.repeated import repeated
from padiff.weights.rows import Held
from padiff.weights.sets import Flow, settle
from padiff.weights.telling import by_values, rest
from padiff.weights.unfilled import Beside, without_partner
from padiff.weights.units import Unit, units_of
from padiff.weights.up_and_down import without_synonyms
from padiff.weights.wrappers import at_wrapper

MOST_EXTRA = 0.1
"""Share of raw's parameters that may be without source when all of base's have found a place: a head too many."""


class Proposal:
    """A plan for models of different make, and what it says about the modules."""

    def __init__(
        self,
        plan: WeightPlan,
        pairs: Sequence[UnitPair],
        questions: Sequence[Question],
        lives: tuple[LiveTree, LiveTree],
        uses: tuple[Usage, Usage],
    ) -> None:
        self.plan = plan
        self._pairs, self._questions, self._lives, self._uses = pairs, questions, lives, uses

    def anchors(self, plan: WeightPlan) -> Anchors:
        """What the plan, with its choices settled, says about the modules."""
        changed: dict[int, UnitPair] = {}
        for question, choice in zip(self._questions, plan.choices, strict=True):
            changed |= question.options[choice.chosen].pairs
        pairs = [changed.get(n, pair) for n, pair in enumerate(self._pairs)]
        return anchors_of(pairs, *self._lives, *self._uses)


def plan_by_use(
    base: LiveTree,
    raw: LiveTree,
    base_use: Usage,
    raw_use: Usage,
    skip: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset()),
    *,
    values: bool = False,
    lossy: bool = False,
) -> Proposal:
    """Where every tensor of raw comes from, and what that says about the modules; ``skip`` are paths left out.

    ``lossy``: raw holds narrower numbers on purpose, and base's are rounded to them.
    """
    base_units = [unit for unit in units_of(base, base_use, values=values) if unit.node.path not in skip[0]]
    raw_units = [unit for unit in units_of(raw, raw_use, values=values) if unit.node.path not in skip[1]]
    base_units, raw_units = without_synonyms(base_units, raw_units)
    pairs, base_left, raw_left = assign(base_units, raw_units, values=values)
    kept = (partial(_frozen, base), partial(_frozen, raw))
    tables = frozen_and_buffers(base_left, raw_left, kept, partial(_unmade, base, raw))
    pairs += tables
    base_left, raw_left = rest(base_left, raw_left, tables)
    pairs, sets = settle(moved_along(pairs), Flow(base.tree, base_use), Flow(raw.tree, raw_use))
    copies, raw_left = repeated(pairs, raw_left, base_use)
    every = [*pairs, *copies]
    questions = questions_of(every, sets, base, raw)
    tied, raw_left = _tied(base_units, raw_left)
    plan = _Checked(base, raw, bool(raw_use.tensors), lossy).plan(every, tied, base_left, raw_left)
    plan = replace(plan, choices=tuple(question.choice() for question in questions))
    wrapped = [at_wrapper(pair, (base, raw), (base_use, raw_use)) for pair in pairs]
    return Proposal(plan, wrapped, questions, (base, raw), (base_use, raw_use))


def hold_the_same(base: LiveTree, raw: LiveTree, use: Usage) -> bool:
    """Whether most of what both models hold are the same numbers, by order of base's ``use``."""
    return bool(by_values(units_of(base, use, values=True), units_of(raw, Usage(), values=True)))


def _frozen(live: LiveTree, unit: Unit) -> bool:
    """Whether nobody trains a parameter."""
    return not live.adapter.requires_grad(live.tensors()[unit.main.held.path])


def _unmade(base: LiveTree, raw: LiveTree, ours: Unit, theirs: Unit) -> bool:
    """Whether a table of raw's holds one number throughout, which nobody has made, or was given base's already."""
    one, other = (
        live.adapter.to_numpy(live.tensors()[unit.main.held.path]).ravel()
        for live, unit in ((base, ours), (raw, theirs))
    )
    return bool((other == other[0]).all() or np.array_equal(one, other))


def _tied(base: Sequence[Unit], raw_left: Sequence[Unit]) -> tuple[list[UnitPair], list[Unit]]:
    """A head of raw that base computes from its embedding: filled from the embedding. A table that raw makes itself is
    no head."""
    pairs: list[UnitPair] = []
    rest: list[Unit] = []
    tables = [unit for unit in base if unit.layer == "embedding"]
    for unit in raw_left:
        source = next((table for table in tables if _same_table(table, unit)), None)
        if source is None or "bias" in unit.atoms or unit.main.held.role != "parameter":
            rest.append(unit)
        else:
            pairs.append(UnitPair((source,), (unit,), "base computes it from its embedding", 0.8))
    return pairs, rest


def _same_table(table: Unit, unit: Unit) -> bool:
    one, two = table.main.shape, unit.main.neutral
    return len(unit.main.shape) == 2 and unit.layer in ("linear", "embedding", None) and one in (two, two[::-1])


class _Checked:
    """Composes entries and lists what stands in the way or has no partner."""

    def __init__(self, base: LiveTree, raw: LiveTree, ran: bool, lossy: bool) -> None:
        self.base, self.raw, self.ran, self.lossy = base, raw, ran, lossy
        self.base_tensors, self.raw_tensors = base.tensors(), raw.tensors()

    def plan(
        self, pairs: Sequence[UnitPair], tied: Sequence[UnitPair], base_left: Sequence[Unit], raw_left: Sequence[Unit]
    ) -> WeightPlan:
        entries: list[WeightEntry] = []
        found: list[WeightProblem] = []
        for source, target, entry in (*compose(pairs), *_composed_ties(tied)):
            if not self.lossy and loses(source.spec.dtype, target.spec.dtype, partial(self._array, source)):
                found.append(problems.narrowing(source, target))
            entries.append(entry)
        found += self._ties(pairs)
        unmatched: list[Unmatched] = []
        filled = {id(self.raw_tensors[entry.path]) for entry in entries}
        read = {id(self.base_tensors[source.path]) for entry in entries for source in entry.sources}
        base_left = [  # a tensor under another name is no other tensor
            unit
            for unit in base_left
            if any(id(self.base_tensors[a.held.path]) not in read for a in unit.atoms.values())
        ]
        extra = [unit for unit in raw_left if self.ran and unit.use < math.inf and unit.required]
        none_left = not any(unit.use < math.inf and unit.required and self._learnt(unit) for unit in base_left)
        few = self.ran and none_left and len(extra) <= MOST_EXTRA * len(self.raw.parameters())
        missing: list[Held] = []
        beside = Beside(self.raw.tree, pairs) if self.ran and none_left else None
        for unit in raw_left:
            wraps = beside is not None and beside.one_layer(unit)
            self._left_of_raw(unit, filled, unmatched, missing, excused=few, wraps=wraps)
        found += without_partner(self.base.tree, self.raw.tree, pairs, missing, base_left)
        for unit in base_left:
            used = unit.use < math.inf or not self.ran
            why = "raw has no place for it" if used else "base never uses it, and raw has no place for it"
            unmatched += [Unmatched("base", atom.held.path, atom.held.role, why) for atom in unit.atoms.values()]
        return WeightPlan(tuple(entries), (), tuple(unmatched), tuple(found))

    def _learnt(self, unit: Unit) -> bool:
        """A frozen table may be what raw computes for itself."""
        return any(self.base.adapter.requires_grad(self.base_tensors[a.held.path]) for a in unit.atoms.values())

    def _ties(self, pairs: Sequence[UnitPair]) -> list[WeightProblem]:
        """Two paths of raw that are one tensor must be filled from equal tensors of base."""
        first: dict[int, WeightEntry] = {}
        found: list[WeightProblem] = []
        for pair in pairs:
            for _, _, entry in compose([pair]):
                other = first.setdefault(id(self.raw_tensors[entry.path]), entry)
                if other.sources != entry.sources and not self._equal(entry, other):
                    nodes = (pair.base[0].node, pair.raw[0].node)
                    found.append(problems.tied_apart(*nodes, entry, other))
        return found

    def _equal(self, entry: WeightEntry, other: WeightEntry) -> bool:
        one, two = (
            build(e, {s.path: self.base.adapter.to_numpy(self.base_tensors[s.path]) for s in e.sources})
            for e in (entry, other)
        )
        return one.shape == two.shape and one.tobytes() == two.tobytes()

    def _left_of_raw(
        self,
        unit: Unit,
        filled: set[int],
        unmatched: list[Unmatched],
        missing: list[Held],
        *,
        excused: bool,
        wraps: bool,
    ) -> None:
        """What base does not fill: of no account, or a few extras that may not matter, or a problem."""
        for atom in unit.atoms.values():
            held = atom.held
            if id(self.raw_tensors[held.path]) in filled or (held.stored is not None and held.stored.optional):
                continue
            why = "base has nothing that fills it"
            if held.lenient or (self.ran and unit.use == math.inf):
                why += "" if held.lenient else ", and raw never uses it"
                unmatched.append(Unmatched("raw", held.path, held.role, why, idle=True))
            elif wraps:
                why += "; it stands beside one of base's layers, in a module that wraps it, and keeps what it holds"
                unmatched.append(Unmatched("raw", held.path, held.role, why, idle=True))
            elif excused:
                unmatched.append(Unmatched("raw", held.path, held.role, why))
            else:
                missing.append(held)

    def _array(self, held: Held) -> Any:
        return self.base.adapter.to_numpy(self.base_tensors[held.path])


def _composed_ties(pairs: Sequence[UnitPair]) -> list[tuple[Held, Held, WeightEntry]]:
    entries = []
    for pair in pairs:
        source, target = pair.base[0].main, pair.raw[0].main
        permute = None if source.shape == target.shape else (1, 0)
        held = target.held
        entry = WeightEntry(
            held.path,
            source.held.role,
            (WeightSource(source.held.path, permute),),
            held.spec.shape,
            evidence=pair.evidence,
            confidence=pair.confidence,
        )
        entries.append((source.held, held, entry))
    return entries
