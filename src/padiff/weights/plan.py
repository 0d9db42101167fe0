"""Where every tensor of raw comes from: by the layer tables, else by name and order. Nothing is written here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from padiff.frameworks.layers import LayerSpec
from padiff.frameworks.tree import LiveTree
from padiff.records import (
    ModuleNode,
    ModulePairs,
    Side,
    Unmatched,
    WeightEntry,
    WeightPlan,
    WeightProblem,
    WeightSource,
)
from padiff.weights import problems
from padiff.weights.apply import build
from padiff.weights.dtypes import loses
from padiff.weights.loose import pair_across, pair_within
from padiff.weights.remade import MADE_OF, WHOLE, Make, remade, stand_in
from padiff.weights.rows import Held, Part, joined_shape, parts_of, rows_of, source_of, tensors_of

Special = Callable[[Any, Any], Any]
FindSpecial = Callable[[str, str, str, str], Special | None]
"""(base framework, base class, raw framework, raw class) to the user's function, if there is one."""

KEEPERS = frozenset({None, "parameter_list", "parameter_dict", "sequential", "module_list", "module_dict"})
"""Modules whose tensors say nothing about themselves but name and shape: they may as well live elsewhere."""


def plan_weights(
    base: LiveTree, raw: LiveTree, pairs: ModulePairs, special: FindSpecial, *, lossy: bool = False
) -> WeightPlan:
    """Plan the whole copy; problems are listed with both sides, and a plan with problems must not be applied.

    ``lossy``: raw holds narrower numbers on purpose, and base's are rounded to them.
    """
    return _Planner(base, raw, pairs, special, lossy).plan()


class _Planner:
    def __init__(self, base: LiveTree, raw: LiveTree, pairs: ModulePairs, special: FindSpecial, lossy: bool) -> None:
        self.base, self.raw, self.pairs, self.find_special, self.lossy = base, raw, pairs, special, lossy
        self.live: dict[Side, LiveTree] = {"base": base, "raw": raw}
        self.tensors = {"base": base.tensors(), "raw": raw.tensors()}
        self.partner: dict[Side, dict[int, int]] = {"base": dict(pairs.pairs), "raw": pairs.base_of()}
        self.entries: list[WeightEntry] = []
        self.problems: list[WeightProblem] = []
        self.unmatched: list[Unmatched] = []
        self.special: list[tuple[int, int, Special]] = []
        self.done: dict[Side, set[int]] = {"base": set(), "raw": set()}
        self.left: dict[Side, list[Held]] = {"base": [], "raw": []}
        """Tensors that found no partner in the module their own belongs to."""

    def plan(self) -> WeightPlan:
        for base_index, raw_index in self.pairs.pairs:
            self._user_function(base_index, raw_index)
        for base_index, raw_index in self.pairs.pairs:
            if base_index not in self.done["base"] and raw_index not in self.done["raw"]:
                self._pair(base_index, raw_index)
        self._alone("base", self.pairs.base_alone)
        self._alone("raw", self.pairs.raw_alone)
        self._across()
        self._report("base")
        self._report("raw")
        self._ties()
        found = sorted(self.problems, key=lambda problem: max(problem.base_node, problem.raw_node))
        return WeightPlan(tuple(self.entries), tuple(self.special), tuple(self.unmatched), tuple(found))

    def _user_function(self, base_index: int, raw_index: int) -> None:
        base_node, raw_node = self.base.tree.nodes[base_index], self.raw.tree.nodes[raw_index]
        found = self.find_special(self.base.adapter.name, base_node.kind, self.raw.adapter.name, raw_node.kind)
        if found is not None and base_index not in self.done["base"]:
            self.special.append((base_index, raw_index, found))
            self._finish(base_index, raw_index)

    def _finish(self, base_index: int, raw_index: int) -> None:
        """Everything below the two is dealt with."""
        self.done["base"].update(self.base.tree.subtree(base_index))
        self.done["raw"].update(self.raw.tree.subtree(raw_index))

    def _pair(self, base_index: int, raw_index: int) -> None:
        base_node, raw_node = self.base.tree.nodes[base_index], self.raw.tree.nodes[raw_index]
        base_spec, raw_spec = self.base.layer_spec(base_index), self.raw.layer_spec(raw_index)
        if base_spec is not None and raw_spec is not None and base_spec.layer == raw_spec.layer:
            self._by_table(base_node, raw_node, base_spec, raw_spec)
        else:
            self._by_name(tensors_of(self.base, base_node), tensors_of(self.raw, raw_node))

    # --- layers both frameworks know

    def _by_table(self, base_node: ModuleNode, raw_node: ModuleNode, base_spec: LayerSpec, raw_spec: LayerSpec) -> None:
        whole = base_spec.atomic or raw_spec.atomic
        if whole:
            self._finish(base_node.index, raw_node.index)
        base = rows_of(self.base, base_node, base_spec.stored, whole)
        raw = rows_of(self.raw, raw_node, raw_spec.stored, whole)
        parts, used, own = parts_of(base), set[str](), parts_of(raw)
        for held in raw:
            if held.stored is None or not held.stored.parts:
                continue
            names = [name if name in parts else stand_in(name, parts) for name in held.stored.parts]
            known = [name for name in names if name is not None]
            make = remade(held, own, parts) if len(known) < len(names) else None
            if make is not None:
                used.update(MADE_OF[held.stored.parts[0]])
                self._make(held, make)
            elif len(known) == len(names):
                used.update(known, MADE_OF[WHOLE] if known == [WHOLE] else ())
                self._from_parts(held, [parts[name] for name in known])
            elif not held.stored.optional:
                self.left["raw"].append(held)
        unused = {id(part.held): part.held for name, part in parts.items() if name not in used}
        self.left["base"] += [held for held in unused.values() if held.stored and not held.stored.optional]
        self._by_name([held for held in base if held.stored is None], [held for held in raw if held.stored is None])

    def _from_parts(self, raw: Held, parts: list[Part]) -> None:
        assert raw.stored is not None
        sources, shapes = zip(*(source_of(part, raw.stored) for part in parts), strict=True)
        joined = joined_shape(shapes, raw.stored)
        flat = "flat" in (raw.stored.convention, parts[0].stored.convention)
        if flat and math.prod(joined) == math.prod(raw.spec.shape):
            joined = raw.spec.shape
        if joined != raw.spec.shape:
            self.problems.append(problems.unequal_shapes(parts[0].held, raw, joined))
        else:
            self._add(parts[0].held, raw, sources, raw.stored.along)

    def _make(self, raw: Held, make: Make) -> None:
        self.entries.append(WeightEntry(raw.path, raw.role, (), raw.spec.shape, evidence="same layer", function=make))

    # --- everything else: own tensors by name, then in order

    def _by_name(self, base: Sequence[Held], raw: Sequence[Held]) -> None:
        pairs, base_left, raw_left = pair_within(base, raw)
        self._add_all(pairs)
        self.left["base"] += base_left
        self.left["raw"] += raw_left

    def _alone(self, side: Side, alone: Sequence[int]) -> None:
        for index in alone:
            if index not in self.done[side]:
                self.left[side] += tensors_of(self.live[side], self.live[side].tree.nodes[index])

    def _across(self) -> None:
        """What is left over on both sides, wherever it lives."""
        loose = {side: [h for h in held if h.owner.layer in KEEPERS] for side, held in self.left.items()}
        pairs, _, _ = pair_across(loose["base"], loose["raw"])
        self._add_all(pairs)
        done = {id(held) for pair in pairs for held in pair}
        for side, left in self.left.items():
            self.left[side] = [held for held in left if id(held) not in done]

    def _add_all(self, pairs: Sequence[tuple[Held, Held]]) -> None:
        for base, raw in pairs:
            if base.spec.shape != raw.spec.shape and not (_one(base.spec.shape) and _one(raw.spec.shape)):
                self.problems.append(problems.unequal_shapes(base, raw, base.spec.shape))
            else:
                self._add(base, raw, (WeightSource(base.path),), 0)

    def _add(self, base: Held, raw: Held, sources: tuple[WeightSource, ...], axis: int) -> None:
        if not self.lossy and loses(base.spec.dtype, raw.spec.dtype, lambda: self._array("base", base.path)):
            self.problems.append(problems.narrowing(base, raw))
            return
        known = base.owner.layer is not None and base.owner.layer == raw.owner.layer
        evidence = "same layer" if known else "name and order"
        self.entries.append(
            WeightEntry(
                raw.path, base.role, sources, raw.spec.shape, axis, evidence=evidence, written=not raw.spec.computed
            )
        )

    # --- what is left without partner

    def _report(self, side: Side) -> None:
        """List what has no partner; a parameter that base does not fill, or raw has no place for, is a problem."""
        copied = self._copied(side)
        missing: dict[int, list[Held]] = {}
        for held in self.left[side]:
            tied = copied.get(held.spec.identity)
            if tied is not None:
                self._leave(side, held, f"it is one tensor with {tied}, which is copied")
            elif held.role == "parameter" and self._idle(side, held.path):
                continue
            elif held.lenient:
                self._leave(side, held, self._why(side, held))
            else:
                missing.setdefault(held.owner.index, []).append(held)
        for index, tensors in missing.items():
            partner = self._partner(side, index)
            if partner is not None:
                self.problems += [problems.no_tensor(side, held, partner) for held in tensors]
            else:
                node = self.live[side].tree.nodes[index]
                self.problems.append(
                    problems.no_module(side, node, tensors, self._near(side, node), self._waiting(side))
                )

    def _leave(self, side: Side, held: Held, why: str) -> None:
        self.unmatched.append(Unmatched(side, held.path, held.role, why, idle=True))

    def _copied(self, side: Side) -> dict[int, str]:
        """Identity to path of the tensors that the plan reads, or writes."""
        if side == "raw":
            return {id(self.tensors["raw"][entry.path]): entry.path for entry in self.entries}
        return {id(self.tensors["base"][s.path]): s.path for entry in self.entries for s in entry.sources}

    def _partner(self, side: Side, index: int) -> ModuleNode | None:
        found = self.partner[side].get(index)
        return None if found is None else self.live[_other(side)].tree.nodes[found]

    def _why(self, side: Side, held: Held) -> str:
        if held.stored is not None and held.role != held.stored.role:
            return "the layer computes it from its other tensors"  # weight_norm and spectral_norm of paddle
        partner = self._partner(side, held.owner.index)
        if partner is not None:
            return problems.no_such(held, _other(side), partner)
        return f"no module of {_other(side)} corresponds to {held.owner.path or '(model)'} ({held.owner.kind})"

    def _near(self, side: Side, node: ModuleNode) -> ModuleNode:
        """Where the other model would have a module: in the partner of the nearest paired module around it."""
        nodes = self.live[side].tree.nodes
        while node.parent >= 0:
            node = nodes[node.parent]
            found = self._partner(side, node.index)
            if found is not None:
                return found
        return self.live[_other(side)].tree.nodes[0]

    def _waiting(self, side: Side) -> list[ModuleNode]:
        """Modules of the other model that hold parameters and have no partner either."""
        other = _other(side)
        alone = self.pairs.raw_alone if other == "raw" else self.pairs.base_alone
        nodes = [self.live[other].tree.nodes[index] for index in alone if index not in self.done[other]]
        return [node for node in nodes if node.parameters]

    def _idle(self, side: Side, path: str) -> bool:
        """A frozen zero that stands in for a bias left out: paddle's recurrent cells keep such."""
        adapter = self.live[side].adapter
        return not adapter.requires_grad(self.tensors[side][path]) and not self._array(side, path).any()

    def _array(self, side: Side, path: str) -> Any:
        return self.live[side].adapter.to_numpy(self.tensors[side][path])

    # --- tied tensors

    def _ties(self) -> None:
        """Two paths of raw that are one tensor must be filled from equal tensors of base."""
        first: dict[int, WeightEntry] = {}
        for entry in self.entries:
            other = first.setdefault(id(self.tensors["raw"][entry.path]), entry)
            made = entry.function is not None or other.function is not None
            if other is not entry and not made and not self._equal_values(entry, other):
                base_node = _owner(self.base, entry.sources[0].path)
                self.problems.append(problems.tied_apart(base_node, _owner(self.raw, entry.path), entry, other))

    def _equal_values(self, entry: WeightEntry, other: WeightEntry) -> bool:
        if entry.sources == other.sources:
            return True
        one, two = (build(e, {s.path: self._array("base", s.path) for s in e.sources}) for e in (entry, other))
        return one.shape == two.shape and one.tobytes() == two.tobytes()


def _other(side: Side) -> Side:
    return "raw" if side == "base" else "base"


def _owner(live: LiveTree, path: str) -> ModuleNode:
    return live.tree.by_path()[path.rpartition(".")[0]]


def _one(shape: tuple[int, ...]) -> bool:
    """A single number, with or without axes of length one."""
    return all(size == 1 for size in shape)
