"""Tensors that base keeps once and raw several times, tied in the one and untied in the other; or that both keep."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import TypeVar

from padiff.engine.job import Job
from padiff.frameworks.tree import LiveTree
from padiff.records import WeightEntry, WeightPlan

Shared = tuple[WeightEntry, ...]
T = TypeVar("T")


def shared_in_base(job: Job, plan: WeightPlan) -> list[Shared]:
    """Entries that fill several tensors of raw from one of base, whole: raw's gradients add up to base's."""
    base, raw = job.base.tensors(), job.raw.tensors()
    groups: dict[int, dict[int, WeightEntry]] = defaultdict(dict)
    for entry in plan.entries:
        if entry.role != "parameter" or len(entry.sources) != 1 or entry.function is not None:
            continue
        source = entry.sources[0]
        if source.start is None and source.index is None and source.interleaved is None:
            groups[id(base[source.path])].setdefault(id(raw[entry.path]), entry)
    return [tuple(entries.values()) for entries in groups.values() if len(entries) > 1]


def under_other_names(job: Job, plan: WeightPlan, known: Collection[str]) -> frozenset[str]:
    """Paths of tensors of raw's that are ``known`` under another."""
    raw = job.raw.tensors()
    ids = {id(raw[path]) for path in known}
    return frozenset(e.path for e in plan.entries if e.path not in known and id(raw.get(e.path)) in ids)


def under_all_paths(live: LiveTree, values: Mapping[str, T]) -> dict[str, T]:
    """A tied tensor is listed once, under its first path; give it under the others too."""
    tensors = live.tensors()
    by_identity = {id(tensors[path]): value for path, value in values.items()}
    return {path: by_identity[id(tensor)] for path, tensor in tensors.items() if id(tensor) in by_identity}


def share_a_parameter(base: LiveTree, raw: LiveTree) -> bool:
    """The two models hold a parameter in common, or are one."""
    ours = {id(parameter) for parameter in base.parameters().values()}
    return any(id(parameter) in ours for parameter in raw.parameters().values())
