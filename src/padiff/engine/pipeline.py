"""The engine behind both doors: run both models step by step, compare as they run, stop where they part."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from padiff.align import CallPairing, pair_modules
from padiff.capture.held import Held
from padiff.capture.session import Session
from padiff.capture.usage import first_use
from padiff.compare.arrays import compare_arrays, missing
from padiff.diagnose import find_divergence
from padiff.engine.decide import decide
from padiff.engine.inputs import Fresh
from padiff.engine.result import Result
from padiff.engine.side_by_side import NOISE_OF_SUMS, SideBySide
from padiff.errors import ArgumentError
from padiff.frameworks.tree import LiveTree
from padiff.records import (
    Anchors,
    Comparison,
    Divergence,
    Group,
    ModuleNode,
    ModulePairs,
    ModuleTree,
    Outcome,
    Phase,
    Role,
    Rules,
    StepComparison,
    StepTrace,
    Tolerance,
    Unmatched,
    Usage,
    Value,
    WeightEntry,
    WeightPlan,
)
from padiff.weights import FindSpecial, apply_plan, build, plan_by_use, plan_weights
from padiff.weights.rules import Rule, entries_of
from padiff.weights.special import find_special_init, special_kinds

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
    weight_rules: Mapping[str, Rule] = field(default_factory=dict)
    """Raw tensor (``*`` stands for one component) to where it comes from."""
    special: FindSpecial = find_special_init


@dataclass(frozen=True)
class Matching:
    """Where raw's tensors come from, and which modules belong together."""

    plan: WeightPlan
    anchors: Anchors | None = None
    """None where names and order of definition are evidence enough."""


def match(job: Job, *, run: bool) -> Matching:
    """Plan the weights, the user's rules above all."""
    matching = _match(job, run=run)
    if not job.weight_rules:
        return matching
    return override(job, matching, entries_of(job.weight_rules, job.base, job.raw))


def _match(job: Job, *, run: bool) -> Matching:
    """Plan the weights at rest; where names don't settle it and ``run`` allows, look at the order of use as well."""
    rules = replace(job.rules, skip_parameterless=False, alike=_alike(job))  # the first is about calls
    pairs = pair_modules(job.base.tree, job.raw.tree, rules, inside=True)
    plan = plan_weights(job.base, job.raw, pairs, job.special)
    told = plan.special or rules.pairs or rules.base_skip or rules.raw_skip
    if told or (not plan.problems and _same_names(plan)):
        return Matching(plan)
    uses = [Usage(), Usage()]
    if run:
        uses = _uses(job)
    other, anchors = plan_by_use(job.base, job.raw, *uses)
    if other.problems or (not uses[1].tensors and (not plan.problems or not _told(other))):
        return Matching(plan)
    if uses[1].tensors:
        other = decide(job.base, job.raw, job.arguments, other)
        anchors = replace(anchors, groups=tuple(_with_heads(job, group, other) for group in anchors.groups))
    return Matching(other, anchors)


def _with_heads(job: Job, group: Group, plan: WeightPlan) -> Group:
    """A group whose fused tensor turned out to be laid out head by head."""
    paths = {job.raw.tree.nodes[node].path for node in group.raw}
    for entry in plan.entries:
        if entry.path.rpartition(".")[0] in paths:
            heads = entry.heads or next((s.interleaved[0] for s in entry.sources if s.interleaved), 0)
            if heads:
                return replace(group, heads=heads)
    return group


def override(job: Job, matching: Matching, entries: Sequence[WeightEntry]) -> Matching:
    """Entries that the user gives, in place of the plan's own for the same tensors; what they mend is no problem."""
    tensors = job.raw.tensors()
    unknown = [entry.path for entry in entries if entry.path not in tensors]
    if unknown:
        raise ArgumentError(f"raw has no tensor {unknown[0]!r}")
    base = job.base.tensors()
    lost = [source.path for entry in entries for source in entry.sources if source.path not in base]
    if lost:
        raise ArgumentError(f"base has no tensor {lost[0]!r}")
    given = {id(tensors[entry.path]) for entry in entries}
    read = {source.path for entry in entries for source in entry.sources}
    plan = matching.plan
    kept = [entry for entry in plan.entries if id(tensors[entry.path]) not in given]
    problems = [
        problem
        for problem in plan.problems
        if id(tensors.get(problem.raw_path)) not in given and problem.base_path not in read
    ]
    unmatched = [one for one in plan.unmatched if one.path not in read]
    changed = replace(plan, entries=(*kept, *entries), problems=tuple(problems), unmatched=tuple(unmatched))
    return replace(matching, plan=changed)


def _told(plan: WeightPlan) -> bool:
    """Without a run only a plan that leaves nothing over and guesses nothing is better than saying what is wrong."""
    left = any(one.side == "base" and one.kind == "parameter" for one in plan.unmatched)
    return not left and all(entry.confidence >= 0.9 for entry in plan.entries)


def _alike(job: Job) -> frozenset[tuple[str, str]]:
    return special_kinds(job.base.adapter.name, job.raw.adapter.name)


def _uses(job: Job) -> list[Usage]:
    try:
        return [first_use(live, one) for live, one in zip((job.base, job.raw), job.arguments(), strict=True)]
    except Exception:  # the model's own: it comes again, and is explained, when the model is run for good
        return [Usage(), Usage()]


def _same_names(plan: WeightPlan) -> bool:
    """Every tensor is filled from the one of the same owner's name."""
    return all(
        len(entry.sources) == 1 and entry.path.rpartition(".")[0] == entry.sources[0].path.rpartition(".")[0]
        for entry in plan.entries
    )


def run_job(
    job: Job, matching: Matching, *, copied: bool, on_step: Callable[[StepComparison], None] | None = None
) -> Result:
    """Run all steps, or up to the first that diverges; ``copied`` says whether raw holds base's weights now."""
    plan = matching.plan
    rules = replace(job.rules, alike=_alike(job))
    modules = pair_modules(job.base.tree, job.raw.tree, rules, anchors=matching.anchors)
    base = Session(job.base, "base", _watched(job, modules, "base"))
    raw = Session(job.raw, "raw", _watched(job, modules, "raw"))
    steps: list[StepComparison] = []
    divergence: Divergence | None = None
    with ExitStack() as stack:
        for session in (base, raw):
            stack.enter_context(session.prepared(training=job.optimizers is not None))
        for step in range(job.steps):
            done = _step(job, plan, modules, base, raw, step, twins=matching.anchors is None)
            divergence = find_divergence(done, (job.base.tree, job.raw.tree))
            steps.append(done)
            if on_step is not None:
                on_step(done)
            if divergence is not None:
                break
    return _result(job, plan if copied else None, plan, modules, steps, divergence)


def _step(
    job: Job, plan: WeightPlan, modules: ModulePairs, base: Session, raw: Session, step: int, *, twins: bool
) -> StepComparison:
    base_arguments, raw_arguments = job.arguments()
    # Base runs through first: its outputs and gradients are held, its autograd graph is not.
    base_trace = base.run(step, base_arguments, loss_fn=job.losses[0], backward=job.backward)
    if _shared(job.base, job.raw):
        base_trace = _set_aside(job.base, base_trace)
    pairing = CallPairing(job.base.tree, job.raw.tree, modules, base_trace.calls, twins=twins)
    watcher = SideBySide(base_trace, pairing, job.tolerance, job.base.tree, twins)
    raw_trace = raw.run(step, raw_arguments, loss_fn=job.losses[1], backward=job.backward, observer=watcher)
    done = watcher.finish(raw_trace)
    state = _State(job, plan, step)
    outputs = [c for c in done.comparisons if c.raw_path == "" and c.role == "output" and c.phase == "forward"]
    found = [*done.comparisons, *state.loss(base_trace.loss, raw_trace.loss, outputs)]
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


def _shared(base: LiveTree, raw: LiveTree) -> bool:
    """The two models hold a parameter in common, or are one."""
    ours = {id(parameter) for parameter in base.parameters().values()}
    return any(id(parameter) in ours for parameter in raw.parameters().values())


def _set_aside(live: LiveTree, trace: StepTrace) -> StepTrace:
    """Base's gradients out of the way of raw's, which would be added to them."""
    adapter = live.adapter
    kept: dict[str, Value | None] = {}
    for path, parameter in live.parameters().items():
        gradient = adapter.gradient(parameter)
        kept[path] = None if gradient is None else Held(adapter, adapter.clone(gradient))
        adapter.set_gradient(parameter, None)
    return replace(trace, parameter_gradients=kept)


class _State:
    """Compares what belongs to modules rather than calls: gradients of parameters, weights, buffers, the loss."""

    def __init__(self, job: Job, plan: WeightPlan, step: int) -> None:
        self._job, self._plan, self._step = job, plan, step
        self._owners = {side: _owners(live.tree) for side, live in (("base", job.base), ("raw", job.raw))}

    def loss(self, base: Value | None, raw: Value | None, outputs: Sequence[Comparison]) -> list[Comparison]:
        """The loss against the loss; a sum of terms that cancel is as uncertain as its terms."""
        if base is None and raw is None:
            return []
        tolerance = self._job.tolerance
        if tolerance.mode == "auto":
            sizes = [c.outcome.numbers.base_rms for c in outputs if c.outcome.numbers is not None]
            tolerance = replace(tolerance, atol=NOISE_OF_SUMS * max(sizes, default=0.0))
        if base is None or raw is None:
            outcome = missing("only one of the models yields a loss")
        elif base.shape != raw.shape:  # a scalar is a scalar, with or without an axis of length one
            outcome = compare_arrays(base.numpy().reshape(()), raw.numpy().reshape(()), tolerance)
        else:
            outcome = compare_arrays(base.numpy(), raw.numpy(), tolerance)
        base_root, raw_root = self._job.base.tree.nodes[0], self._job.raw.tree.nodes[0]
        return [Comparison("forward", self._step, "loss", "", "", base_root.kind, raw_root.kind, "loss", outcome)]

    def tensors(
        self, phase: Phase, role: Role, base: Mapping[str, Value | None], raw: Mapping[str, Value | None]
    ) -> list[Comparison]:
        base, raw = _under_all_paths(self._job.base, base), _under_all_paths(self._job.raw, raw)
        tolerance = self._job.tolerance
        if tolerance.mode == "auto" and phase == "gradient":
            tolerance = replace(tolerance, atol=NOISE_OF_SUMS * _largest(base.values()))
        found: list[Comparison] = []
        for entry in self._plan.entries:
            if entry.role != role or entry.path not in raw or not entry.sources:
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


def _owners(tree: ModuleTree) -> dict[str, ModuleNode]:
    """Path of every tensor to its module; inside a layer matched as one thing, to that layer."""
    found: dict[str, ModuleNode] = {}
    unit: list[ModuleNode] = []
    for node in tree.nodes:
        above = unit[node.parent] if node.parent >= 0 else node
        unit.append(above if above.atomic else node)
        for spec in (*node.parameters, *node.buffers):
            found[_path(node.path, spec.name)] = unit[node.index]
    return found


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
    tensors = job.raw.tensors()
    written = {id(tensors[entry.path]) for entry in plan.entries}
    filled = sum(id(parameter) in written for parameter in parameters.values())
    coverage = {
        "calls": len(compared) / calls if calls else 0.0,
        "parameters": filled / len(parameters) if parameters else 1.0,
    }
    root = any(c.raw_path == "" and c.role == "output" for c in first.comparisons)
    notes = [] if root else ["the models' own outputs hold no tensors that could be compared"]
    if job.backward and not (first.base.ran_backward and first.raw.ran_backward):
        sides = [side for side, one in (("base", first.base), ("raw", first.raw)) if not one.ran_backward]
        why = "gradients are switched off here, or its loss does not depend on anything that takes a gradient"
        notes.append(f"backward was not run for {' and '.join(sides)}: {why}; only forward was compared")
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
