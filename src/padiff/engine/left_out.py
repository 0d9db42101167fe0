"""Modules that are left out of a comparison, and a plan without their tensors."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from padiff.frameworks.tree import join
from padiff.records import ModuleTree, WeightPlan
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
