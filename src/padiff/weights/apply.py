"""Carrying out a plan that stands: all of it, or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from padiff.errors import WeightError
from padiff.frameworks.tree import LiveTree
from padiff.records import Array, WeightEntry, WeightPlan


def apply_plan(base: LiveTree, raw: LiveTree, plan: WeightPlan) -> None:
    """Copy base's weights into raw; on any failure raw is put back as it was."""
    if plan.problems:
        raise WeightError(plan.problems[0].message, plan.problems[0].hint)
    targets = raw.tensors()
    sources = base.tensors()
    undo: list[tuple[Any, Any]] = []
    try:
        for base_node, raw_node, fill in plan.special:
            for tensor in _below(raw, raw_node):
                undo.append((tensor, raw.adapter.clone(tensor)))
            fill(base.modules[base_node], raw.modules[raw_node])
        for entry in plan.entries:
            target = targets[entry.path]
            if len(entry.sources) == 1 and sources[entry.sources[0].path] is target:
                continue
            arrays = {source.path: base.adapter.to_numpy(sources[source.path]) for source in entry.sources}
            raw.adapter.assign(target, build(entry, arrays))
    except Exception:
        for tensor, value in undo:
            raw.adapter.assign(tensor, raw.adapter.to_numpy(value))
        raise


def build(entry: WeightEntry, arrays: Mapping[str, Array]) -> Array:
    """The elements that belong into one tensor of raw, from base's arrays by path; a view where possible."""
    parts = []
    for source in entry.sources:
        part = arrays[source.path]
        if source.start is not None:
            part = part[(slice(None),) * source.axis + (slice(source.start, source.stop),)]
        parts.append(part if source.permute is None else part.transpose(source.permute))
    joined = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=entry.axis)
    return joined.reshape(entry.shape)


def _below(live: LiveTree, index: int) -> list[Any]:
    found = []
    for inner in live.tree.subtree(index):
        module = live.modules[inner]
        found += [t for _, t in (*live.adapter.own_parameters(module), *live.adapter.own_buffers(module))]
    return found
