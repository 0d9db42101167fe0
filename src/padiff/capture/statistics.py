"""Running statistics in one convention: torch's buffers follow the unbiased batch variance, paddle's the biased."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from padiff.capture.held import Held, HostValue
from padiff.frameworks.lookup import class_of
from padiff.frameworks.tree import LiveTree, join
from padiff.records import Array, Call, Value


@dataclass(frozen=True)
class Update:
    """How a step updated a layer's running statistics."""

    keep: float | None
    """The share of the old value that an update keeps; None where the layer does not tell."""
    counts: tuple[int, ...]
    """Values per channel of every batch that was seen."""


class RunningStatistics:
    """Follows a model's buffers over steps and hands them out as if every framework used the biased variance.

    Not where nothing is to be converted: of two models of one framework, one may keep them in a class of its user's
    own, of which nobody knows the convention."""

    def __init__(self, live: LiveTree, *, converts: bool = True) -> None:
        self._live = live
        self._keeps = _keeps(live)
        self._unbiased = _unbiased_buffers(live, self._keeps) if converts else {}
        self._before = self._read()
        self._neutral = dict(self._before)
        self.unseen = False
        """Whether the last step moved statistics of a layer that nobody saw at work: those are not converted."""

    def updates(self, calls: Sequence[Call]) -> dict[int, Update]:
        """How every layer with running statistics updated them, by node."""
        sizes = defaultdict(list)
        for call in calls:
            if call.node in self._keeps and call.inputs:
                sizes[call.node].append(call.inputs[0].value.shape)
        return {
            node: Update(
                keep, tuple(math.prod(shape) // max(shape[1] if len(shape) > 1 else 1, 1) for shape in sizes[node])
            )
            for node, keep in self._keeps.items()
        }

    def after_step(self, calls: Sequence[Call], partners: Mapping[int, Update] | None = None) -> dict[str, Value]:
        """Every buffer's value now; those with a convention of their own, converted. The next step starts from there.

        ``partners`` says by node how the other model's layer was updated, for layers of which compiled code doesn't."""
        values: dict[str, Value] = {p: Held(self._live.adapter, tensor) for p, tensor in self._live.buffers().items()}
        now = self._read()
        self._neutral.update(self._converted(now, calls, partners))
        self._before = now
        return values | {path: HostValue(self._neutral[path]) for path in self._unbiased.values() if path in values}

    def copied(self, calls: Sequence[Call]) -> dict[str, Value]:
        """The same of a run that has not been, once its buffers are put back: copies, from which nothing starts."""
        now = {path: np.array(self._live.adapter.to_numpy(tensor)) for path, tensor in self._live.buffers().items()}
        return {path: HostValue(value) for path, value in (now | self._converted(now, calls, None)).items()}

    def _converted(
        self, now: Mapping[str, Array], calls: Sequence[Call], partners: Mapping[int, Update] | None
    ) -> dict[str, Array]:
        """What is stored in a convention of its own, in the common one."""
        found, updates = {}, self.updates(calls)
        self.unseen = False
        for node, path in self._unbiased.items():
            if path not in now:
                continue
            update, other = updates[node], (partners or {}).get(node)
            keep = other.keep if update.keep is None and other is not None else update.keep
            counts = other.counts if not update.counts and other is not None else update.counts
            self.unseen |= (keep is None or not counts) and not np.array_equal(self._before[path], now[path])
            found[path] = _biased(self._neutral[path], self._before[path], now[path], keep, counts)
        return found

    def _read(self) -> dict[str, Array]:
        wanted = set(self._unbiased.values())
        adapter = self._live.adapter
        return {
            path: np.array(adapter.to_numpy(tensor)) for path, tensor in self._live.buffers().items() if path in wanted
        }


def _keeps(live: LiveTree) -> dict[int, float | None]:
    """Layers with running statistics, by node, and the share of the old value that an update keeps."""
    found: dict[int, float | None] = {}
    for index, module in enumerate(live.modules):
        spec = live.layer_spec(index)
        if spec is not None:
            keep = live.adapter.statistics_momentum(module)
            if keep is not None or class_of(live.adapter, module) is not type(module):
                found[index] = keep
    return found


def _unbiased_buffers(live: LiveTree, keeps: Iterable[int]) -> dict[int, str]:
    """Node index to the path of its unbiased buffer."""
    found: dict[int, str] = {}
    for index in keeps:
        spec = live.layer_spec(index)
        for name, stored in spec.stored.items() if spec is not None else ():
            if stored.convention == "unbiased":
                found[index] = join(live.tree.nodes[index].path, name)
    return found


def _biased(neutral: Array, before: Array, now: Array, keep: float | None, counts: Sequence[int]) -> Array:
    """One update rewritten: what the batch added, times (n - 1) / n, on top of what is kept of the old value."""
    if np.array_equal(before, now):
        return neutral
    if keep is None or len(counts) != 1 or counts[0] < 2:
        return now  # several updates in one step cannot be told apart afterwards
    added = (now.astype(np.float64) - keep * before) * ((counts[0] - 1) / counts[0])
    result: Array = (keep * neutral.astype(np.float64) + added).astype(now.dtype)
    return result
