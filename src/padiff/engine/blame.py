"""Who is at fault when a call that is fed base's tensors goes wrong: the call, the code around it, or what it was given
besides."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from padiff.records import Array, Call, Comparison, Fault, Slot

Sort = tuple[str, str, str]
"""Kind of base's module, kind of raw's, name of the input."""


class Excuse(NamedTuple):
    """What a call was given besides, that differs from what base's was given: a mask, a table of positions."""

    sort: Sort
    fault: Fault


class Blame:
    """Told of raw's calls, of those of base beside them, and of every comparison that differs."""

    def __init__(self) -> None:
        self.lost = False
        """Something could not be replaced: what differs from here on may come from there."""
        self._accused: list[tuple[Fault, list[Excuse]]] = []
        self._met: dict[int, tuple[Call | None, Call]] = {}
        """Raw's calls with base's beside them."""
        self._children: dict[int, list[Call]] = {}
        """Raw call to the calls of its children that have ended, in order."""
        self._doubtful: list[Fault] = []
        """Outputs of calls that may just end elsewhere in base: if they are wrong, something later will be."""
        self._excuses: dict[int, list[Excuse]] = {}
        """Raw call to what it was given besides its first input that differs: matters if what it returns differs."""
        self._idle: set[Sort] = set()
        """Sorts of such inputs with which some call returned what base's did: they differ in form only."""
        self._left = False
        """Something doubtful turned out to be wrong."""
        self._passed_on: set[int] = set()
        """Raw calls that were given something wrong and were not fed: what goes wrong inside comes from there."""
        self._faulty: set[int] = set()
        """Raw calls in which something was found."""

    # --- what happens

    def meet(self, base: Call | None, call: Call) -> None:
        """A call of raw has begun, or its partner is known."""
        self._met[call.index] = (base, call)

    def beside(self, call: Call) -> Call | None:
        return self._met.get(call.index, (None, call))[0]

    def end(self, call: Call) -> None:
        self._children.setdefault(call.parent, []).append(call)

    def forgive(self, call: int) -> None:
        """What was doubtful about a call of raw has turned out well."""
        self._doubtful = [fault for fault in self._doubtful if fault.raw.index != call]

    def went_well(self, call: Call) -> None:
        """Called when everything a call returned was compared: if nothing was found, its excuses were none."""
        if call.index not in self._faulty:
            self._idle.update(excuse.sort for excuse in self._excuses.get(call.index, ()))

    def passed_on(self, call: Call) -> bool:
        """Whether the call was given something wrong that could not be replaced."""
        return call.index in self._passed_on

    # --- who is at fault

    def cut(self, base: Call, call: Call, slot: Slot, comparison: Comparison, *, between: bool) -> None:
        """Raw stops following gradients at a call, or in the code before it."""
        if not self.lost:
            self._accused.append((self._fault(base, call, slot, comparison, between), []))

    def accuse(
        self, base: Call, call: Call, slot: Slot, comparison: Comparison, kind: str, arranged: Array | None
    ) -> None:
        """A tensor of a call differs; ``kind`` says in which respect it was looked at."""
        phase = comparison.phase
        if self.lost or (phase == "forward" and self._misled(call)):
            return
        between = (phase, comparison.role) in (("forward", "input"), ("backward", "output"))
        expected = None if arranged is None else np.array(arranged)
        fault = self._fault(base, call, slot, comparison, between, expected, np.array(slot.value.numpy()))
        if kind == "beside":
            self._excuses.setdefault(call.index, []).append(Excuse((base.kind, call.kind, slot.name), fault))
        elif kind == "doubtful":
            self._doubtful.append(fault)
        elif self._doubtful and phase == "forward" and (kind == "edge" or call.parent < 0):
            if kind == "edge":
                self._passed_on |= self._passing_on(call, slot)
            self._accuse_now(call, self._latest_doubt())
            self._doubtful.clear()
            self._left = True
        elif self._left and call.parent < 0 and phase == "forward":
            pass  # what was found wrong in a doubtful place was never replaced, and may have come here
        else:
            if kind == "edge":
                self._passed_on |= self._passing_on(call, slot)
            self._accuse_now(call, fault)

    def _fault(
        self,
        base: Call,
        call: Call,
        slot: Slot,
        comparison: Comparison,
        between: bool,
        expected: Array | None = None,
        found: Array | None = None,
    ) -> Fault:
        place = self._around(call, slot) if between else (base, call)
        return Fault(
            comparison.phase,
            *place,
            comparison,
            between=between,
            before=self._before(call) if between else None,
            after=call if between else None,
            expected=expected,
            found=found,
        )

    def _passing_on(self, call: Call, slot: Slot) -> set[int]:
        """The calls around this one that merely passed on what they were given."""
        found: set[int] = set()
        parent = call.parent
        while parent in self._met and any(given.tensor == slot.tensor for given in self._met[parent][1].inputs):
            found.add(parent)
            parent = self._met[parent][1].parent
        return found

    def _misled(self, call: Call) -> bool:
        """Whether the call, or one around it, was given something wrong that could not be replaced."""
        index = call.index
        while index in self._met:
            if index in self._passed_on:
                return True
            index = self._met[index][1].parent
        return False

    def _latest_doubt(self) -> Fault:
        """What ended last, or the innermost within it that was doubtful already."""
        found = self._doubtful[-1]
        for earlier in reversed(self._doubtful[:-1]):
            index = earlier.raw.parent
            while index in self._met and index != found.raw.index:
                index = self._met[index][1].parent
            if index != found.raw.index:
                break
            found = earlier
        return found

    def _accuse_now(self, call: Call, fault: Fault) -> None:
        excuses: list[Excuse] = []
        index = call.index
        while index in self._met:
            self._faulty.add(index)
            excuses = [*self._excuses.get(index, ()), *excuses]
            index = self._met[index][1].parent
        self._accused.append((fault, excuses if fault.phase == "forward" else []))

    def _before(self, call: Call) -> Call | None:
        """The child of the same parent that ended last before this one began."""
        ended = [one for one in self._children.get(call.parent, []) if one.index < call.index]
        return ended[-1] if ended else None

    def _around(self, call: Call, slot: Slot) -> tuple[Call, Call]:
        """Whose code hands this tensor to the call: the call around it, or one further out that passed it on."""
        blamed: Call | None = None
        parent = call.parent
        while parent in self._met:
            base, raw = self._met[parent]
            if blamed is None and not any(given.tensor == slot.tensor for given in raw.inputs):
                blamed = raw
            if blamed is not None and base is not None:
                return base, blamed
            parent = raw.parent
        own = self._met.get(call.index, (None, call))[0]
        return own or call, call

    def faults(self) -> list[Fault]:
        """Of what calls were given besides, the outermost that never went well is to blame for what went wrong
        inside."""
        found: list[Fault] = []
        for fault, excuses in self._accused:
            blamed = next((excuse.fault for excuse in excuses if excuse.sort not in self._idle), None)
            found.append(blamed or fault)
        return found
