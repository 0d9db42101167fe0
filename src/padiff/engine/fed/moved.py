"""What one author cuts and orders inside a module, and the other around it (windows): neither what the module is given
nor what it returns has its partner's shape, and both hold the same numbers.

Nothing can be put in its place then. Whether it holds base's numbers in whatever order says whether the module was
given what base's was, returned what base's did, and sent back what base's did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from padiff.capture.feeding import Feed
from padiff.capture.held import HostValue
from padiff.compare.arrays import compare_arrays
from padiff.compare.kinds import kind_of
from padiff.compare.layouts import agree_in_any_layout
from padiff.engine.families import comparable, floating
from padiff.engine.fed.beside import Beside
from padiff.engine.fed.blame import Blame
from padiff.engine.free.partners import alters
from padiff.records import Array, Call, Comparison, Outcome, Phase, Role, Slot, Tolerance, Value

FEW = 2.0**-10
"""The spacing of a dtype of few digits: float16, bfloat16."""


class Run(Protocol):
    """The run that this is part of."""

    def allowed_at(self, phase: Phase, role: Role, base: Call, one: Slot) -> Tolerance: ...

    def told(
        self, phase: Phase, role: Role, base: Call, call: Call, one: Slot, other: Slot, outcome: Outcome
    ) -> Comparison: ...


class Sorted(NamedTuple):
    """Two tensors, their numbers in order, and what came of comparing them."""

    base: Slot
    raw: Slot
    outcome: Outcome


class Moved:
    """Holds the first thing that calls are given and return against base's, in any order."""

    def __init__(
        self,
        blame: Blame,
        beside: Beside,
        run: Run,
        gradients: tuple[Mapping[tuple[int, int], Value], Mapping[int, Value]] | None,
    ) -> None:
        self._blame, self._beside, self._run = blame, beside, run
        self._gradients = gradients
        """What base's calls sent back, and what came back to its tensors; None where gradients are not asked for."""
        self._reached: set[int] = set()
        """Raw calls that returned base's numbers in another order, and to which base's gradients came back so."""
        self._given: set[int] = set()
        """Raw calls that were given base's numbers in another order."""

    def merely(self, role: Role, base: Call, call: Call, one: Slot, other: Slot) -> bool:
        """Whether what a call is given first, or returns first, holds base's numbers, but cut and ordered otherwise."""
        firsts = (base.inputs, call.inputs) if role == "input" else (base.outputs, call.outputs)
        if one is not firsts[0][0] or other is not firsts[1][0] or one.value.shape == other.value.shape:
            return False
        if not self._beside.begins_elsewhere(base, call) or _holding_as_many(*firsts) is None:
            return False
        if not self._in_any_order("forward", role, base, one, other).outcome.agrees:
            return False
        tolerance, arrays = self._run.allowed_at("forward", role, base, one), (one.value.numpy(), other.value.numpy())
        few = max(tolerance.narrow, *(kind_of(array.dtype).eps for array in arrays)) >= FEW
        if few and (call.index in self._given or not alters(base)):
            return True  # to few digits, rows that are much alike agree in any order
        moved = not agree_in_any_layout(*arrays, tolerance)
        if moved and role == "input":
            self._given.add(call.index)
        return moved

    def given(self, base: Call, call: Call, feeds: dict[int, Feed]) -> None:
        """A call begins; what it is given first may have no slot beside it."""
        if call.index in self._blame.misfed or not self._beside.begins_elsewhere(base, call):
            return
        first = _holding_as_many(base.inputs, call.inputs)
        if first is None or (call.index, first[1].origin) in self._blame.givers.right:
            return
        one, other = first
        if not self._in_any_order("forward", "input", base, one, other).outcome.agrees:
            self._blame.misfed.add(call.index)
            return
        if one.value.shape != other.value.shape:
            self._given.add(call.index)
        if other.tensor not in feeds and self._asks(one, other):
            feeds[other.tensor] = Feed(None, partial(self._sends_back, base, call, one, other), True)

    def returned(self, base: Call, call: Call, feeds: dict[int, Feed]) -> None:
        """The same of what it returns. Where those are other numbers, too, it may just end elsewhere."""
        first = None if call.index in self._blame.misfed else _holding_as_many(base.outputs, call.outputs)
        if first is None or first[1].tensor in feeds:
            return
        one, other = first
        found = self._in_any_order("forward", "output", base, one, other)
        if not found.outcome.agrees:
            self._accuse("forward", "output", base, call, found, "doubtful")
            return
        self._blame.doubts.like_its_partner(base, call)
        if self._asks(one, other):
            feeds[other.tensor] = Feed(None, partial(self._comes_back, call, base, one, other), True)

    def _asks(self, one: Slot, other: Slot) -> bool:
        return self._gradients is not None and one.tracked and other.tracked

    def _sends_back(self, base: Call, call: Call, one: Slot, other: Slot, gradient: Value) -> Array | None:
        expected = None if self._gradients is None else self._gradients[0].get((base.index, one.tensor))
        if expected is None or call.index not in self._reached:
            return None
        found = self._in_any_order("backward", "input", base, valued(one, expected), valued(other, gradient))
        if not found.outcome.agrees:
            self._accuse("backward", "input", base, call, found, "input")
            self._blame.sent_moved(call)
        return None

    def _comes_back(self, call: Call, base: Call, one: Slot, other: Slot, gradient: Value) -> Array | None:
        expected = None if self._gradients is None else self._beside.arrival(one.tensor, self._gradients[1])
        if expected is not None:
            found = self._in_any_order("backward", "output", base, valued(one, expected), valued(other, gradient))
            if found.outcome.agrees:
                self._reached.add(call.index)
        return None

    def _in_any_order(self, phase: Phase, role: Role, base: Call, one: Slot, other: Slot) -> Sorted:
        one, other = (valued(slot, HostValue(np.sort(slot.value.numpy(), None))) for slot in (one, other))
        outcome = compare_arrays(one.value.numpy(), other.value.numpy(), self._run.allowed_at(phase, role, base, one))
        return Sorted(one, other, replace(outcome, message=f"{outcome.message} (in whatever order)"))

    def _accuse(self, phase: Phase, role: Role, base: Call, call: Call, found: Sorted, kind: str) -> None:
        comparison = self._run.told(phase, role, base, call, *found)
        self._blame.accuse(phase, role, base, call, found.base, found.raw, comparison, kind, None)


def _holding_as_many(base: Sequence[Slot], raw: Sequence[Slot]) -> tuple[Slot, Slot] | None:
    """The first of each, where they may hold the same in different shapes."""
    if not base or not raw or base[0].value.overwritten or raw[0].value.overwritten:
        return None
    one, other = base[0], raw[0]
    return (one, other) if floating(one.value) and comparable(one.value, other.value) else None


def valued(slot: Slot, value: Value) -> Slot:
    """The slot with another value in it."""
    return Slot(slot.name, slot.tensor, value, slot.tracked, slot.stands_for)
