"""The engine behind both doors: run both models step by step, compare as they run, stop where they part."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from padiff.align import CallPairing, pair_modules
from padiff.capture.session import Session
from padiff.compare.arrays import compare_arrays, missing
from padiff.diagnose import find_divergence
from padiff.frameworks.tree import LiveTree
from padiff.inputs import Fresh
from padiff.records import (
    Comparison,
    Divergence,
    ModulePairs,
    Outcome,
    Phase,
    Role,
    Rules,
    StepComparison,
    Tolerance,
    Unmatched,
    Value,
    WeightEntry,
    WeightPlan,
)
from padiff.result import Result
from padiff.sidebyside import SideBySide
from padiff.weights import FindSpecial, apply_plan, build, plan_weights

_NOISE_OF_SUMS = 2e-6
"""Some gradients are zero but for rounding (a key's bias under softmax, a bias before a batch norm): what is left is
of the size of rounding in the sums of the others."""

Loss = Callable[[Any], Any] | None


@dataclass(frozen=True)
class Job:
    """Everything a comparison needs to know, checked and in base/raw order."""

    base: LiveTree
    raw: LiveTree
    arguments: Fresh
    losses: tuple[Loss, Loss] = (None, None)
    optimizers: tuple[Any, Any] | None = None
    steps: int = 1
    backward: bool = True
    tolerance: Tolerance = field(default_factory=Tolerance)
    rules: Rules = field(default_factory=Rules)
    special: FindSpecial = lambda *_: None


def plan_of(job: Job) -> WeightPlan:
    """Where raw's tensors come from."""
    pairs = pair_modules(job.base.tree, job.raw.tree, job.rules, inside=True)
    return plan_weights(job.base, job.raw, pairs, job.special)


def run_job(
    job: Job, plan: WeightPlan, *, copied: bool, on_step: Callable[[StepComparison], None] | None = None
) -> Result:
    """Run all steps, or up to the first that diverges; ``copied`` says whether raw holds base's weights now."""
    modules = pair_modules(job.base.tree, job.raw.tree, job.rules)
    base = Session(job.base, "base", _watched(job, modules, "base"))
    raw = Session(job.raw, "raw", _watched(job, modules, "raw"))
    steps: list[StepComparison] = []
    divergence: Divergence | None = None
    with ExitStack() as stack:
        for session in (base, raw):
            stack.enter_context(session.prepared(training=job.optimizers is not None))
        for step in range(job.steps):
            done = _step(job, plan, modules, base, raw, step)
            divergence = find_divergence(done, (job.base.tree, job.raw.tree))
            steps.append(done)
            if on_step is not None:
                on_step(done)
            if divergence is not None:
                break
    return _result(job, plan if copied else None, plan, modules, steps, divergence)


def _step(job: Job, plan: WeightPlan, modules: ModulePairs, base: Session, raw: Session, step: int) -> StepComparison:
    base_arguments, raw_arguments = job.arguments()
    base_trace = base.run(step, base_arguments, loss_fn=job.losses[0], backward=job.backward)
    pairing = CallPairing(job.base.tree, job.raw.tree, modules, base_trace.calls)
    watcher = SideBySide(base_trace, pairing, job.tolerance, job.base.tree)
    raw_trace = raw.run(step, raw_arguments, loss_fn=job.losses[1], backward=job.backward, observer=watcher, keep=False)
    done = watcher.finish(raw_trace)
    state = _State(job, plan, step)
    found = [*done.comparisons, *state.loss(base_trace.loss, raw_trace.loss)]
    if job.backward:
        found += state.tensors("gradient", "parameter", base_trace.parameter_gradients, raw_trace.parameter_gradients)
    if job.optimizers is not None and all(comparison.agrees for comparison in found):
        base.optimize(step, job.optimizers[0])
        raw.optimize(step, job.optimizers[1])
        found += state.tensors("weight", "parameter", base.weights(), raw.weights())
    found += state.tensors("buffer", "buffer", base.buffers(), raw.buffers())
    base.clear_gradients()
    raw.clear_gradients()
    return replace(done, comparisons=tuple(found))


class _State:
    """Compares what belongs to modules rather than calls: gradients of parameters, weights, buffers, the loss."""

    def __init__(self, job: Job, plan: WeightPlan, step: int) -> None:
        self._job, self._plan, self._step = job, plan, step
        self._owners = {
            side: {
                _path(node.path, spec.name): node
                for node in live.tree.nodes
                for spec in (*node.parameters, *node.buffers)
            }
            for side, live in (("base", job.base), ("raw", job.raw))
        }

    def loss(self, base: Value | None, raw: Value | None) -> list[Comparison]:
        if base is None and raw is None:
            return []
        if base is None or raw is None:
            outcome = missing("only one of the models yields a loss")
        elif base.shape != raw.shape:  # a scalar is a scalar, with or without an axis of length one
            outcome = compare_arrays(base.numpy().reshape(()), raw.numpy().reshape(()), self._job.tolerance)
        else:
            outcome = compare_arrays(base.numpy(), raw.numpy(), self._job.tolerance)
        base_root, raw_root = self._job.base.tree.nodes[0], self._job.raw.tree.nodes[0]
        return [Comparison("forward", self._step, "loss", "", "", base_root.kind, raw_root.kind, "loss", outcome)]

    def tensors(
        self, phase: Phase, role: Role, base: Mapping[str, Value | None], raw: Mapping[str, Value | None]
    ) -> list[Comparison]:
        base = _under_all_paths(self._job.base, base)
        tolerance = self._job.tolerance
        if tolerance.mode == "auto" and phase == "gradient":
            tolerance = replace(tolerance, atol=_NOISE_OF_SUMS * _largest(base.values()))
        found: list[Comparison] = []
        for entry in self._plan.entries:
            if entry.role != role or entry.path not in raw:
                continue
            values = [base.get(source.path) for source in entry.sources]
            outcome = self._outcome(entry, values, raw[entry.path], tolerance)
            if outcome is not None:
                found.append(self._comparison(phase, role, entry, outcome))
        return found

    def _outcome(
        self, entry: WeightEntry, base: Sequence[Value | None], raw: Value | None, tolerance: Tolerance
    ) -> Outcome | None:
        held = [value.numpy() for value in base if value is not None]
        if raw is None and not held:
            return None
        if raw is None:
            return missing("base has it, raw has none") if any(array.any() for array in held) else None
        if len(held) < len(base):
            return missing("raw has it, base has none") if raw.numpy().any() else None
        expected = build(entry, {s.path: array for s, array in zip(entry.sources, held, strict=True)})
        return compare_arrays(expected, raw.numpy(), tolerance)

    def _comparison(self, phase: Phase, role: Role, entry: WeightEntry, outcome: Outcome) -> Comparison:
        base_node = self._owners["base"][entry.sources[0].path]
        raw_node = self._owners["raw"][entry.path]
        name = entry.path.removeprefix(raw_node.path).lstrip(".")
        return Comparison(
            phase, self._step, role, base_node.path, raw_node.path, base_node.kind, raw_node.kind, name, outcome
        )


def _largest(values: Iterable[Value | None]) -> float:
    """The largest root mean square among some tensors."""
    found = 0.0
    for value in values:
        if value is not None and 0 not in value.shape:
            flat = value.numpy().reshape(-1)
            flat = flat.astype(np.float32) if flat.dtype.itemsize < 4 else flat
            found = max(found, math.sqrt(abs(float(np.vdot(flat, flat))) / flat.size))
    return found


def _under_all_paths(live: LiveTree, values: Mapping[str, Value | None]) -> dict[str, Value | None]:
    """A tied tensor is listed once, under its first path; give it under the others too."""
    tensors = live.tensors()
    by_identity = {id(tensors[path]): value for path, value in values.items()}
    return {path: by_identity[id(tensor)] for path, tensor in tensors.items() if id(tensor) in by_identity}


def _path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _watched(job: Job, modules: ModulePairs, side: str) -> frozenset[int]:
    """Nodes whose calls are recorded: all that may pair, and those that stay alone, so that they are listed."""
    paired = {pair[0 if side == "base" else 1] for pair in modules.pairs}
    alone = set(modules.base_alone if side == "base" else modules.raw_alone)
    return frozenset(paired | alone | {0})


def _result(
    job: Job,
    copied: WeightPlan | None,
    plan: WeightPlan,
    modules: ModulePairs,
    steps: list[StepComparison],
    divergence: Divergence | None,
) -> Result:
    first = steps[0]
    compared = {comparison.raw_call for comparison in first.comparisons if comparison.role == "output"}
    calls = len(first.raw.calls)
    parameters = job.raw.parameters()
    filled = sum(entry.path in parameters for entry in plan.entries)
    coverage = {
        "calls": len(compared) / calls if calls else 0.0,
        "parameters": filled / len(parameters) if parameters else 1.0,
    }
    root = any(c.raw_path == "" and c.role == "output" for c in first.comparisons)
    notes = [] if root else ["the models' own outputs hold no tensors that could be compared"]
    unmatched: list[Unmatched] = [*first.unmatched, *plan.unmatched]
    return Result(
        aligned=divergence is None and root,
        divergence=divergence,
        steps=tuple(steps),
        unmatched=tuple(dict.fromkeys(unmatched)),
        base=job.base.tree,
        raw=job.raw.tree,
        tolerance=job.tolerance,
        plan=copied,
        notes=tuple(notes),
        coverage=coverage,
    )


def copy_weights(job: Job, plan: WeightPlan) -> None:
    """Carry the plan out."""
    apply_plan(job.base, job.raw, plan)
