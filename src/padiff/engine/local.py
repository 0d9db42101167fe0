"""What every call adds by itself: a run in which each is fed what base's was fed, forward and backward.

The input a call *would have* received is compared before it is replaced: when it differs although what came before was
right, the code between the calls is to blame. What a call returns, given base's inputs, is its own doing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from padiff.align import pair_slots
from padiff.capture.feeding import Feed, See
from padiff.capture.held import HostValue
from padiff.compare.arrays import compare_arrays, missing
from padiff.compare.layouts import compare_arranged
from padiff.compare.masks import masked_alike, without_masked
from padiff.compare.measure import rms_gap
from padiff.engine.beside import Beside
from padiff.engine.gallery import Gallery
from padiff.engine.saturation import Saturation
from padiff.records import (
    Array,
    Call,
    Comparison,
    Fault,
    Outcome,
    Phase,
    Role,
    Slot,
    StepTrace,
    Tolerance,
    Value,
)

SAME = Outcome("equal", None, "equal")

CONTAINERS = frozenset({"Sequential", "ModuleList", "LayerList", "ModuleDict", "LayerDict"})
"""Hold whatever they are given: two of them are not alike."""

Key = tuple[str, str, int, int]
"""Phase, role, base's call (-1 where it does not matter) and base's tensor."""


Sort = tuple[str, str, str]
"""Kind of base's module, kind of raw's, name of the input."""


@dataclass
class Reference:
    """Base's step as it ran by itself, with the gradients at the borders of each call (see ``Witness``)."""

    trace: StepTrace
    contributions: Mapping[tuple[int, int], Value]
    arrivals: Mapping[int, Value]
    noise: Mapping[Key, float] = field(default_factory=dict)
    """How far rounding alone moves each of these."""


class Excuse(NamedTuple):
    """What a call was given besides, that differs from what base's was given: a mask, a table of positions."""

    sort: Sort
    fault: Fault


class LocalRun:
    """Feeds a model base's tensors and compares what it makes of them."""

    def __init__(
        self,
        reference: Reference,
        beside: Beside,
        tolerance: Tolerance,
        *,
        loosely: bool = False,
        backward: bool = True,
        change: Callable[[Array], Array] | None = None,
        look: Callable[[str, str, int, str, Value], None] | None = None,
        gallery: Gallery | None = None,
    ) -> None:
        self._gallery = gallery
        self._reference, self._beside, self._tolerance, self._loosely = reference, beside, tolerance, loosely
        self._backward = backward
        self._saturation = Saturation(reference.trace, reference.contributions, reference.arrivals)
        self._look = look
        """Told of everything before it is compared: phase, role, raw's call, name, raw's value."""
        self._change = change
        """Done to everything that is fed: rounding, imitated."""
        self.pairs: list[tuple[Call, Call]] = []
        self.comparisons: list[Comparison] = []
        self.faults: list[Fault] = []
        """Filled when the run is over: forward first, then backward, each in the order of computation."""
        self._accused: list[tuple[Fault, list[Excuse]]] = []
        self.gaps: dict[Key, float] = {}
        self._met: dict[int, tuple[Call | None, Call]] = {}
        """Raw's calls with base's beside them."""
        self._children: dict[int, list[Call]] = {}
        """Raw call to the calls of its children that have ended, in order."""
        self._doubtful: list[Fault] = []
        """Outputs of calls that may just end elsewhere in base: if they are wrong, something later will be."""
        self._likes: defaultdict[tuple[str, str], list[Fault | None]] = defaultdict(list)
        """The two classes of calls that may end elsewhere to what each of them was found to return: None: the same."""
        self._misfed: set[int] = set()
        """Raw calls whose first input differs: what they return may differ for that alone."""
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
        self._lost = False
        """Something could not be replaced: what differs from here on may come from there."""

    # --- forward

    def feed(self, call: Call) -> Mapping[int, Feed]:
        base = self._beside.at_start(call)
        self._met[call.index] = (base, call)
        feeds: dict[int, Feed] = {}
        if base is None and self._backward and self._beside.told_late(call):
            for slot in call.inputs[:1]:  # as it is: only what comes back to it is asked for
                if slot.tracked and not slot.value.overwritten:
                    feeds[slot.tensor] = Feed(slot.value.numpy(), partial(self._late_contribution, call, slot), True)
        for one, other in [] if base is None else self._slots(base.inputs, call.inputs, "input"):
            assert base is not None
            if other.tensor in feeds:
                continue
            outcome, arranged = self._edge(base, call, one, other)
            if outcome.agrees:
                self._dispel(one, other)
            elif other is call.inputs[0]:
                self._misfed.add(call.index)
            if arranged is None or not _same_family(arranged, other.value):
                continue
            if not outcome.agrees and other is not call.inputs[0] and self._besides(one, other):
                continue
            if not outcome.agrees and self._beside.begins_elsewhere(base, call):
                continue  # it may begin elsewhere, too: its children will tell
            if call.parent < 0 and not outcome.agrees:  # the caller's own choice, and for the caller to mend
                self._lost = True
                continue
            self._replace(feeds, one, other, arranged, partial(self._contribution, base, call, one, other))
        if base is not None and call.index not in self._misfed and self._beside.begins_elsewhere(base, call):
            self._look_at_first(base, call)
        return feeds

    def _look_at_first(self, base: Call, call: Call) -> None:
        """What a call is given first may be cut and ordered otherwise (windows), and have no slot beside it: whether it
        holds the same numbers says whether the call was given what base's was."""
        if not base.inputs or not call.inputs or base.inputs[0].value.overwritten or call.inputs[0].value.overwritten:
            return
        one, other = base.inputs[0], call.inputs[0]
        if not _floating(one.value) or not _comparable(one.value, other.value):
            return
        tolerance = self._allowed(self._key("forward", "input", base, one))
        if not compare_arrays(np.sort(one.value.numpy(), None), np.sort(other.value.numpy(), None), tolerance).agrees:
            self._misfed.add(call.index)

    def _edge(self, base: Call, call: Call, one: Slot, other: Slot) -> tuple[Outcome, Array | None]:
        """What the call would have been given."""
        besides = other is not call.inputs[0] and self._besides(one, other)
        kind = "beside" if besides else "elsewhere" if self._beside.begins_elsewhere(base, call) else "edge"
        found = self._compare("forward", "input", base, call, one, other, kind)
        if self._backward and one.tracked and not other.tracked and found[0].agrees:
            self._cut(base, call, one, other, between=True)
        return found

    def _besides(self, one: Slot, other: Slot) -> bool:
        """A mask, a table of positions: it may be written otherwise and say the same."""
        return self._loosely or not (one.tracked or other.tracked)

    def hand_on(self, call: Call) -> Mapping[int, Feed]:
        forgiven = self._beside.forgiven(call)
        if forgiven is not None:
            self._doubtful = [fault for fault in self._doubtful if fault.raw.index != forgiven]
        known = self._met.get(call.index, (None, call))[0] is not None
        self._children.setdefault(call.parent, []).append(call)
        base = self._beside.at_end(call)
        if base is None:
            return {}
        self._met[call.index] = (base, call)
        self.pairs.append((base, call))
        feeds: dict[int, Feed] = {}
        loose = self._beside.loose(base, call) and call.parent >= 0
        misled = False
        if not known and call.inputs:  # its partner was not known when it began, and what it was given is its own
            given = self._slots(base.inputs[:1], call.inputs[:1], "input")
            misled = any(not self._edge(base, call, one, other)[0].agrees for one, other in given)
        for place, (one, other) in enumerate(self._slots(base.outputs, call.outputs, "output")):
            if other.tensor in feeds:
                continue
            kind = "beside" if misled or (loose and place) else "doubtful" if loose else "output"
            outcome, arranged = self._compare("forward", "output", base, call, one, other, kind)
            if outcome.agrees:
                self._dispel(one, other)
                if kind == "doubtful":
                    self._likes[base.kind, call.kind].append(None)
            if arranged is None or not _same_family(arranged, other.value):
                self._lost = self._lost or (not outcome.agrees and kind == "output")
                continue
            if loose and not outcome.agrees and call.index not in self._passed_on:
                continue
            if self._backward and one.tracked and not other.tracked and outcome.agrees:
                self._cut(base, call, one, other, between=False)
            self._replace(feeds, one, other, arranged, partial(self._arrival, base, call, one, other))
        if call.index not in self._faulty:
            self._idle.update(excuse.sort for excuse in self._excuses.get(call.index, ()))
        return feeds

    def tagged(self, call: Call) -> Mapping[int, Feed]:
        """A tensor that the user marked on both sides: what differs here arose in the code around the mark."""
        base = self._beside.tagged(call)
        if base is None:
            return {}
        feeds: dict[int, Feed] = {}
        for one, other in self._slots(base.outputs, call.outputs, "output"):
            _, arranged = self._compare("forward", "output", base, call, one, other, "edge")
            if arranged is not None and other.tensor not in feeds and _same_family(arranged, other.value):
                self._replace(feeds, one, other, arranged, partial(self._arrival, base, call, one, other))
        return feeds

    def _replace(self, feeds: dict[int, Feed], one: Slot, other: Slot, arranged: Array, see: See) -> None:
        tracked = self._backward and one.tracked
        feeds[other.tensor] = Feed(self._changed(arranged), see if tracked else None, tracked)

    def _cut(self, base: Call, call: Call, one: Slot, other: Slot, *, between: bool) -> None:
        """Raw does not follow gradients where base does."""
        if self._lost or not _floating(one.value):
            return
        role: Role = "input" if between else "output"
        outcome = missing("raw stops following gradients here (no_grad, detach)")
        comparison = self._comparison("backward", role, base, call, one, other, outcome)
        place = self._around(call, other) if between else (base, call)
        after = self._child_of(place[1], call) if between else None
        before = self._before(after) if after else None
        self._accused.append((Fault("backward", *place, comparison, between=between, before=before, after=after), []))

    def _slots(self, left: Sequence[Slot], right: Sequence[Slot], role: Role) -> list[tuple[Slot, Slot]]:
        pairs, _, _ = pair_slots(left, right, loosely=role == "input" and self._loosely)
        return [(one, other) for one, other in pairs if not one.value.overwritten and not other.value.overwritten]

    def _changed(self, array: Array) -> Array:
        return array if self._change is None else self._change(array)

    # --- backward

    def _contribution(self, base: Call, call: Call, one: Slot, other: Slot, gradient: Value) -> Array | None:
        """What the call sends back to one of its inputs."""
        members = self._beside.members(base, call)
        if members is None:  # its share of what base's sends back is not known; the sum is seen where it arrives
            return None
        expected = self._sent_back(members, one)
        return None if expected is None else self._gradient("input", base, call, one, other, expected, gradient)

    def _late_contribution(self, call: Call, other: Slot, gradient: Value) -> Array | None:
        """The same, of a call whose partner was not known when it began."""
        base, call = self._met[call.index]
        given = [] if base is None else self._slots(base.inputs[:1], [other], "input")
        if base is None or not given:
            return None
        return self._contribution(base, call, given[0][0], other, gradient)

    def _sent_back(self, members: Sequence[Call], one: Slot) -> Value | None:
        sent = self._reference.contributions
        if len(members) == 1:
            return sent.get((members[0].index, one.tensor))
        found = [
            value for call in members for slot in call.inputs[:1] if (value := sent.get((call.index, slot.tensor)))
        ]
        if len(found) < len(members) or len({value.shape for value in found}) > 1:
            return None
        return HostValue(np.sum([value.numpy() for value in found], axis=0, dtype=found[0].numpy().dtype))

    def _arrival(self, base: Call, call: Call, one: Slot, other: Slot, gradient: Value) -> Array | None:
        """What comes back to an output of the call, from all that used it."""
        expected = self._beside.arrival(one.tensor, self._reference.arrivals)
        return None if expected is None else self._gradient("output", base, call, one, other, expected, gradient)

    def _gradient(
        self, role: Role, base: Call, call: Call, one: Slot, other: Slot, expected: Value, gradient: Value
    ) -> Array | None:
        one, other = replace(one, value=expected), replace(other, value=gradient)
        _, arranged = self._compare("backward", role, base, call, one, other, role)
        return None if arranged is None else self._changed(arranged)

    # --- comparing

    def _compare(
        self, phase: Phase, role: Role, base: Call, call: Call, one: Slot, other: Slot, kind: str
    ) -> tuple[Outcome, Array | None]:
        key = self._key(phase, role, base, one)
        if self._look is not None:
            self._look(phase, role, call.index, other.name or one.name, other.value)
        expected, found = one.value.numpy(), other.value.numpy()
        if self._change is not None:  # base beside itself: how far things move is all that is asked
            moved = rms_gap(expected, found) if expected.shape == found.shape else math.inf
            self.gaps[key] = max(self.gaps.get(key, 0.0), moved)
            return SAME, expected if expected.shape == found.shape else None
        tolerance = self._allowed(key)
        if role == "input" and phase == "forward":
            expected = masked_alike(expected, found)
        rest = without_masked(expected, found) if call.tag and phase == "forward" else None
        if rest is not None:  # what is left out is large, and so is its noise
            (expected, found), tolerance = rest, replace(tolerance, predicted=None)
        outcome, arranged = compare_arranged(
            expected, found, tolerance, gradients=phase == "backward", loosely=self._loosely
        )
        if rest is not None:
            arranged = None if arranged is None else one.value.numpy()
        if phase == "backward" and self._saturation.explains(role, base, outcome):
            message = f"{outcome.message}; rounding of a gradient that hardly gets through"
            outcome = replace(outcome, verdict="rounding", reason=None, message=message)
        if self._gallery is not None and not outcome.agrees:
            self._gallery.see(phase, outcome, expected, found)
        comparison = self._comparison(phase, role, base, call, one, other, outcome)
        if outcome.agrees or kind not in ("beside", "elsewhere"):
            self.comparisons.append(comparison)
        if not outcome.agrees and kind != "elsewhere" and (kind != "beside" or role == "input"):
            self._accuse(phase, role, base, call, one, other, comparison, kind, arranged)
        return outcome, arranged

    def _comparison(
        self, phase: Phase, role: Role, base: Call, call: Call, one: Slot, other: Slot, outcome: Outcome
    ) -> Comparison:
        return Comparison(
            phase,
            self._reference.trace.step,
            role,
            base.path,
            call.path,
            base.kind,
            call.kind,
            other.name or one.name,
            outcome,
            base.index,
            call.index,
            other.tensor,
        )

    def _key(self, phase: Phase, role: Role, base: Call, one: Slot) -> Key:
        return (phase, role, base.index if (phase, role) == ("backward", "input") else -1, one.tensor)

    def _allowed(self, key: Key) -> Tolerance:
        if not self._reference.noise:
            return self._tolerance
        phase, role, index, tensor = key
        found = [self._reference.noise.get((phase, role, index, part)) for part in self._beside.parts(tensor)]
        known = [noise for noise in found if noise is not None and math.isfinite(noise)]
        if not known:
            return self._tolerance
        return replace(self._tolerance, predicted=max(known), sums=phase == "backward")

    def _accuse(
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
        if self._lost or (kind == "edge" and not _comparable(one.value, other.value)):
            return
        if phase == "forward" and self._misled(call):
            return
        between = call.tag or (phase, role) in (("forward", "input"), ("backward", "output"))
        place = self._around(call, other) if between else (base, call)
        after = self._child_of(place[1], call) if between else None
        fault = Fault(
            phase,
            place[0],
            place[1],
            comparison,
            between=between,
            before=self._before(after) if after else None,
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
            if call.index not in self._misfed:
                self._likes[base.kind, call.kind].append(fault)
            if not self._doubtful or call.index not in self._misfed:  # else what was doubtful before explains it
                self._doubtful.append(fault)
        elif self._doubtful and phase == "forward" and (kind == "edge" or call.parent < 0):
            if kind == "edge":
                self._passed_on |= self._passing_on(call, other)
            self._accuse_now(call, self._latest_doubt())
            self._doubtful.clear()
            self._left = True
        elif self._left and call.parent < 0 and phase == "forward":
            pass  # what was found wrong in a doubtful place was never replaced, and may have come here
        else:
            if kind == "edge":
                self._passed_on |= self._passing_on(call, other)
            self._accuse_now(call, fault)

    def _dispel(self, one: Slot, other: Slot) -> None:
        """A tensor that a call is given, or returns, just as another had returned it, and that is right there, was
        right then."""
        self._doubtful = [fault for fault in self._doubtful if not _told_by(fault, one, other)]

    def _passing_on(self, call: Call, slot: Slot) -> set[int]:
        """The calls around this one that merely passed on what they were given."""
        found: set[int] = set()
        parent = call.parent
        while parent in self._met and any(given.origin == slot.origin for given in self._met[parent][1].inputs):
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

    def _latest_doubt(self, found: Fault | None = None) -> Fault:
        """What ended last, or a doubt that is given; or the innermost within it that was doubtful already."""
        found = found or self._doubtful[-1]
        place = next(place for place, doubt in enumerate(self._doubtful) if doubt is found)
        for earlier in reversed(self._doubtful[:place]):
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

    def _child_of(self, outer: Call, call: Call) -> Call:
        """The call made by ``outer`` in which this one happens, or this one."""
        inner = call
        while inner.parent != outer.index and inner.parent in self._met:
            inner = self._met[inner.parent][1]
        return inner if inner.parent == outer.index else call

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
            if blamed is None and not any(given.origin == slot.origin for given in raw.inputs):
                blamed = raw
            if blamed is not None and base is not None:
                return base, blamed
            parent = raw.parent
        own = self._met.get(call.index, (None, call))[0]
        return own or call, call

    def finish(self) -> None:
        """Of what calls were given besides, the outermost that never went well is to blame for what went wrong
        inside."""
        if self._gallery is not None:
            self.comparisons = self._gallery.hung(self.comparisons)
        for fault, excuses in self._accused:
            blamed = next((excuse.fault for excuse in excuses if excuse.sort not in self._idle), None)
            self.faults.append(blamed or fault)
        if not any(fault.phase == "forward" for fault in self.faults):
            self.faults[:0] = self._unlike_their_likes()

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


def _comparable(base: Value, raw: Value) -> bool:
    """A mask may be boolean here and floating there, and say the same."""
    return _kind(base.dtype) == _kind(raw.dtype) and math.prod(base.shape) == math.prod(raw.shape)


def _same_family(array: Array, raw: Value) -> bool:
    return array.shape == raw.shape and _kind(str(array.dtype)) == _kind(raw.dtype)


def _floating(value: Value) -> bool:
    return _kind(value.dtype) == "float"


def _kind(dtype: str) -> str:
    return "float" if dtype.startswith(("float", "bfloat")) else dtype.rstrip("0123456789")
