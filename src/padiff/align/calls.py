"""Which call of base belongs to which call of raw: calls of paired modules, occurrence by occurrence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from padiff.records import Call, ModulePairs, ModuleTree, Unmatched


class CallPairing:
    """Finds the base call of a raw call as soon as it happens, and afterwards what stayed alone."""

    def __init__(self, base: ModuleTree, raw: ModuleTree, modules: ModulePairs, base_calls: Sequence[Call]) -> None:
        self._trees = {"base": base, "raw": raw}
        self._modules = modules
        self._base_of = _by_identity(base, raw, modules)
        self._base_calls = {(call.node, call.occurrence): call for call in base_calls}
        self._calls = base_calls

    def base_call(self, raw: Call) -> Call | None:
        """The call of base that corresponds to a call of raw."""
        node = self._base_of.get(raw.node)
        return None if node is None else self._base_calls.get((node, raw.occurrence))

    def unmatched(self, raw_calls: Sequence[Call]) -> tuple[Unmatched, ...]:
        """Calls without partner on either side, in order, each with the reason."""
        found: list[Unmatched] = []
        raw_of = {base: raw for raw, base in self._base_of.items()}
        counts = {"base": Counter(c.node for c in self._calls), "raw": Counter(c.node for c in raw_calls)}
        sides = (("base", self._calls, raw_of, "raw"), ("raw", raw_calls, self._base_of, "base"))
        for side, calls, partner_of, other in sides:
            for call in calls:
                partner = partner_of.get(call.node)
                if partner is None:
                    found.append(Unmatched(side, call.path, call.kind, f"no module of {other} corresponds"))  # type: ignore[arg-type]
                elif call.occurrence >= counts[other][partner]:
                    times = counts[other][partner]
                    path = self._trees[other].nodes[partner].path
                    why = f"called {counts[side][call.node]} times, its partner {path or '(model)'} {times} times"
                    found.append(Unmatched(side, call.path, call.kind, why))  # type: ignore[arg-type]
        return tuple(found)


def _by_identity(base: ModuleTree, raw: ModuleTree, modules: ModulePairs) -> dict[int, int]:
    """Raw node to base node, for the first path of each module: that is the one calls are recorded under."""
    first_base: dict[int, int] = {}
    for node in base.nodes:
        first_base.setdefault(node.identity, node.index)
    first_raw: dict[int, int] = {}
    for node in raw.nodes:
        first_raw.setdefault(node.identity, node.index)
    found: dict[int, int] = {}
    for base_index, raw_index in modules.pairs:
        found.setdefault(first_raw[raw.nodes[raw_index].identity], first_base[base.nodes[base_index].identity])
    return found
