"""Calls that are given something else than base's, and may just begin elsewhere: a norm inside of them here, and before
them there.

Where something goes wrong inside of such a call, it is in question whether it began elsewhere. A run in which its sort
is taken to begin where base's does tells: if nothing is wrong inside any more, it was given the wrong thing.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from padiff.engine.fed.calls_met import outward, parents_of
from padiff.records import Call, Fault


class Elsewhere:
    """Such calls of one run, as it goes."""

    def __init__(self) -> None:
        self._sorts: dict[int, Hashable] = {}
        """Raw call to its sort (see ``CallPairing.sort``), where it was given something else."""
        self._calls: dict[Hashable, set[int]] = {}
        """Sort to all calls of it."""

    def began(self, call: Call, sort: Hashable) -> None:
        self._calls.setdefault(sort, set()).add(call.index)

    def began_otherwise(self, call: Call, sort: Hashable) -> None:
        """It was given as much as base's was, and something else, and may begin elsewhere."""
        self._sorts[call.index] = sort

    def in_question(self, faults: Iterable[Fault], calls: Sequence[Call]) -> frozenset[Hashable]:
        """Sorts of such calls in which the first that is wrong in forward lies."""
        first = next((fault for fault in faults if fault.phase == "forward"), None)
        if first is None or not self._sorts:
            return frozenset()
        around = outward(first.raw.index, parents_of(calls))
        return frozenset(sort for index, sort in self._sorts.items() if index in around)

    def settled(self, sorts: frozenset[Hashable], faults: Iterable[Fault], calls: Sequence[Call]) -> bool:
        """Whether something is wrong in forward, and nothing inside of calls of these sorts."""
        found = [fault for fault in faults if fault.phase == "forward"]
        inside = {index for sort in sorts for index in self._calls.get(sort, ())}
        parents = parents_of(calls)
        for fault in found:
            told = parents.get(fault.comparison.raw_call, -1)  # by a call that is given, or returns, something wrong
            if (outward(fault.raw.index, parents) | outward(told, parents)) & inside:
                return False
        return bool(found)
