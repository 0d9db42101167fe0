"""The calls of a run as they begin and end, with base's beside them: what is inside of what, and what came before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from padiff.frameworks.tree import join
from padiff.records import Call, ModuleNode, StepTrace

Met = tuple[Call | None, Call]
"""Base's call, where one stands beside it, and raw's."""


class CallsMet:
    """The calls that raw has made so far."""

    def __init__(self) -> None:
        self._pairs: dict[int, Met] = {}
        self._children: dict[int, list[Call]] = {}
        """Raw call to the calls of its children that have ended, in order."""
        self._with_partner: set[int] = set()
        """Modules of raw of which some call has base's beside it."""

    def began(self, base: Call | None, call: Call) -> None:
        """A call has begun, or it is known by now what stands beside it."""
        self._pairs[call.index] = (base, call)
        if base is not None:
            self._with_partner.add(call.node)

    def has_partner(self, node: int) -> bool:
        """Whether base's stood beside some call of a module of raw."""
        return node in self._with_partner

    def ended(self, call: Call) -> bool:
        """A call has ended; returns whether it was known what stands beside it."""
        self._children.setdefault(call.parent, []).append(call)
        return self.beside(call) is not None

    def __getitem__(self, index: int) -> Met:
        return self._pairs[index]

    def beside(self, call: Call) -> Call | None:
        """Base's call beside one of raw's."""
        return self._pairs.get(call.index, (None, call))[0]

    def outward(self, index: int) -> Iterator[Met]:
        """A call, and those around it, innermost first."""
        while index in self._pairs:
            pair = self._pairs[index]
            yield pair
            index = pair[1].parent

    def inside(self, call: Call, outer: Call) -> bool:
        """Whether a call happens in another."""
        return any(one.index == outer.index for _, one in self.outward(call.parent))

    def child_of(self, outer: Call, call: Call) -> Call:
        """The call made by ``outer`` in which this one happens, or this one."""
        chain = (call, *(one for _, one in self.outward(call.parent)))
        return next((one for one in chain if one.parent == outer.index), call)

    def before(self, call: Call) -> Call | None:
        """The child of the same parent that ended last before this one began."""
        ended = [one for one in self._children.get(call.parent, []) if one.index < call.index]
        return ended[-1] if ended else None

    def last_child(self, call: Call) -> Call | None:
        """The call that ended last of those that this one made."""
        ended = self._children.get(call.index)
        return ended[-1] if ended else None

    def as_ended(self, call: Call) -> Call | None:
        """A call with what it returned; None where it has not."""
        return next((one for one in self._children.get(call.parent, ()) if one.index == call.index), None)

    def lone_around(self, call: Call) -> Call | None:
        """The call around this one, with what it returned, if it has ended and nothing of base's stands beside it."""
        base, around = self._pairs.get(call.parent, (None, None))
        return None if around is None or base is not None else self.as_ended(around)

    def all_ended(self) -> Iterator[Call]:
        """All calls that have ended."""
        return (call for ended in self._children.values() for call in ended)

    def all_inside(self, call: Call) -> Iterator[Call]:
        """The calls in this one that have ended."""
        for one in self._children.get(call.index, ()):
            yield one
            yield from self.all_inside(one)


def parents_of(calls: Iterable[Call]) -> dict[int, int]:
    """Call to the one around it."""
    return {call.index: call.parent for call in calls}


def outward(index: int, parents: Mapping[int, int]) -> set[int]:
    """A call and those around it."""
    found: set[int] = set()
    while index in parents:
        found.add(index)
        index = parents[index]
    return found


def used_by_others(node: ModuleNode, trace: StepTrace) -> bool:
    """Whether a gradient came back to what a module holds that was not called: code around it took its tensors from it
    (a fused projection, of which parts are taken)."""
    return any(trace.parameter_gradients.get(join(node.path, spec.name)) is not None for spec in node.parameters)
