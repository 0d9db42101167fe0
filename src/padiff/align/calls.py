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
        raw_of = {base: raw for raw, base in self._base_of.items()}
        counts = {"base": Counter(c.node for c in self._calls), "raw": Counter(c.node for c in raw_calls)}
        found: list[Unmatched] = []
        for side, other, calls, partner_of in (
            ("base", "raw", self._calls, raw_of),
            ("raw", "base", raw_calls, self._base_of),
        ):
            units = self._units(side, partner_of)
            for call in calls:
                partner = partner_of.get(call.node)
                if partner is not None and call.occurrence < counts[other][partner]:
                    continue
                if units[call.node]:
                    why = f"inside {units[call.node]}, which is compared as one"
                elif partner is None:
                    why = f"no module of {other} corresponds"
                else:
                    path = self._trees[other].nodes[partner].path or "(model)"
                    times, partner_times = counts[side][call.node], counts[other][partner]
                    why = f"called {_times(times)}, its partner {path} {_times(partner_times)}"
                found.append(Unmatched(side, call.path, call.kind, why, units[call.node]))  # type: ignore[arg-type]
        return tuple(found)

    def _units(self, side: str, partner_of: dict[int, int]) -> list[str]:
        """Per node the path of the paired layer around it that is matched as one thing, or ""."""
        found: list[str] = []
        for node in self._trees[side].nodes:
            parent = self._trees[side].nodes[node.parent] if node.parent >= 0 else None
            if parent is None:
                found.append("")
            else:
                unit = parent.atomic and parent.index in partner_of
                found.append(found[parent.index] or (parent.path if unit else ""))
        return found


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")


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
