"""Who is to blame for what differs in a run that is fed base's tensors.

What a call returns, given base's inputs, is its own doing. What it would have been given, and differs, is the doing of
the code around it, or of a call further out that passed it on. Some of that is in doubt until something later tells.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from padiff.engine.families import comparable
from padiff.records import Array, Call, Comparison, Fault, Phase, Role, Side, Slot

CONTAINERS = frozenset({"Sequential", "ModuleList", "LayerList", "ModuleDict", "LayerDict"})
"""Hold whatever they are given: two of them are not alike."""

Sort = tuple[str, str, str]
"""Kind of base's module, kind of raw's, name of the input."""


class Excuse(NamedTuple):
    """What a call was given besides, that differs from what base's was given: a mask, a table of positions."""

    sort: Sort
    fault: Fault


class Blame:
    """The faults of one run, as it goes."""

    def __init__(self, *, loosely: bool = False) -> None:
        self._loosely = loosely
        """The models are built differently, and calls that belong together may be given different things."""
        self.faults: list[Fault] = []
        """Filled when the run is over: forward first, then backward, each in the order of computation."""
        self._accused: list[tuple[Fault, list[Excuse]]] = []
        self.met: dict[int, tuple[Call | None, Call]] = {}
        """Raw's calls with base's beside them."""
        self._children: dict[int, list[Call]] = {}
        """Raw call to the calls of its children that have ended, in order."""
        self._doubtful: list[Fault] = []
        """Outputs of calls that may just end elsewhere in base: if they are wrong, something later will be."""
        self._likes: defaultdict[tuple[str, str], list[Fault | None]] = defaultdict(list)
        """The two classes of calls that may end elsewhere to what each of them was found to return: None: the same."""
        self.right: set[tuple[int, int]] = set()
        """Raw calls with the tensors that they were given and that are base's."""
        self.misfed: set[int] = set()
        """Raw calls whose first input differs: what they return may differ for that alone."""
        self._excuses: dict[int, list[Excuse]] = {}
        """Raw call to what it was given besides its first input that differs: matters if what it returns differs."""
        self._idle: set[Sort] = set()
        """Sorts of such inputs with which some call returned what base's did: they differ in form only."""
        self._left = False
        """Something doubtful turned out to be wrong."""
        self.passed_on: set[int] = set()
        """Raw calls that were given something wrong and were not fed: what goes wrong inside comes from there."""
        self.faulty: set[int] = set()
        """Raw calls in which something was found."""
        self._sent_moved: list[Call] = []
        """Raw calls that sent back something wrong which has not been met yet where it arrives."""
        self._made_alone: dict[int, Call] = {}
        """Raw tensor to the innermost call that made it and has no partner."""
        self._stopped: set[int] = set()
        """Raw calls in which one side stops following gradients."""
        self.lost = False
        """Something could not be replaced: what differs from here on may come from there."""

    # --- what happens

    def began(self, base: Call | None, call: Call) -> None:
        self.met[call.index] = (base, call)

    def ended(self, call: Call, forgiven: int | None) -> bool:
        """A call ends, and another may turn out to be right; returns whether its partner had been known before."""
        if forgiven is not None:
            self._doubtful = [fault for fault in self._doubtful if fault.raw.index != forgiven]
        self._children.setdefault(call.parent, []).append(call)
        return self.met.get(call.index, (None, call))[0] is not None

    def alone(self, call: Call) -> None:
        """A call of raw that nothing of base's stands beside has ended."""
        given = {slot.origin for slot in call.inputs}
        for slot in call.outputs:
            if slot.origin == slot.tensor and slot.tensor not in given:
                self._made_alone.setdefault(slot.tensor, call)

    def like_its_partner(self, base: Call, call: Call) -> None:
        """A call that might end elsewhere returned what base's did."""
        self._likes[base.kind, call.kind].append(None)

    def judged(self, call: Call) -> None:
        """All that a call returned was seen; where it is right, what the call was given besides does not matter."""
        if call.index not in self.faulty:
            self._idle.update(excuse.sort for excuse in self._excuses.get(call.index, ()))

    def cut(
        self,
        base: Call,
        call: Call,
        other: Slot,
        comparison: Comparison,
        *,
        between: bool,
        side: Side = "raw",
        off: Callable[[Call | None, Call], bool] = lambda base, call: False,
    ) -> None:
        """One side does not follow gradients where the other does. ``off`` says of a pair of calls whether following
        was switched off when that side's began: then the code around is to blame."""
        outer = None if between else self._outermost(call, off)
        place = self._around(call, other) if between else (base, call)
        if outer is not None and outer.parent in self.met and (around := self.met[outer.parent])[0] is not None:
            place, call, between = (around[0] or base, around[1]), outer, True
        after = self._child_of(place[1], call) if between else None
        before = self._before(after) if after else None
        fault = Fault("backward", *place, comparison, between=between, before=before, after=after, side=side)
        self._accused.append((fault, []))
        index = place[1].index
        while index in self.met:
            self._stopped.add(index)
            index = self.met[index][1].parent

    def _outermost(self, call: Call, off: Callable[[Call | None, Call], bool]) -> Call | None:
        """The outermost call around this one, or this one, that began so."""
        found: Call | None = None
        index = call.index
        while index in self.met and off(*self.met[index]):
            found = self.met[index][1]
            index = found.parent
        return found

    def sent_nothing(self, base: Call, call: Call, comparison: Comparison, side: Side = "raw") -> None:
        """A call of one side got a gradient and sent none back: what differs before it, in calls around it, follows
        from that."""
        if call.index in self._stopped:
            return  # it is known where inside
        around: set[int] = set()
        parent = call.parent
        while parent in self.met:
            around.add(parent)
            parent = self.met[parent][1].parent

        def follows(fault: Fault) -> bool:
            earlier = fault.after is None or fault.after.index < call.index
            return fault.phase == "backward" and fault.raw.index in around and (earlier or not fault.between)

        kept = [(fault, excuses) for fault, excuses in self._accused if not follows(fault)]
        place = next((n for n, (fault, _) in enumerate(kept) if fault.phase == "backward"), len(kept))
        kept.insert(place, (Fault("backward", base, call, comparison, side=side), []))
        self._accused = kept

    def sent_moved(self, call: Call) -> None:
        """A call sent back something wrong that could not be replaced: it will be seen where it arrives."""
        self._sent_moved.append(call)

    def _comes_from_moved(self, call: Call) -> bool:
        """Whether what arrives at a call is what a later one beside it sent back; asked once for each."""
        sent = next((one for one in self._sent_moved if one.parent == call.parent and one.index > call.index), None)
        if sent is not None:
            self._sent_moved.remove(sent)
        return sent is not None

    def not_given(self, base: Call, call: Call, comparison: Comparison) -> None:
        """One side's call is given a tensor, and the other's is not: who calls it is to blame if what it returns
        differs."""
        outer = self.met.get(call.parent, (None, call))
        if outer[0] is None:
            return
        fault = Fault("forward", outer[0], outer[1], comparison, between=True, before=self._before(call), after=call)
        excuse = Excuse((base.kind, call.kind, f"no {comparison.name}"), fault)
        self._excuses.setdefault(call.index, []).append(excuse)

    # --- who it is

    def accuse(
        self,
        phase: Phase,
        role: Role,
        base: Call,
        call: Call,
        one: Slot,
        other: Slot,
        comparison: Comparison,
        kind: str,
        arranged: Array | None,
    ) -> None:
        if kind == "edge" and not comparable(one.value, other.value):
            if self._loosely or other is not call.inputs[0]:
                return
            if arranged is None:  # another shape, which stays: what the call returns will tell whether that matters
                kind = "beside"
        if self.lost:
            return
        if phase == "forward" and self._misled(call):
            return
        between = call.tag or (phase, role) in (("forward", "input"), ("backward", "output"))
        place = self._around(call, other) if between else (base, call)
        maker = self._maker(call, other) if (phase, role, kind) == ("forward", "input", "edge") else None
        if maker is not None:  # it is handed on just as that call returned it
            place, between = (place[0], maker), maker.index in self._children
        after = self._child_of(place[1], call) if between and maker is None else None
        if after is not None and phase == "backward" and self._comes_from_moved(after):
            return
        fault = Fault(
            phase,
            place[0],
            place[1],
            comparison,
            between=between,
            before=self._children[maker.index][-1] if maker and between else self._before(after) if after else None,
            after=after,
            expected=np.array(one.value.numpy() if arranged is None else arranged),
            found=np.array(other.value.numpy()),
        )
        if kind == "beside":
            returned = [doubt for doubt in self._doubtful if _told_by(doubt, None, other)]
            if returned:  # it is what a doubtful call returned, and tells on that
                fault = self._latest_doubt(returned[-1])
            self._excuses.setdefault(call.index, []).append(Excuse((base.kind, call.kind, other.name), fault))
        elif kind == "doubtful":
            if call.index not in self.misfed:
                self._likes[base.kind, call.kind].append(fault)
            if not self._doubtful or call.index not in self.misfed:  # else what was doubtful before explains it
                self._doubtful.append(fault)
        elif phase == "forward" and (kind == "edge" or call.parent < 0) and self._any_doubt():
            if kind == "edge":
                self.passed_on |= self._passing_on(call, other)
            self._accuse_now(call, self._latest_doubt())
            self._doubtful.clear()
            self._left = True
        elif self._left and call.parent < 0 and phase == "forward":
            pass  # what was found wrong in a doubtful place was never replaced, and may have come here
        else:
            if kind == "edge":
                self.passed_on |= self._passing_on(call, other)
            self._accuse_now(call, fault)

    def _any_doubt(self) -> bool:
        """Whether something doubtful may be wrong; what one side rectifies in the module, and the other after it, is
        not what was wrong."""
        while self._doubtful and _rectifies(latest := self._latest_doubt()):
            self._doubtful = [doubt for doubt in self._doubtful if doubt is not latest]
        return bool(self._doubtful)

    def _maker(self, call: Call, slot: Slot) -> Call | None:
        """The call without a partner that made what a call is given, where it is not around that."""
        maker = self._made_alone.get(slot.origin)
        outer = call.parent
        while maker is not None and outer in self.met:
            if outer == maker.index:
                return None
            outer = self.met[outer][1].parent
        return maker

    def dispel(self, one: Slot, other: Slot) -> None:
        """A tensor that a call is given, or returns, just as another had returned it, and that is right there, was
        right then."""
        self._doubtful = [fault for fault in self._doubtful if not _told_by(fault, one, other)]

    def _passing_on(self, call: Call, slot: Slot) -> set[int]:
        """The calls around this one that merely passed on what they were given."""
        found: set[int] = set()
        parent = call.parent
        while parent in self.met and self._passed(self.met[parent][1], slot):
            found.add(parent)
            parent = self.met[parent][1].parent
        return found

    def _passed(self, outer: Call, slot: Slot) -> bool:
        """Whether a call was given this very tensor, and wrong: what was right when it came is not passed on, but
        chosen."""
        return (
            any(given.origin == slot.origin for given in outer.inputs) and (outer.index, slot.origin) not in self.right
        )

    def _misled(self, call: Call) -> bool:
        """Whether the call, or one around it, was given something wrong that could not be replaced."""
        index = call.index
        while index in self.met:
            if index in self.passed_on:
                return True
            index = self.met[index][1].parent
        return False

    def _latest_doubt(self, found: Fault | None = None) -> Fault:
        """What ended last, or a doubt that is given; or the innermost within it that was doubtful already."""
        found = found or self._doubtful[-1]
        place = next(place for place, doubt in enumerate(self._doubtful) if doubt is found)
        for earlier in reversed(self._doubtful[:place]):
            index = earlier.raw.parent
            while index in self.met and index != found.raw.index:
                index = self.met[index][1].parent
            if index != found.raw.index:
                break
            found = earlier
        return found

    def _accuse_now(self, call: Call, fault: Fault) -> None:
        excuses: list[Excuse] = []
        index = call.index
        while index in self.met:
            self.faulty.add(index)
            excuses = [*self._excuses.get(index, ()), *excuses]
            index = self.met[index][1].parent
        self._accused.append((fault, excuses if fault.phase == "forward" else []))

    def _child_of(self, outer: Call, call: Call) -> Call:
        """The call made by ``outer`` in which this one happens, or this one."""
        inner = call
        while inner.parent != outer.index and inner.parent in self.met:
            inner = self.met[inner.parent][1]
        return inner if inner.parent == outer.index else call

    def _before(self, call: Call) -> Call | None:
        """The child of the same parent that ended last before this one began."""
        ended = [one for one in self._children.get(call.parent, []) if one.index < call.index]
        return ended[-1] if ended else None

    def _around(self, call: Call, slot: Slot) -> tuple[Call, Call]:
        """Whose code hands this tensor to the call: the call around it, or one further out that passed it on."""
        blamed: Call | None = None
        parent = call.parent
        while parent in self.met:
            base, raw = self.met[parent]
            if blamed is None and not self._passed(raw, slot):
                blamed = raw
            if blamed is not None and base is not None:
                return base, blamed
            parent = raw.parent
        own = self.met.get(call.index, (None, call))[0]
        return own or call, call

    def finish(self) -> None:
        """Of what calls were given besides, the outermost that never went well is to blame for what went wrong
        inside."""
        for fault, excuses in self._accused:
            blamed = next((excuse.fault for excuse in excuses if excuse.sort not in self._idle), None)
            if fault.phase == "backward" and self._was_given_otherwise(fault.raw):
                continue  # a gradient made with a wrong mask follows from the mask
            sent = fault.phase == "backward" and fault.found is not None and not fault.between
            if sent and fault.raw.index in self._stopped:
                continue  # so does what a call sends back, in which nothing is followed from some place on
            self.faults.append(blamed or fault)
        if not any(fault.phase == "forward" for fault in self.faults):
            self.faults[:0] = self._unlike_their_likes()

    def _was_given_otherwise(self, call: Call) -> bool:
        """Whether the call, or one around it, was given something besides that differs, matters, and stayed."""
        index = call.index
        while index in self.met:
            if index in self.faulty and any(one.sort not in self._idle for one in self._excuses.get(index, ())):
                return True
            index = self.met[index][1].parent
        return False

    def _unlike_their_likes(self) -> list[Fault]:
        """A class that returns what base's does, but for one call of it: that one does not end elsewhere, it is wrong,
        even if nothing after it shows (an order that a mean forgets)."""
        pending = {id(doubt) for doubt in self._doubtful}
        found: list[Fault] = []
        for (kind, _), seen in self._likes.items():
            wrong = [fault for fault in seen if fault is not None]
            alone = len(wrong) == 1 and len(seen) > 2 and id(wrong[0]) in pending
            if alone and kind not in CONTAINERS and not _rectifies(wrong[0]):
                found += wrong
        return found[:1]


def _rectifies(fault: Fault) -> bool:
    """Whether one side has only set to zero what is negative on the other: there the other's own code does that."""
    base, raw = fault.expected, fault.found
    if base is None or raw is None or base.shape != raw.shape or base.dtype.kind != "f" or not base.size:
        return False
    least = 1e-4 * float(np.abs(base).max())
    return any(float(np.abs(np.maximum(one, 0) - other).max()) <= least for one, other in ((base, raw), (raw, base)))


def _told_by(fault: Fault, one: Slot | None, other: Slot) -> bool:
    """Whether a tensor of raw, or of base, is the very output that a fault is about; a call may return others."""
    place = next((n for n, slot in enumerate(fault.raw.outputs) if slot.tensor == fault.comparison.tensor), None)
    if place is None:
        return False
    alike = len(fault.base.outputs) == len(fault.raw.outputs)
    base = fault.base.outputs[place].origin if alike else None
    return other.origin == fault.raw.outputs[place].origin or (one is not None and one.origin == base)
