"""Where every tensor of raw comes from: by the frameworks' layer tables, else by name and order. Nothing is written here."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from padiff.frameworks.layers import Stored
from padiff.frameworks.tree import LiveTree, join
from padiff.records import (
    ModuleNode,
    ModulePairs,
    TensorSpec,
    Unmatched,
    WeightEntry,
    WeightPlan,
    WeightProblem,
    WeightSource,
)
from padiff.weights.apply import build
from padiff.weights.dtypes import narrows

Special = Callable[[Any, Any], Any]
FindSpecial = Callable[[str, str, str, str], Special | None]
"""(base framework, base class, raw framework, raw class) to the user's function, if there is one."""

HINT_MAP = "a LayerMap pairs modules by hand: layer_map.map = {base_module: raw_module}, or layer_map.ignore(module)"
HINT_SPECIAL = "add_special_init(...) fills a pair of layers with a function of your own"


@dataclass(frozen=True)
class _Part:
    """One neutral part inside one tensor of base."""

    tensor: TensorSpec
    path: str
    stored: Stored
    place: int


def plan_weights(base: LiveTree, raw: LiveTree, pairs: ModulePairs, special: FindSpecial) -> WeightPlan:
    """Plan the whole copy; problems are listed with both sides, and a plan with problems must not be applied."""
    return _Planner(base, raw, special).plan(pairs)


class _Planner:
    def __init__(self, base: LiveTree, raw: LiveTree, special: FindSpecial) -> None:
        self.base, self.raw, self.find_special = base, raw, special
        self.entries: list[WeightEntry] = []
        self.problems: list[WeightProblem] = []
        self.unmatched: list[Unmatched] = []
        self.special: list[tuple[int, int, Special]] = []
        self.base_done: set[int] = set()
        self.raw_done: set[int] = set()

    def plan(self, pairs: ModulePairs) -> WeightPlan:
        for base_index, raw_index in pairs.pairs:
            self._user_function(base_index, raw_index)
        for base_index, raw_index in pairs.pairs:
            if base_index not in self.base_done and raw_index not in self.raw_done:
                self._pair(base_index, raw_index)
        self._alone(self.base, pairs.base_alone, self.base_done, "base")
        self._alone(self.raw, pairs.raw_alone, self.raw_done, "raw")
        self._ties()
        problems = sorted(self.problems, key=lambda problem: max(problem.base_node, problem.raw_node))
        return WeightPlan(tuple(self.entries), tuple(self.special), tuple(self.unmatched), tuple(problems))

    def _user_function(self, base_index: int, raw_index: int) -> None:
        base_node, raw_node = self.base.tree.nodes[base_index], self.raw.tree.nodes[raw_index]
        found = self.find_special(self.base.adapter.name, base_node.kind, self.raw.adapter.name, raw_node.kind)
        if found is not None and base_index not in self.base_done:
            self.special.append((base_index, raw_index, found))
            self.base_done.update(self.base.tree.subtree(base_index))
            self.raw_done.update(self.raw.tree.subtree(raw_index))

    def _pair(self, base_index: int, raw_index: int) -> None:
        base_node, raw_node = self.base.tree.nodes[base_index], self.raw.tree.nodes[raw_index]
        base_spec, raw_spec = self.base.layer_spec(base_index), self.raw.layer_spec(raw_index)
        if base_spec is not None and raw_spec is not None and base_spec.layer == raw_spec.layer:
            whole = base_spec.atomic
            if whole:
                self.base_done.update(self.base.tree.subtree(base_index))
                self.raw_done.update(self.raw.tree.subtree(raw_index))
            self._by_table(base_node, raw_node, base_spec.stored, raw_spec.stored, whole)
        else:
            self._by_name(base_node, raw_node)

    # --- layers both frameworks know

    def _by_table(
        self,
        base_node: ModuleNode,
        raw_node: ModuleNode,
        base_rows: Any,
        raw_rows: Any,
        whole: bool,
    ) -> None:
        parts: dict[str, _Part] = {}
        free_base: list[tuple[str, TensorSpec, str]] = []
        for name, spec, role, stored in self._rows(self.base, base_node, base_rows, whole):
            if stored is None:
                free_base.append((name, spec, role))
                continue
            for place, part in enumerate(stored.parts):
                parts.setdefault(part, _Part(spec, join(base_node.path, name), stored, place))
        used: set[str] = set()
        free_raw: list[tuple[str, TensorSpec, str]] = []
        for name, spec, role, stored in self._rows(self.raw, raw_node, raw_rows, whole):
            if stored is None:
                free_raw.append((name, spec, role))
                continue
            missing = [part for part in stored.parts if part not in parts]
            if missing:
                kept_as = "buffer" if role == "buffer" else stored.role
                self._no_partner("raw", raw_node, base_node, name, spec, kept_as, stored.optional)
                continue
            used.update(stored.parts)
            self._entry_of_parts(base_node, raw_node, name, spec, stored, [parts[part] for part in stored.parts])
        for part_name, part in parts.items():
            if part_name not in used:
                name = part.path.removeprefix(base_node.path).lstrip(".")
                self._no_partner("base", base_node, raw_node, name, part.tensor, part.stored.role, part.stored.optional)
        self._loose(base_node, raw_node, free_base, free_raw)

    def _entry_of_parts(
        self,
        base_node: ModuleNode,
        raw_node: ModuleNode,
        name: str,
        spec: TensorSpec,
        stored: Stored,
        parts: list[_Part],
    ) -> None:
        sources, shapes = [], []
        for part in parts:
            source, shape = _source(part, stored)
            sources.append(source)
            shapes.append(shape)
        joined = _joined(shapes, stored)
        flat = "flat" in (stored.convention, parts[0].stored.convention)
        if flat and math.prod(joined) == math.prod(spec.shape):
            joined = spec.shape
        if joined != spec.shape:
            self._unequal(base_node, raw_node, parts[0].path, parts[0].tensor.shape, name, spec.shape, joined)
            return
        self._add(base_node, raw_node, name, spec, stored.role, tuple(sources), parts[0].tensor.dtype, stored.along)

    # --- everything else: own tensors by name, then in order

    def _by_name(self, base_node: ModuleNode, raw_node: ModuleNode) -> None:
        self._loose(
            base_node,
            raw_node,
            list(self._tensors(self.base, base_node, whole=False)),
            list(self._tensors(self.raw, raw_node, whole=False)),
        )

    def _loose(
        self,
        base_node: ModuleNode,
        raw_node: ModuleNode,
        base: Sequence[tuple[str, TensorSpec, str]],
        raw: Sequence[tuple[str, TensorSpec, str]],
    ) -> None:
        left = {(name, role): spec for name, spec, role in base}
        right = [(name, role, spec) for name, spec, role in raw]
        waiting = []
        for name, role, spec in right:
            found = left.pop((name, role), None)
            if found is None:
                waiting.append((name, role, spec))
            else:
                self._same(base_node, raw_node, name, found, name, spec, role)
        for name, role, spec in waiting:
            key = next(
                (k for k, other in left.items() if k[1] == role == "parameter" and other.shape == spec.shape), None
            )
            key = key or next((k for k in left if k[1] == role == "parameter"), None)
            if key is None:
                self._no_partner("raw", raw_node, base_node, name, spec, role, optional=False)
            else:
                self._same(base_node, raw_node, key[0], left.pop(key), name, spec, role)
        for (name, role), spec in left.items():
            self._no_partner("base", base_node, raw_node, name, spec, role, optional=False)

    def _same(
        self,
        base_node: ModuleNode,
        raw_node: ModuleNode,
        base_name: str,
        base_spec: TensorSpec,
        raw_name: str,
        raw_spec: TensorSpec,
        role: str,
    ) -> None:
        path = join(base_node.path, base_name)
        if base_spec.shape != raw_spec.shape:
            self._unequal(base_node, raw_node, path, base_spec.shape, raw_name, raw_spec.shape, base_spec.shape)
            return
        self._add(base_node, raw_node, raw_name, raw_spec, role, (WeightSource(path),), base_spec.dtype, 0)

    # --- entries and problems

    def _add(
        self,
        base_node: ModuleNode,
        raw_node: ModuleNode,
        name: str,
        spec: TensorSpec,
        role: str,
        sources: tuple[WeightSource, ...],
        base_dtype: str,
        axis: int,
    ) -> None:
        if narrows(base_dtype, spec.dtype):
            self._problem(
                base_node,
                raw_node,
                sources[0].path,
                join(raw_node.path, name),
                f"{base_dtype} does not fit into {spec.dtype} without loss",
                "cast one of the models first, so that both hold the same dtype",
            )
            return
        evidence = "same layer" if base_node.layer and base_node.layer == raw_node.layer else "name and order"
        self.entries.append(
            WeightEntry(join(raw_node.path, name), role, sources, spec.shape, axis, evidence)  # type: ignore[arg-type]
        )

    def _unequal(
        self,
        base_node: ModuleNode,
        raw_node: ModuleNode,
        base_path: str,
        base_shape: tuple[int, ...],
        raw_name: str,
        raw_shape: tuple[int, ...],
        would_be: tuple[int, ...],
    ) -> None:
        layout = f" (in raw's layout {list(would_be)})" if would_be != base_shape else ""
        self._problem(
            base_node,
            raw_node,
            base_path,
            join(raw_node.path, raw_name),
            f"shape {list(base_shape)} of base{layout} does not fit shape {list(raw_shape)} of raw",
            "check that both layers are built with the same sizes and defined in the same order; " + HINT_MAP,
        )

    def _no_partner(
        self, side: str, node: ModuleNode, other: ModuleNode, name: str, spec: TensorSpec, role: str, optional: bool
    ) -> None:
        if optional:
            return
        path = join(node.path, name)
        if role == "parameter" and self._idle(self.base if side == "base" else self.raw, path):
            return
        other_side = "raw" if side == "base" else "base"
        why = f"{other_side} module {other.path or '(model)'} ({other.kind}) has no such {role}"
        if role == "buffer":
            self.unmatched.append(Unmatched(side, path, "buffer", why))  # type: ignore[arg-type]
            return
        base_node, raw_node = (node, other) if side == "base" else (other, node)
        self._problem(
            base_node,
            raw_node,
            path if side == "base" else other.path,
            path if side == "raw" else other.path,
            f"{role} {path} of {side}, shape {list(spec.shape)}, has no partner: {why}",
            f"give both layers the same parameters (bias, affine, ...); {HINT_SPECIAL}",
        )

    def _alone(self, live: LiveTree, alone: Sequence[int], done: set[int], side: str) -> None:
        for index in alone:
            node = live.tree.nodes[index]
            if index in done or not (node.parameters or node.buffers):
                continue
            other = "raw" if side == "base" else "base"
            why = f"no module of {other} corresponds to {node.path or '(model)'} ({node.kind})"
            for spec in node.buffers:
                self.unmatched.append(Unmatched(side, join(node.path, spec.name), "buffer", why))  # type: ignore[arg-type]
            if node.parameters:
                shapes = ", ".join(f"{spec.name} {list(spec.shape)}" for spec in node.parameters)
                self.problems.append(
                    WeightProblem(
                        base_path=node.path if side == "base" else "",
                        raw_path=node.path if side == "raw" else "",
                        base_text=node.text if side == "base" else "(none)",
                        raw_text=node.text if side == "raw" else "(none)",
                        message=f"{why}; its parameters: {shapes}",
                        hint="check that both models define the same layers in the same order; " + HINT_MAP,
                        base_node=index if side == "base" else -1,
                        raw_node=index if side == "raw" else -1,
                    )
                )

    def _problem(
        self, base_node: ModuleNode, raw_node: ModuleNode, base_path: str, raw_path: str, message: str, hint: str
    ) -> None:
        self.problems.append(
            WeightProblem(
                base_path, raw_path, base_node.text, raw_node.text, message, hint, base_node.index, raw_node.index
            )
        )

    def _ties(self) -> None:
        """Two paths of raw that are one tensor must be filled from equal tensors of base."""
        raw_tensors, base_tensors = self.raw.tensors(), self.base.tensors()
        first: dict[int, WeightEntry] = {}
        for entry in self.entries:
            other = first.setdefault(id(raw_tensors[entry.path]), entry)
            if other is entry or other.sources == entry.sources:
                continue
            ours = [id(base_tensors[source.path]) for source in entry.sources]
            theirs = [id(base_tensors[source.path]) for source in other.sources]
            if ours == theirs or self._equal_values(entry, other):
                continue
            self.problems.append(
                WeightProblem(
                    entry.sources[0].path,
                    entry.path,
                    "",
                    "",
                    f"raw ties {other.path} and {entry.path}, but base fills them from two tensors that differ, "
                    f"{other.sources[0].path} and {entry.sources[0].path}",
                    "tie them in base as well, or untie them in raw",
                )
            )

    def _equal_values(self, entry: WeightEntry, other: WeightEntry) -> bool:
        tensors = self.base.tensors()
        one, two = (
            build(e, {s.path: self.base.adapter.to_numpy(tensors[s.path]) for s in e.sources}) for e in (entry, other)
        )
        return one.shape == two.shape and bool((one == two).all())

    def _idle(self, live: LiveTree, path: str) -> bool:
        """A frozen zero that stands in for a bias left out: paddle's recurrent cells keep such."""
        tensor = live.tensors()[path]
        return not live.adapter.requires_grad(tensor) and not live.adapter.to_numpy(tensor).any()

    def _rows(
        self, live: LiveTree, node: ModuleNode, rows: Any, whole: bool
    ) -> list[tuple[str, TensorSpec, str, Stored | None]]:
        """A layer's tensors with their row, each once: of several names, the one the table knows."""
        by_identity: dict[int, tuple[str, TensorSpec, str, Stored | None]] = {}
        for name, spec, role in self._tensors(live, node, whole):
            known = by_identity.get(spec.identity)
            if known is None or (known[3] is None and match_row(rows, name) is not None):
                by_identity[spec.identity] = (name, spec, role, match_row(rows, name))
        return list(by_identity.values())

    def _tensors(self, live: LiveTree, node: ModuleNode, whole: bool) -> list[tuple[str, TensorSpec, str]]:
        """Tensors of a module with their path relative to it; with ``whole``, those of its children too."""
        found: list[tuple[str, TensorSpec, str]] = []
        for index in live.tree.subtree(node.index) if whole else [node.index]:
            inner = live.tree.nodes[index]
            prefix = inner.path.removeprefix(node.path).lstrip(".")
            for role, specs in (("parameter", inner.parameters), ("buffer", inner.buffers)):
                found += [(join(prefix, spec.name), spec, role) for spec in specs]
        return found


def match_row(rows: Any, name: str) -> Stored | None:
    """The row for a tensor's name, ``*`` filled in."""
    if name in rows:
        found: Stored = rows[name]
        return found
    for pattern, stored in rows.items():
        if "*" not in pattern:
            continue
        hit = re.fullmatch(re.escape(pattern).replace(r"\*", "(.*)"), name)
        if hit:
            text = hit.group(1)
            parts = tuple(part.replace("*", text) for part in stored.parts)
            return Stored(parts, stored.axes, stored.along, stored.role, stored.optional, stored.convention)
    return None


def _source(part: _Part, target: Stored) -> tuple[WeightSource, tuple[int, ...]]:
    """The cut and the turn that bring a part of base into raw's layout, and the shape it then has."""
    shape, axes = part.tensor.shape, part.stored.axes
    start = stop = None
    if len(part.stored.parts) > 1:
        size = shape[part.stored.along] // len(part.stored.parts)
        start, stop = size * part.place, size * (part.place + 1)
        shape = (*shape[: part.stored.along], size, *shape[part.stored.along + 1 :])
    permute = None
    if (
        axes
        and target.axes
        and sorted(axes.replace("1", "")) == sorted(target.axes.replace("1", ""))
        and len(axes) == len(shape)
    ):
        order = [axes.index(letter) for letter in target.axes if letter != "1"]
        shape = tuple(shape[place] for place in order)
        order += [place for place, letter in enumerate(axes) if letter == "1"]
        if order != sorted(order):
            permute = tuple(order)
    return WeightSource(part.path, permute, part.stored.along, start, stop), shape


def _joined(shapes: Sequence[tuple[int, ...]], stored: Stored) -> tuple[int, ...]:
    """Shape of the parts joined along raw's axis, with raw's axes of length one put in."""
    shape = list(shapes[0])
    if len(shapes) > 1:
        shape[stored.along] = sum(part[stored.along] for part in shapes)
    if "1" in stored.axes:
        letters = iter(shape)
        return tuple(1 if letter == "1" else next(letters, 0) for letter in stored.axes)
    return tuple(shape)
