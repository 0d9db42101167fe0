"""Modules that both models call equally often, in another order: an encoder of question and answer, answer first."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from padiff.records import Array, Call, Order, Value

MOST = 64
"""Calls of a module that are put in order."""
SAMPLED = 512
"""Numbers by which what a call is given is known again."""
SAME = 1e-4
"""How far, relative to it, rounding may have moved it."""
APART = 1e-2
"""How far it must be from what base's call at the same place is given, to be looked for elsewhere."""


@dataclass(frozen=True)
class Mark:
    """Some of the numbers that a call is given first."""

    shape: tuple[int, ...]
    numbers: Array

    def distance(self, other: Mark) -> float:
        """Relative; infinite between tensors of different shapes, and where one is no number."""
        if self.shape != other.shape:
            return math.inf
        size = float(np.sqrt(np.mean(np.square(self.numbers)))) if self.numbers.size else 0.0
        gap = float(np.sqrt(np.mean(np.square(self.numbers - other.numbers)))) if self.numbers.size else 0.0
        if not math.isfinite(gap):
            return math.inf
        return gap / size if size > 0 and math.isfinite(size) else 0.0 if gap == 0 else math.inf


class Repeated:
    """Is told of raw's calls, and knows in which order base's belong to them."""

    def __init__(self, base_of: Mapping[int, int], base_calls: Sequence[Call]) -> None:
        counts = Counter(call.node for call in base_calls)
        often = {base: raw for raw, base in base_of.items() if 1 < counts[base] <= MOST}
        self._base: dict[int, list[Mark | None]] = {raw: [] for raw in often.values()}
        self._raw: dict[int, list[Mark | None]] = {raw: [] for raw in often.values()}
        for call in sorted(base_calls, key=lambda call: call.occurrence) if often else ():
            if call.node in often:
                self._base[often[call.node]].append(_mark(call))

    def see(self, raw: Call) -> None:
        """A call of raw has ended."""
        if raw.node in self._raw:
            self._raw[raw.node].append(_mark(raw))

    def orders(self, raw_calls: Sequence[Call]) -> tuple[Order, ...]:
        """Of modules whose calls were given the same in another order, and of those inside of them."""
        found: dict[int, tuple[int, ...]] = {}
        for node, marks in self._raw.items():
            order = _order(self._base[node], marks)
            if order is not None:
                found[node] = order
        return tuple(Order(node, order) for node, order in (self._inside(found, raw_calls) | found).items())

    def _inside(self, orders: Mapping[int, tuple[int, ...]], raw_calls: Sequence[Call]) -> dict[int, tuple[int, ...]]:
        """The order of what is called equally often in each call of a module that has one."""
        if not orders:
            return {}
        calls = {call.index: call for call in raw_calls}
        owners: dict[int, list[Call | None]] = defaultdict(list)
        for call in sorted(raw_calls, key=lambda call: call.occurrence):
            around = calls.get(call.parent)
            while around is not None and around.node not in orders:
                around = calls.get(around.parent)
            owners[call.node].append(around)
        found: dict[int, tuple[int, ...]] = {}
        for node, holders in owners.items():
            first = holders[0]
            if node not in self._base or first is None or any(one is None or one.node != first.node for one in holders):
                continue
            order = orders[first.node]
            each, rest = divmod(len(holders), len(order))
            if not rest and len(self._base[node]) == len(holders):
                found[node] = tuple(place * each + inner for place in order for inner in range(each))
        return found


def orders_of(base_of: Mapping[int, int], base_calls: Sequence[Call], raw_calls: Sequence[Call]) -> tuple[Order, ...]:
    """The same, where both have run."""
    repeated = Repeated(base_of, base_calls)
    for call in raw_calls:
        repeated.see(call)
    return repeated.orders(raw_calls)


def _mark(call: Call) -> Mark | None:
    value: Value | None = call.inputs[0].value if call.inputs else None
    if value is None or value.overwritten or getattr(value, "elsewhere", False):
        return None
    array = value.numpy()
    if array.dtype.kind not in "fiubV":
        return None
    step = max(1, array.size // SAMPLED)
    return Mark(array.shape, np.array(array.flat[::step]).astype(np.float64))


def _order(base: Sequence[Mark | None], raw: Sequence[Mark | None]) -> tuple[int, ...] | None:
    """Raw's calls to base's, where each has one that was given the same, and not the one at its place."""
    ones, others = [mark for mark in base if mark is not None], [mark for mark in raw if mark is not None]
    if len(ones) != len(base) or len(others) != len(raw) or len(ones) != len(others):
        return None
    if all(one.distance(other) <= APART for one, other in zip(ones, others, strict=True)):
        return None
    found: list[int] = []
    for place, mark in enumerate(others):
        free = [one for one in range(len(ones)) if one not in found]
        best = min(free, key=lambda one: (ones[one].distance(mark), one != place))
        if ones[best].distance(mark) > SAME:
            return None
        found.append(best)
    return tuple(found)
