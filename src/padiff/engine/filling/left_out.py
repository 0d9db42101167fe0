"""Modules that are left out of a comparison: a plan without their tensors, traces without what their calls hold."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from padiff.frameworks.tree import join
from padiff.records import ModulePairs, ModuleTree, StepTrace, WeightPlan
from padiff.store import Dump


def without(
    plan: WeightPlan, base: ModuleTree, raw: ModuleTree, base_out: Collection[str], raw_out: Collection[str]
) -> WeightPlan:
    """The plan without what the modules at these paths hold themselves."""
    if not base_out and not raw_out:
        return plan
    base_tensors, raw_tensors = _held(base, base_out), _held(raw, raw_out)
    entries = tuple(
        entry
        for entry in plan.entries
        if entry.path not in raw_tensors and not any(source.path in base_tensors for source in entry.sources)
    )
    unmatched = tuple(
        one for one in plan.unmatched if one.path not in (base_tensors if one.side == "base" else raw_tensors)
    )
    return replace(plan, entries=entries, unmatched=unmatched)


def not_dumped(dump: Dump) -> list[str]:
    """Paths of modules that were left out of a dump."""
    only = dump.extra.get("only")
    return [] if only is None else [node.path for node in dump.tree.nodes if node.path not in set(only)]


def as_both_hold(
    traces: tuple[StepTrace, StepTrace],
    trees: tuple[ModuleTree, ModuleTree],
    dumps: tuple[Dump, Dump],
    modules: ModulePairs,
) -> tuple[StepTrace, StepTrace]:
    """Base's trace and raw's without the tensors of modules that one of the sides was told to leave out."""
    if not any("only" in dump.extra for dump in dumps):
        return traces
    listed_base, listed_raw = _listed(trees[0], dumps[0]), _listed(trees[1], dumps[1])
    base, raw = listed_base, listed_raw
    if "only" in dumps[1].extra:
        base = base & {one for one, other in modules.pairs if other in listed_raw}
    if "only" in dumps[0].extra:
        raw = raw & {other for one, other in modules.pairs if one in listed_base}
    return _without_calls(traces[0], trees[0], base), _without_calls(traces[1], trees[1], raw)


def _listed(tree: ModuleTree, dump: Dump) -> set[int]:
    """Nodes of the modules that a dump holds."""
    out = set(not_dumped(dump))
    return {node.index for node in tree.nodes if node.path not in out}


def _without_calls(trace: StepTrace, tree: ModuleTree, kept: set[int]) -> StepTrace:
    """With nothing in the calls of modules that are not kept."""
    out = {node.index for node in tree.nodes} - kept
    calls = tuple(replace(call, inputs=(), outputs=(), ops=()) if call.node in out else call for call in trace.calls)
    met = {slot.tensor for call in calls for slot in (*call.inputs, *call.outputs)}
    gradients = {number: value for number, value in trace.gradients.items() if number in met}
    return replace(trace, calls=calls, gradients=gradients)


def _held(tree: ModuleTree, paths: Collection[str]) -> frozenset[str]:
    """Paths of the tensors that these modules hold themselves, and no other does."""
    wanted = frozenset(paths)
    own: set[tuple[str, int]] = set()
    shared: set[int] = set()
    for node in tree.nodes:
        for spec in (*node.parameters, *node.buffers):
            if node.path in wanted:
                own.add((join(node.path, spec.name), spec.identity))
            else:
                shared.add(spec.identity)
    return frozenset(path for path, identity in own if identity not in shared)
