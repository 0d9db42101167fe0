"""Compares what belongs to modules rather than calls: gradients of parameters, weights, buffers, the loss."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from padiff.compare.arrays import compare_arrays, missing
from padiff.compare.given import as_kept
from padiff.compare.tolerance import predicting
from padiff.engine.free.side_by_side import NOISE_OF_SUMS
from padiff.engine.free.where_they_lie import compared_there, size_of
from padiff.engine.gallery import Gallery
from padiff.engine.job import Job
from padiff.engine.shared import shared_in_base, under_all_paths, under_other_names
from padiff.frameworks.tree import join
from padiff.records import (
    Array,
    Comparison,
    ModuleNode,
    ModuleTree,
    Noise,
    Outcome,
    Phase,
    Role,
    Tolerance,
    Value,
    WeightEntry,
    WeightPlan,
)
from padiff.weights import build


class State:
    """Compares what belongs to modules rather than calls: gradients of parameters, weights, buffers, the loss."""

    def __init__(self, job: Job, plan: WeightPlan, step: int, noise: Noise | None = None) -> None:
        self._job, self._plan, self._step, self._noise = job, plan, step, noise
        self._gallery = Gallery()
        self._shared = {entry.path: group for group in shared_in_base(job, plan) for entry in group}
        self._other_names = under_other_names(job, plan, self._shared)
        """Of what is in these, as raw ties it, too."""
        self._owners = {side: _owners(live.tree) for side, live in (("base", job.base), ("raw", job.raw))}

    def with_buffers_of(self, noise: Noise | None) -> State:
        """The same, where calls by themselves move buffers further than the whole run does: a norm's mean is nothing
        after another norm, until what is between is rounded."""
        if self._noise is None or noise is None or not noise.buffers:
            return self
        own = self._noise.buffers
        further = {path: max(moved, noise.buffers.get(path, 0.0)) for path, moved in own.items()}
        return State(self._job, self._plan, self._step, replace(self._noise, buffers=further))

    def loss(self, base: Value | None, raw: Value | None, compared: Iterable[Comparison]) -> list[Comparison]:
        """The loss against the loss; a sum of terms that cancel is as uncertain as its terms, which are among what is
        ``compared``."""
        if base is None and raw is None:
            return []
        tolerance = self._job.tolerance
        if self._noise is not None and self._noise.loss is not None and math.isfinite(self._noise.loss):
            tolerance = replace(tolerance, predicted=self._noise.loss, sums=True)
        elif tolerance.mode == "auto":
            returned = [c for c in compared if c.raw_path == "" and c.role == "output" and c.phase == "forward"]
            sizes = [c.outcome.numbers.base_rms for c in returned if c.outcome.numbers is not None]
            tolerance = replace(tolerance, atol=NOISE_OF_SUMS * max(sizes, default=0.0))
        if base is None or raw is None:
            outcome = missing("only one of the models yields a loss")
        elif base.shape != raw.shape:  # a scalar is a scalar, with or without an axis of length one
            outcome = self._compared("forward", base.numpy().reshape(()), raw.numpy().reshape(()), tolerance)
        else:
            outcome = self._compared("forward", base.numpy(), raw.numpy(), tolerance)
        base_root, raw_root = self._job.base.tree.nodes[0], self._job.raw.tree.nodes[0]
        kinds = (base_root.kind, raw_root.kind)
        return self._gallery.hung([Comparison("forward", self._step, "loss", "", "", *kinds, "loss", outcome)])

    def _compared(self, phase: Phase, base: Array, raw: Array, tolerance: Tolerance) -> Outcome:
        outcome = compare_arrays(base, raw, tolerance)
        if phase == "buffer":
            outcome = as_kept(base, raw, outcome)
        if not outcome.agrees:
            self._gallery.see(phase, outcome, base, raw)
        return outcome

    def tensors(
        self, phase: Phase, role: Role, base: Mapping[str, Value | None], raw: Mapping[str, Value | None]
    ) -> list[Comparison]:
        base, raw = under_all_paths(self._job.base, base), under_all_paths(self._job.raw, raw)
        tolerance = self._job.tolerance
        if tolerance.mode == "auto" and phase == "gradient" and self._noise is None:
            tolerance = replace(tolerance, atol=NOISE_OF_SUMS * _largest(base.values()))
        found: list[Comparison] = []
        for entry in self._plan.entries:
            if entry.role != role or entry.path not in raw or not entry.sources:
                continue
            shared = self._shared.get(entry.path, ()) if phase == "gradient" else ()
            if phase == "gradient" and entry.path in self._other_names:
                continue
            if shared:
                if entry is shared[0]:
                    summed = self._sum_of(shared, base.get(entry.sources[0].path), raw, tolerance)
                    found.append(self._comparison(phase, role, entry, summed))
                continue
            values = [base.get(source.path) for source in entry.sources]
            outcome = self._outcome(phase, entry, values, raw[entry.path], self._allowed(phase, entry, tolerance))
            if outcome is not None:
                found.append(self._comparison(phase, role, entry, outcome))
        return self._gallery.hung(found)

    def _allowed(self, phase: Phase, entry: WeightEntry, tolerance: Tolerance) -> Tolerance:
        if self._noise is None:
            return tolerance
        known = {
            "gradient": self._noise.parameters,
            "buffer": self._noise.buffers,
            "weight": self._noise.weights,
        }.get(phase, {})
        predicted = max(known.get(source.path, math.inf) for source in entry.sources)
        if not math.isfinite(predicted):
            return tolerance
        return predicting(tolerance, predicted, sums=phase != "weight", atol=0.0)

    def _outcome(
        self, phase: Phase, entry: WeightEntry, base: Sequence[Value | None], raw: Value | None, tolerance: Tolerance
    ) -> Outcome | None:
        alone = base[0] if len(base) == 1 and entry.as_it_is else None
        there = None if raw is None or alone is None else compared_there(alone, raw, tolerance)
        if there is not None:
            return there
        held = [value.numpy() for value in base if value is not None]
        if raw is not None and 0 < len(held) < len(base):  # a fused tensor, of which base keeps a part as a buffer
            tensors = self._job.base.tensors()
            shapes = [self._job.base.adapter.shape(tensors[source.path]) for source in entry.sources]
            zeros = [np.zeros(shape, held[0].dtype) for shape in shapes]
            held = [zero if one is None else one.numpy() for one, zero in zip(base, zeros, strict=True)]
        if raw is None and not held:
            return None
        if raw is None:
            frozen = self._frozen("raw", entry.path)
            return missing(f"base has it, raw has none{frozen}") if any(array.any() for array in held) else None
        if len(held) < len(base):
            frozen = self._frozen("base", entry.sources[0].path)
            return missing(f"raw has it, base has none{frozen}") if raw.numpy().any() else None
        expected = build(entry, {s.path: array for s, array in zip(entry.sources, held, strict=True)})
        return self._compared(phase, expected, raw.numpy(), tolerance)

    def _sum_of(
        self, shared: Sequence[WeightEntry], base: Value | None, raw: Mapping[str, Value | None], tolerance: Tolerance
    ) -> Outcome:
        """The gradient of a tensor that raw keeps several times: each has its share."""
        shares = []
        for entry in shared:
            value = raw.get(entry.path)
            if value is not None:
                order = entry.sources[0].permute
                array = value.numpy()
                shares.append(array if order is None else array.transpose(np.argsort(order)))
        if base is None or not shares:
            return missing("only one of the models has a gradient for it")
        return self._compared("gradient", base.numpy(), sum(shares[1:], shares[0]).reshape(base.shape), tolerance)

    def _frozen(self, side: str, path: str) -> str:
        live = self._job.base if side == "base" else self._job.raw
        return "" if live.adapter.requires_grad(live.tensors()[path]) else f": it is frozen in {side}"

    def _comparison(self, phase: Phase, role: Role, entry: WeightEntry, outcome: Outcome) -> Comparison:
        (base_node, base_unit), (raw_node, raw_unit) = (
            self._owners["base"][entry.sources[0].path],
            self._owners["raw"][entry.path],
        )
        one_layer = base_unit.layer is not None and base_unit.layer == raw_unit.layer
        if one_layer or (base_unit.atomic and raw_unit.atomic):  # inside, each keeps its tensors where it likes
            base_node, raw_node = base_unit, raw_unit
        name = entry.path.removeprefix(raw_node.path).lstrip(".")
        sources = tuple(source.path for source in entry.sources)
        kinds = (base_node.kind, raw_node.kind)
        return Comparison(
            *(phase, self._step, role, base_node.path, raw_node.path, *kinds, name, outcome),
            sources=() if sources == (entry.path,) else sources,
        )


def _owners(tree: ModuleTree) -> dict[str, tuple[ModuleNode, ModuleNode]]:
    """Path of every tensor to its module, and to the layer matched as one thing that this is part of, or itself."""
    found: dict[str, tuple[ModuleNode, ModuleNode]] = {}
    unit: list[ModuleNode] = []
    for node in tree.nodes:
        above = unit[node.parent] if node.parent >= 0 else node
        unit.append(above if above.atomic else node)
        for spec in (*node.parameters, *node.buffers):
            found[join(node.path, spec.name)] = (node, unit[node.index])
    return found


def _largest(values: Iterable[Value | None]) -> float:
    """The largest root mean square among some tensors."""
    return max((size_of(value) for value in values if value is not None), default=0.0)
