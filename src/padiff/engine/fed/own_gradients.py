"""Gradients of parameters that differ, or are there on one side only, by the fault of the module that holds them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from padiff.frameworks.tree import join
from padiff.records import Call, Comparison

if TYPE_CHECKING:  # it asks for this
    from padiff.engine.fed.localise import Located


def own_gradients(located: Located, state: Iterable[Comparison]) -> tuple[Comparison, ...]:
    """Without what follows from a place that was found; the rest in the order of backward, each tensor once, whatever
    the number of names under which it is held. The loss comes first."""
    users = _Users(located)
    known: set[int] = set()
    kept = [one for one in state if one.role != "parameter" or one.agrees]
    differing = [one for one in state if one.role == "parameter" and not one.agrees]
    for one in sorted(differing, key=users.last, reverse=True):
        if users.tensor(one) not in known and users.own(one):
            known.add(users.tensor(one))
            kept.append(one)
    return tuple(kept)


class _Users:
    """Which calls of raw's take up a parameter, under any of its names."""

    def __init__(self, located: Located) -> None:
        self._scenes, self._faults = located.scenes, located.faults
        self._tensors = located.scenes.job.raw.tensors()
        self._cut = any(fault.comparison.outcome.reason == "structure" for fault in located.faults)
        self._backward = any(fault.phase == "backward" for fault in located.faults)
        self._wrong = {fault.raw.path for fault in located.faults}
        self._calls: dict[str, list[Call]] = defaultdict(list)
        for call in located.scenes.found.calls:
            self._calls[call.path].append(call)
        self._around = {call.parent for call in located.scenes.found.calls}
        self._names: dict[int, list[str]] = defaultdict(list)
        for path, tensor in self._tensors.items():
            self._names[id(tensor)].append(path)

    def tensor(self, one: Comparison) -> int:
        return id(self._tensors.get(join(one.raw_path, one.name)))

    def last(self, one: Comparison) -> int:
        """The last call of the module that it is told of."""
        return max((call.index for call in self._calls.get(one.raw_path, ())), default=-1)

    def own(self, one: Comparison) -> bool:
        """Whether no other place explains it."""
        holders = set(self._holders(one))
        calls = [call for path in holders for call in self._calls[path]]
        if one.outcome.reason == "structure":
            return self._missing_for_itself(calls, one)
        if holders & (self._wrong - {one.raw_path}):
            return False
        return not (self._backward and any(call.index in self._scenes.unanswered for call in calls))

    def _holders(self, one: Comparison) -> Iterator[str]:
        """Modules that are called and hold the tensor, under any name; those around ones that are not called."""
        for name in self._names.get(self.tensor(one), ()):
            path = name
            while path and path not in self._calls:
                path = path.rpartition(".")[0]
            yield path

    def _missing_for_itself(self, calls: list[Call], one: Comparison) -> bool:
        """Whether a gradient comes back to all that use it, on both sides, so that only the parameter gets none: it is
        frozen, or detached. What calls others may have lost it in there, where gradients stop somewhere."""
        if not calls or (self._cut and any(call.index in self._around for call in calls)):
            return False
        arrivals = self._scenes.reference.arrivals
        for call in calls:
            partner = self._scenes.pairs.get(call.index)
            in_base = partner is not None and any(slot.tensor in arrivals for slot in partner.outputs)
            if not in_base or call.index not in self._scenes.reached:
                return False
        return True
