"""Carrying out a plan that stands: all of it, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from padiff.errors import ArgumentError, WeightError
from padiff.frameworks.tree import LiveTree
from padiff.records import Array, WeightEntry, WeightPlan, WeightSource, tiles_of


def apply_plan(base: LiveTree, raw: LiveTree, plan: WeightPlan) -> None:
    """Copy base's weights into raw; on any failure raw is put back as it was."""
    if plan.problems:
        raise WeightError(plan.problems[0].message, plan.problems[0].hint)
    undo: list[Callable[[], None]] = []
    try:
        _fill(base, raw, plan, undo)
    except BaseException:
        for step in reversed(undo):
            step()
        raw.forget()
        raise


def is_filled(base: LiveTree, raw: LiveTree, entries: Iterable[WeightEntry]) -> bool:
    """Whether raw holds already what would be copied into it."""
    sources, targets = base.tensors(), raw.tensors()
    for entry in entries:
        arrays = {source.path: base.adapter.to_numpy(sources[source.path]) for source in entry.sources}
        if not _holds(raw.adapter.to_numpy(targets[entry.path]), build(entry, arrays)):
            return False
    return True


def _fill(base: LiveTree, raw: LiveTree, plan: WeightPlan, undo: list[Callable[[], None]]) -> None:
    for base_node, raw_node, function in plan.special:
        for inner in raw.tree.subtree(raw_node):
            undo += _restoring(raw, raw.modules[inner])
        function(base.modules[base_node], raw.modules[raw_node])
        raw.forget()
    sources, targets = base.tensors(), raw.tensors()
    for entry in plan.entries:
        if not entry.written:
            continue
        target = targets[entry.path]
        if len(entry.sources) == 1 and sources[entry.sources[0].path] is target:
            continue
        if entry.as_it_is and _taken(base, raw, target, sources[entry.sources[0].path], undo):
            continue
        wanted = [source.path for source in entry.sources] if entry.function is None else list(sources)
        arrays = {path: base.adapter.to_numpy(sources[path]) for path in wanted}
        value = build(entry, arrays)
        if _holds(raw.adapter.to_numpy(target), value):  # copied before, as in every call after the first
            continue
        undo.append(_rewriting(raw, target))
        raw.adapter.assign(target, value)


def _holds(array: Array, value: Array) -> bool:
    """Whether an array holds these values; the first of them nearly always tell."""
    if array.shape != value.shape or (value.ndim and not np.array_equal(array[:1], value[:1])):
        return False
    turned = value.ndim == 2 and not value.flags.c_contiguous
    return all(np.array_equal(array[t], value[t]) for t in (tiles_of(value.shape) if turned else [...]))


def _taken(base: LiveTree, raw: LiveTree, target: Any, source: Any, undo: list[Callable[[], None]]) -> bool:
    """Whether a tensor could be copied where both lie, on one accelerator."""
    take: Callable[..., bool] | None = getattr(raw.adapter, "take", None)
    if take is None or base.adapter is not raw.adapter:
        return False
    return take(target, source, lambda: undo.append(_rewriting(raw, target)))


def _restoring(live: LiveTree, module: Any) -> list[Callable[[], None]]:
    """Undo what a user's function does to a module's tensors: writing into them, or putting others in their place."""
    steps: list[Callable[[], None]] = []
    for name, tensor in (*live.adapter.own_parameters(module), *live.adapter.own_buffers(module)):
        steps += [_rewriting(live, tensor), _replacing(module, name, tensor)]
    return steps


def _rewriting(live: LiveTree, tensor: Any) -> Callable[[], None]:
    kept = live.adapter.clone(tensor)
    return lambda: live.adapter.assign(tensor, live.adapter.to_numpy(kept))


def _replacing(module: Any, name: str, tensor: Any) -> Callable[[], None]:
    def put_back() -> None:
        if getattr(module, name, None) is not tensor:
            setattr(module, name, tensor)

    return put_back


def build(entry: WeightEntry, arrays: Mapping[str, Array]) -> Array:
    """The elements that belong into one tensor of raw, from base's arrays by path; a view where possible."""
    if entry.function is not None:
        return _returned(entry, entry.function(arrays))
    parts = [part_of(source, arrays[source.path]) for source in entry.sources]
    if entry.stack:
        each = len(parts) // entry.stack
        groups = [parts[place : place + each] for place in range(0, len(parts), each)]
        joined = np.stack([np.concatenate(group, axis=entry.axis) for group in groups])
    elif entry.heads:
        joined = _by_heads(parts, entry.axis, entry.heads)
    else:
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=entry.axis)
    return joined.reshape(entry.shape)


def _returned(entry: WeightEntry, value: object) -> Array:
    """What a user's function gave, if it fits: axes of length one may come and go, others not."""
    array = np.asarray(value)
    if array.dtype == object or [n for n in array.shape if n != 1] != [n for n in entry.shape if n != 1]:
        name = getattr(entry.function, "__name__", "a function")
        what = f"an array of shape {list(array.shape)}" if array.dtype != object else f"{type(value).__name__}"
        raise ArgumentError(
            f"rules: {name}, the rule for {entry.path!r}, returned {what}, expected an array of shape "
            f"{list(entry.shape)}",
            "it takes base's arrays by path and returns raw's array, in raw's layout",
        )
    return array.reshape(entry.shape)


def part_of(source: WeightSource, part: Array) -> Array:
    """A source's stretch of one of base's arrays, its axes turned."""
    if source.index is not None:
        part = part[source.index]
    if source.start is not None:
        part = part[(slice(None),) * source.axis + (slice(source.start, source.stop),)]
    if source.interleaved is not None:
        heads, start, stop = source.interleaved
        moved = np.moveaxis(part, source.axis, 0)
        moved = moved.reshape(heads, -1, *moved.shape[1:])[:, start:stop]
        part = np.moveaxis(moved.reshape(-1, *moved.shape[2:]), 0, source.axis)
    return part if source.permute is None else part.transpose(source.permute)


def _by_heads(parts: list[Array], axis: int, heads: int) -> Array:
    """Parts interleaved: for each head its query, its key, its value."""
    cut = [np.moveaxis(part, axis, 0).reshape(heads, -1, *np.delete(part.shape, axis)) for part in parts]
    joined = np.concatenate(cut, axis=1)
    return np.moveaxis(joined.reshape(-1, *joined.shape[2:]), 0, axis)
