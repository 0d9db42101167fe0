"""Running statistics in one convention: torch's buffers follow the unbiased batch variance, paddle's the biased."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from padiff.capture.held import Held, HostValue
from padiff.frameworks.tree import LiveTree, join
from padiff.records import Array, Call, Value


class RunningStatistics:
    """Follows a model's buffers over steps and hands them out as if every framework used the biased variance."""

    def __init__(self, live: LiveTree) -> None:
        self._live = live
        self._unbiased = _unbiased_buffers(live)
        self._before = self._read()
        self._neutral = dict(self._before)

    def after_step(self, calls: Sequence[Call]) -> dict[str, Value]:
        """Every buffer's value now; those with a convention of their own, converted."""
        adapter = self._live.adapter
        sizes = defaultdict(list)
        for call in calls:
            if call.node in self._unbiased and call.inputs:
                sizes[call.node].append(call.inputs[0].value.shape)
        now = self._read()
        values: dict[str, Value] = {path: Held(adapter, tensor) for path, tensor in self._live.buffers().items()}
        for node, (path, keep) in self._unbiased.items():
            if path not in values:
                continue
            counts = [math.prod(shape) // max(shape[1] if len(shape) > 1 else 1, 1) for shape in sizes[node]]
            self._neutral[path] = _biased(self._neutral[path], self._before[path], now[path], keep, counts)
            values[path] = HostValue(self._neutral[path])
        self._before = now
        return values

    def _read(self) -> dict[str, Array]:
        wanted = {path for path, _ in self._unbiased.values()}
        adapter = self._live.adapter
        return {
            path: np.array(adapter.to_numpy(tensor)) for path, tensor in self._live.buffers().items() if path in wanted
        }


def _unbiased_buffers(live: LiveTree) -> dict[int, tuple[str, float]]:
    """Node index to the path of its unbiased buffer and the share of the old value that an update keeps."""
    found: dict[int, tuple[str, float]] = {}
    for index, module in enumerate(live.modules):
        spec = live.layer_spec(index)
        keep = live.adapter.statistics_momentum(module) if spec else None
        if spec is None or keep is None:
            continue
        for name, stored in spec.stored.items():
            if stored.convention == "unbiased":
                found[index] = (join(live.tree.nodes[index].path, name), keep)
    return found


def _biased(neutral: Array, before: Array, now: Array, keep: float, counts: Sequence[int]) -> Array:
    """One update rewritten: what the batch added, times (n - 1) / n, on top of what is kept of the old value."""
    if np.array_equal(before, now):
        return neutral
    if len(counts) != 1 or counts[0] < 2:
        return now  # several updates in one step cannot be told apart afterwards
    added = (now.astype(np.float64) - keep * before) * ((counts[0] - 1) / counts[0])
    result: Array = (keep * neutral.astype(np.float64) + added).astype(now.dtype)
    return result
