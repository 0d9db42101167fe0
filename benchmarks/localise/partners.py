"""Which modules of raw base has too, told by what they return; padiff's own pairing has no part in it.

A bug in a module that base does not have can only be seen at the module around it, so both are right answers.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import numpy as np

from benchmarks.localise.watch import Seen

POINTS = 65
CLOSE = 1e-4


class Partners:
    """Looks raw's modules up in base."""

    def __init__(self, base: list[Seen], raw: list[Seen]) -> None:
        self._callers: dict[str, str | None] = {}
        self._first: dict[str, Seen] = {}
        for call in raw:
            self._callers.setdefault(call.path, call.caller)
            self._first.setdefault(call.path, call)
        self._known: dict[str, bool] = {"": True}
        self._plain: dict[int, list[np.ndarray]] = defaultdict(list)
        self._through: dict[int, list[np.ndarray]] = defaultdict(list)
        self._theirs: dict[tuple[int, bool], list[np.ndarray]] = defaultdict(list)
        self._ours: dict[tuple[int, bool], list[np.ndarray]] = defaultdict(list)
        self._wrapped: dict[str, bool] = {}
        self._given: dict[int, list[np.ndarray]] = defaultdict(list)
        for table, calls in ((self._ours, self._first.values()), (self._theirs, base)):
            for call in calls:
                if call.outputs:
                    table[call.outputs[0].size, call.passes_through].append(_marks(call.outputs[0]))
        for call in base:
            for given in call.inputs:
                self._add(self._given, given)
            for output in call.outputs:
                self._add(self._through if call.passes_through else self._plain, output)
            for part in _parts(call):
                self._add(self._plain, part)
        for joined in _joined(base):
            self._add(self._plain, joined)

    @staticmethod
    def _add(table: dict[int, list[np.ndarray]], output: np.ndarray) -> None:
        table[output.size].append(_marks(output))

    def caller(self, path: str) -> str | None:
        """The module whose code calls it."""
        return self._callers.get(path)

    def has(self, path: str) -> bool:
        """Whether a call of base returns the same numbers, in whatever layout."""
        if path not in self._known:
            self._known[path] = self._look(path)
        return self._known[path]

    def wrapped(self, path: str) -> bool:
        """Whether more modules of raw than of base return the same: then it is open which of them base has."""
        if path not in self._wrapped:
            self._wrapped[path] = self._count(path)
        return self._wrapped[path]

    def _count(self, path: str) -> bool:
        call = self._first.get(path)
        if call is None or not call.outputs:
            return False
        marks, key = _marks(call.outputs[0]), (call.outputs[0].size, call.passes_through)
        ours = sum(_close(marks, other) for other in self._ours[key])
        return ours > max(1, sum(_close(marks, other) for other in self._theirs[key]))

    def given(self, values: np.ndarray) -> bool:
        """Whether a call of base is given these numbers."""
        return any(_close(_marks(values), other) for other in self._given[values.size])

    def visible(self, path: str) -> str:
        """The module, or the nearest around it, that base has too."""
        around: str | None = path
        while around is not None and not self.has(around):
            around = self.caller(around)
        return around or ""

    def _look(self, path: str) -> bool:
        call = self._first.get(path)
        if call is None or not call.outputs:
            return False
        marks = _marks(call.outputs[0])
        table = self._through if call.passes_through else self._plain
        return any(_close(marks, other) for other in table[call.outputs[0].size])


def _marks(output: np.ndarray) -> np.ndarray:
    """Quantiles: the same in every layout."""
    ordered = np.sort(output, axis=None)
    return ordered[np.linspace(0, ordered.size - 1, POINTS).astype(int)] if ordered.size else ordered


def _close(one: np.ndarray, other: np.ndarray) -> bool:
    if one.size != other.size or not one.size:
        return False
    return bool(np.max(np.abs(one - other)) <= CLOSE * np.max(np.abs(one)))


def _parts(call: Seen) -> list[np.ndarray]:
    """Halves and thirds of what is returned: a fused layer's parts."""
    found: list[np.ndarray] = []
    for output in call.outputs[:1]:
        for count in (2, 3):
            if output.ndim and output.shape[-1] % count == 0 and output.shape[-1] > count:
                found += np.split(output, count, axis=-1)
    return found


def _joined(calls: list[Seen]) -> list[np.ndarray]:
    """Neighbours joined: parts of what may be fused in raw."""
    by_caller: dict[str | None, list[np.ndarray]] = defaultdict(list)
    for call in calls:
        if call.outputs:
            by_caller[call.caller].append(call.outputs[0].ravel())
    found: list[np.ndarray] = []
    for outputs in by_caller.values():
        found += [np.concatenate(two) for two in pairwise(outputs)]
        found += [np.concatenate(three) for three in zip(outputs, outputs[1:], outputs[2:], strict=False)]
    return found
