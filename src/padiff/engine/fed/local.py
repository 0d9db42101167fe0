"""What every call adds by itself: a run in which each is fed what base's was fed, forward and backward.

The input a call *would have* received is compared before it is replaced: when it differs although what came before was
right, the code between the calls is to blame. What a call returns, given base's inputs, is its own doing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from padiff.align import in_whatever_order, pair_slots, wherever_they_are
from padiff.capture.feeding import Feed, See
from padiff.capture.held import Held, HostValue
from padiff.capture.jitter import Jitter
from padiff.compare.arrays import missing
from padiff.engine.families import floating, may_replace
from padiff.engine.fed.beside import Beside, resized
from padiff.engine.fed.blame import Blame, in_a_frame
from padiff.engine.fed.elsewhere import Elsewhere
from padiff.engine.fed.given_slots import (
    as_base_writes,
    counts_up,
    hold_the_same,
    leaves_nothing_out,
    nearly_the_same,
    unlike_masks,
)
from padiff.engine.fed.givers import asked_for_no_number
from padiff.engine.fed.local_comparing import Key, LocalComparing
from padiff.engine.fed.moved import Moved, valued
from padiff.engine.fed.prints import goes_on_from
from padiff.engine.fed.saturation import Saturation
from padiff.engine.fed.silent import Place, Silent, nothing
from padiff.engine.free.shares import Share, shares_of, summed, watch_copies
from padiff.engine.gallery import Gallery
from padiff.records import (
    Array,
    Call,
    Fault,
    Outcome,
    Role,
    Side,
    Slot,
    StepTrace,
    Tolerance,
    Value,
)


@dataclass
class Reference:
    """Base's step as it ran by itself, with the gradients at the borders of each call (see ``Witness``)."""

    trace: StepTrace
    contributions: Mapping[tuple[int, int], Value]
    arrivals: Mapping[int, Value]
    noise: Mapping[Key, float] = field(default_factory=dict)
    """How far rounding alone moves each of these."""
    off: frozenset[int] = frozenset()
    """Base's calls that began while gradients were not followed."""
    gradients_later: bool = False
    """Only forward's noise is known so far: gradients are held against the least that rounding explains anywhere."""
    shaken: StepTrace | None = None
    """Base shaken, as far as code goes that was watched then."""


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
        change: Jitter | None = None,
        look: Callable[[str, str, int, str, Value], None] | None = None,
        gallery: Gallery | None = None,
        following: Callable[[], bool] | None = None,
        innocent: frozenset[int] | None = None,
        masks: bool = False,
        takes: Callable[[Call, str], bool] = lambda call, name: True,
        takes_more: Callable[[Call], bool] = lambda call: False,
    ) -> None:
        """``takes`` says whether a call of raw may be given something of a name, ``takes_more`` whether anything that
        it was not given."""
        self._takes, self._takes_more = takes, takes_more
        self._reference, self._beside, self._loosely, self._backward = reference, beside, loosely, backward
        self._change, self._masks = change, masks
        """Whether masks that may be wrong, or merely of another form, are replaced by base's."""
        self.unlike_masks: set[int] = set()
        """Raw calls that are given such."""
        self.pairs: list[tuple[Call, Call]] = []
        self.elsewhere = Elsewhere()
        self._blame = Blame(loosely=loosely, innocent=innocent, held=partial(goes_on_from, reference.trace))
        sends = reference.contributions, reference.arrivals
        self.compared = LocalComparing(
            reference.trace.step,
            reference.noise,
            beside,
            tolerance,
            self._blame,
            Saturation(reference.trace, *sends, tolerance.narrow),
            loosely=loosely,
            gradients_later=reference.gradients_later,
            change=change,
            look=look,
            gallery=gallery,
        )
        self.silent = Silent(self._blame, self.compared, *sends, reference.off, following)
        self._shares = backward and change is None
        """Whether copies of one tensor matter: base beside itself has the same."""
        self._moved = None
        if change is None:
            self._moved = Moved(self._blame, beside, self.compared, sends if backward else None)

    @property
    def faults(self) -> list[Fault]:
        """Filled by ``look`` and ``finish``: forward first, then backward, each in the order of computation."""
        return self._blame.faults

    @property
    def first_place(self) -> int | None:
        """The raw call in which something is wrong first."""
        return next((fault.raw.index for fault in self.faults if fault.phase == "forward"), None)

    @property
    def wrong_places(self) -> frozenset[int]:
        return frozenset(fault.raw.index for fault in self.faults if fault.phase == "forward")

    @property
    def masks_in_question(self) -> bool:
        """Whether what is wrong first was given a mask that may be wrong, or of another form."""
        return self.first_place is not None and self._given_unlike(self.first_place)

    def meant_otherwise(self, before: LocalRun) -> bool:
        """Whether masks in base's form, which this run was fed, leave wrong what was wrong first ``before``, or make
        something wrong that was right: raw's were meant as they were."""
        spoilt = self.wrong_places - before.wrong_places
        return before.first_place in self.wrong_places or any(map(self._given_unlike, spoilt))

    def _given_unlike(self, index: int) -> bool:
        """Whether a call, or one around it, was given such a mask."""
        return not self.unlike_masks.isdisjoint(call.index for _, call in self._blame.met.outward(index))

    @property
    def further(self) -> list[Fault]:
        """Of calls that return something else besides their first output."""
        return self._blame.further_faults

    @property
    def rivals(self) -> Sequence[Fault]:
        """Calls of which one was found wrong because something later was, and any may just end elsewhere."""
        return self._blame.doubts.rivals

    @property
    def unsure(self) -> bool:
        """Whether there are several such, or one that was given the wrong thing, or that somebody else is accused
        for, or whose likes all return something else than base's."""
        accused = {fault.raw.index for fault in self.faults}
        doubtful = (one.raw.index in self._blame.misfed or one.raw.index not in accused for one in self.rivals)
        return len(self.rivals) > 1 or any(doubtful) or any(map(self.likes, self.rivals))

    def alone(self, rival: Fault) -> bool:
        """Whether all others of the class of one in doubt return what base's do."""
        return self._blame.doubts.alone(rival)

    def likes(self, rival: Fault) -> Sequence[Fault]:
        """Other calls of its two classes, if all return something else than base's."""
        return self._blame.doubts.likes(rival)

    @property
    def lost(self) -> bool:
        """Whether something could not be replaced: what differs from there on may come from there."""
        return self._blame.lost

    @property
    def unreplaced(self) -> frozenset[int]:
        """Raw calls that return something wrong which went on as it was."""
        return frozenset(self._blame.unreplaced)

    # --- forward

    def feed(self, call: Call) -> Mapping[int, Feed]:
        base = self._beside.at_start(call)
        self._blame.met.began(base, call)
        self.silent.began(call)
        if base is not None and self._loosely:
            self.elsewhere.began(call, self._beside.sort(base, call))
        feeds: dict[int, Feed] = {}
        if base is None and self._backward and self._beside.told_late(call):
            for slot in call.inputs[:1]:  # as it is: only what comes back to it is asked for
                if slot.tracked and not slot.value.overwritten:
                    feeds[slot.tensor] = Feed(None, partial(self._late_contribution, call, slot), True)
        pairs = [] if base is None else self._slots(base.inputs, call.inputs, "input")
        shares = {} if base is None or not self._shares else shares_of(pairs, base.inputs, call.inputs)
        for one, other in pairs:
            assert base is not None
            if other.tensor in feeds:
                continue
            if self._moved is not None and self._moved.merely("input", base, call, one, other):
                continue
            if other is call.inputs[0] and asked_for_no_number(base) and one.value.shape != other.value.shape:
                continue  # each hands it what is at hand there
            outcome, arranged = self._edge(base, call, one, other)
            if outcome.agrees:
                self._blame.doubts.dispel(one, other)
                self._blame.givers.right.add((call.index, other.origin))
                self._blame.givers.has.setdefault((call.index, one.origin), other.origin)
                if other is call.inputs[0]:
                    self._beside.begun_alike(base, call)
                    self._blame.doubts.goes_on(call)
            elif other is call.inputs[0]:
                self._blame.misfed.add(call.index)
                if arranged is None and self._beside.framed_otherwise(base, call):
                    told = self.compared.comparison("forward", "input", base, call, one, other, outcome)
                    self._blame.framed_otherwise(call, one, other, told)
                if arranged is not None and self._beside.begins_elsewhere(base, call):
                    self.elsewhere.began_otherwise(call, self._beside.sort(base, call))
            if arranged is None or not may_replace(arranged, other.value):
                continue
            if not self._backward and self.compared.is_handed(one, other):
                continue  # it is base's as it is
            if not outcome.agrees and self._given_besides(base, call, one, other):
                continue
            if not outcome.agrees and self._beside.begins_elsewhere(base, call):
                continue  # it may begin elsewhere, too: its children will tell
            if call.parent < 0 and not outcome.agrees:  # the caller's own choice, and for the caller to mend
                self._blame.lost = True
                continue
            if self._backward and one.tracked and other.tracked and self._change is None:
                self.silent.given(Place(base, call, one, other))
            see = partial(self._contribution, base, call, one, other, shares.get(other.tensor))
            stopped = self._only_raw_follows(one, other) and not self._besides(one, other)
            self._replace(feeds, one, other, arranged, nothing if stopped else see, stopped=stopped)
        if base is not None and self._change is None:
            self._mask(feeds, base, call)
        if base is not None and self._moved is not None:
            self._moved.given(base, call, feeds)
        if base is not None:
            watch_copies(feeds, shares, partial(partial, self._contribution, base, call))
        if base is not None and (self._loosely or base.kind == call.kind) and call.parent >= 0:
            self._look_for_missing(base, call)
        return feeds

    def _mask(self, feeds: dict[int, Feed], base: Call, call: Call) -> None:
        """Masks of ones and zeros where base's is added to scores, or that say the contrary of base's: the call may
        make that of them, and may be meant to be given that."""
        for other in call.inputs[1:]:
            if other.tracked or other.tensor in feeds or other.value.overwritten:
                continue
            for one in base.inputs:
                if one.tracked or one.value.overwritten:
                    continue
                form = as_base_writes(one.value.numpy(), other.value.numpy())
                if form is None:
                    continue
                self.unlike_masks.add(call.index)
                if self._masks and call.parent >= 0:
                    meant = Slot(one.name, one.tensor, HostValue(form), stands_for=one.stands_for)
                    self.compared.compare("forward", "input", base, call, meant, other, "edge")
                    feeds[other.tensor] = Feed(form, None, False)
                break

    def _look_for_missing(self, base: Call, call: Call) -> None:
        """What one side's call is given and the other's is not."""
        names = {slot.name for slot in base.inputs}
        given = [slot for slot in call.inputs if slot.name in names or not self._beside.by_the_way(call, slot)]
        if len(base.inputs) == len(given):
            self._blame.given_alike(base, call)
            return
        _, only_base, only_raw = pair_slots(base.inputs, given)
        more = len(base.inputs) > len(given)
        sides: tuple[Side, Side] = ("base", "raw") if more else ("raw", "base")
        has, lacks = sides
        for slot in only_base if more else only_raw:
            handed = self._loosely and slot.tracked  # authors hand on activations as they like
            if leaves_nothing_out(slot) or (handed and not (more and self._takes_more(call))):
                continue
            if more and counts_up(slot) and not self._takes(call, slot.name):
                continue
            shown = f"{has} one of shape {list(slot.value.shape)}"
            outcome = missing(f"{lacks} gives {call.path} no {slot.name or 'tensor'}, {shown}")
            comparison = self.compared.comparison("forward", "input", base, call, slot, slot, outcome)
            added = None if not handed or slot.value.overwritten else np.array(slot.value.numpy())
            self._blame.not_given(base, call, comparison, (has, slot.origin), added)

    def _edge(self, base: Call, call: Call, one: Slot, other: Slot) -> tuple[Outcome, Array | Held | None]:
        """What the call would have been given."""
        besides = self._given_besides(base, call, one, other)
        kind = "beside" if besides else "elsewhere" if self._beside.begins_elsewhere(base, call) else "edge"
        found = self.compared.compare("forward", "input", base, call, one, other, kind)
        if self._backward and found[0].agrees and one.tracked != other.tracked and (one.tracked or not besides):
            self._cut(base, call, one, other, between=True)
        return found

    def _only_raw_follows(self, one: Slot, other: Slot) -> bool:
        """Base does not follow gradients where raw does: raw is stopped there, too, so that nothing else differs."""
        return self._backward and self._change is None and other.tracked and not one.tracked

    def _given_besides(self, base: Call, call: Call, one: Slot, other: Slot) -> bool:
        """Whether what a call returns must tell if it was given the wrong thing."""
        return asked_for_no_number(base) if other is call.inputs[0] else self._besides(one, other)

    def _besides(self, one: Slot, other: Slot) -> bool:
        """A mask, a table of positions: it may be written otherwise and say the same."""
        return self._loosely or not (one.tracked or other.tracked)

    def hand_on(self, call: Call) -> Mapping[int, Feed]:
        known = self._blame.ended(call, self._beside.forgiven(call))
        base = self._beside.at_end(call)
        if base is None:
            if self._beside.lacking(call):
                self._blame.givers.alone(call)
            return {}
        self._blame.met.began(base, call)
        self.pairs.append((base, call))
        feeds: dict[int, Feed] = {}
        loose = call.parent >= 0 and (self._beside.loose(base, call) or (self._loosely and resized(base, call)))
        misled = unfollowed = False
        if not known and call.inputs:  # its partner was not known when it began, and what it was given is its own
            given = self._slots(base.inputs[:1], call.inputs[:1], "input")
            misled = any(
                not self._edge(base, call, one, other)[0].agrees and not in_a_frame(one, other) for one, other in given
            )
            unfollowed = any(one.tracked and not other.tracked for one, other in given)
        met, right, moved = False, True, self._moved if loose and not misled else None
        pairs = [] if self._beside.looks_up(base, call) else self._returned(base, call)
        shares = shares_of(pairs, base.outputs, call.outputs) if self._shares else {}
        for place, (one, other) in enumerate(pairs):
            if other.tensor in feeds or (moved is not None and moved.merely("output", base, call, one, other)):
                continue
            met = True
            kind = "beside" if misled or (loose and place) else "doubtful" if loose else "output"
            outcome, arranged = self.compared.compare("forward", "output", base, call, one, other, kind)
            right = right and outcome.agrees
            if outcome.agrees:
                self._blame.doubts.dispel(one, other)
                if kind == "doubtful":
                    self._blame.doubts.like_its_partner(base, call)
            if arranged is None or not may_replace(arranged, other.value):
                self._blame.lost = self._blame.lost or (not outcome.agrees and kind == "output")
                continue
            if loose and not outcome.agrees and call.index not in self._blame.passed_on:
                continue
            stopped = self._only_raw_follows(one, other) and not (loose and place)
            if (
                self._backward
                and outcome.agrees
                and (stopped or (one.tracked and not other.tracked and not unfollowed))
            ):
                self._cut(base, call, one, other, between=False)
            elif self._backward and outcome.agrees and self._change is None and one.tracked:
                self.silent.returned(Place(base, call, one, other))
            see = nothing if stopped else partial(self._arrival, base, call, one, other, shares.get(other.tensor))
            self._replace(feeds, one, other, arranged, see, stopped=stopped)
        if moved is not None and not met:
            moved.returned(base, call, feeds)
        watch_copies(feeds, shares, partial(partial, self._arrival, base, call))
        self._blame.judged(call, right=met and right, wrong=met and not right)
        return feeds

    def tagged(self, call: Call) -> Mapping[int, Feed]:
        """A tensor that the user marked on both sides: what differs here arose in the code around the mark."""
        base = self._beside.tagged(call)
        if base is None:
            return {}
        feeds: dict[int, Feed] = {}
        for one, other in self._returned(base, call):
            _, arranged = self.compared.compare("forward", "output", base, call, one, other, "edge")
            if arranged is not None and other.tensor not in feeds and may_replace(arranged, other.value):
                self._replace(feeds, one, other, arranged, partial(self._arrival, base, call, one, other, None))
        return feeds

    def _replace(
        self, feeds: dict[int, Feed], one: Slot, other: Slot, arranged: Array | Held, see: See, *, stopped: bool = False
    ) -> None:
        tracked = self._backward and one.tracked
        held = self.compared.is_handed(one, other) and self.compared.is_as_it_was(one, other)
        if arranged.shape == one.value.shape:
            self.compared.hand(one, other)
        feeds[other.tensor] = Feed(
            None if held else self._changed(arranged), see if tracked or stopped else None, tracked
        )

    def _cut(self, base: Call, call: Call, one: Slot, other: Slot, *, between: bool) -> None:
        """One side does not follow gradients where the other does."""
        if not self._blame.lost and floating(one.value):
            self.silent.cut(Place(base, call, one, other), between=between)

    def _returned(self, base: Call, call: Call) -> list[tuple[Slot, Slot]]:
        return self._slots(base.outputs, call.outputs, "output", inside=call.parent >= 0)

    def _slots(
        self, left: Sequence[Slot], right: Sequence[Slot], role: Role, *, inside: bool = False
    ) -> list[tuple[Slot, Slot]]:
        """Which belong together; ``inside`` of the model, where only who goes on tells which of several outputs is the
        one."""
        loosely = role == "input" and self._loosely
        pairs, only_left, only_right = pair_slots(left, right, loosely=loosely)
        if role == "output" and only_right and inside:
            pairs, only_right = wherever_they_are(pairs, only_right, nearly_the_same)
        if loosely and only_left and only_right:
            pairs += unlike_masks(only_left, only_right)
        if loosely and len(pairs) > 2:
            pairs = in_whatever_order(pairs, hold_the_same)
        return [(one, other) for one, other in pairs if not one.value.overwritten and not other.value.overwritten]

    def _changed(self, found: Array | Held) -> Array | Held:
        if self._change is None:
            return found
        return self._change.there(found) if isinstance(found, Held) else self._change(found)

    # --- backward

    def _contribution(
        self, base: Call, call: Call, one: Slot, other: Slot, share: Share | None, gradient: Value
    ) -> Array | Held | None:
        """What the call sends back to one of its inputs."""
        for slot in (other,) if share is None else share.raw.values():
            self.silent.sent(call, slot)
        ended = self._blame.met[call.index][0]
        if share is not None:
            if (ended is not None and ended.index != base.index) or self._beside.members(base, call) != [base]:
                return None
            sent = {tensor: self._reference.contributions.get((base.index, tensor)) for tensor in share.base}
            return self._shared("input", base, call, other, share, sent, gradient)
        if ended is not None and ended.index != base.index:  # around the one beside which it began
            expected = self._sent_back([ended], one)
            return None if expected is None else self._gradient("input", ended, call, one, other, expected, gradient)
        members = self._beside.members(base, call)
        if members is None:  # its share of what base's sends back is not known; the sum is seen where it arrives
            return None
        expected = self._sent_back(members, one)
        if expected is not None:
            return self._gradient("input", base, call, one, other, expected, gradient)
        if self._loosely or members != [base]:
            return None
        return self.silent.unasked(Place(base, call, one, other), gradient)

    def _late_contribution(self, call: Call, other: Slot, gradient: Value) -> Array | Held | None:
        """The same, of a call whose partner was not known when it began."""
        base, call = self._blame.met[call.index]
        given = [] if base is None else self._slots(base.inputs[:1], [other], "input")
        if base is None or not given:
            return None
        if self._moved is not None and self._moved.merely("input", base, call, *given[0]):
            return None
        return self._contribution(base, call, given[0][0], other, None, gradient)

    def _sent_back(self, members: Sequence[Call], one: Slot) -> Value | None:
        sent = self._reference.contributions
        parts = self._beside.parts(one.tensor)
        if parts != (one.tensor,):  # each is given a stretch of what the other side's one is
            own = {part: value for part in parts for call in members if (value := sent.get((call.index, part)))}
            return self._beside.arrival(one.tensor, own)
        if len(members) == 1:
            return sent.get((members[0].index, one.tensor))
        found = [
            value for call in members for slot in call.inputs[:1] if (value := sent.get((call.index, slot.tensor)))
        ]
        if len(found) < len(members) or len({value.shape for value in found}) > 1:
            return None
        return HostValue(np.sum([value.numpy() for value in found], axis=0, dtype=found[0].numpy().dtype))

    def _arrival(
        self, base: Call, call: Call, one: Slot, other: Slot, share: Share | None, gradient: Value
    ) -> Array | Held | None:
        """What comes back to an output of the call, from all that used it."""
        self.silent.arrived(call, other)
        if share is not None:
            come = {tensor: self._beside.arrival(tensor, self._reference.arrivals) for tensor in share.base}
            return self._shared("output", base, call, other, share, come, gradient)
        expected = self._beside.arrival(one.tensor, self._reference.arrivals)
        if expected is not None:
            return self._gradient("output", base, call, one, other, expected, gradient)
        return None if self._loosely else self.silent.forsaken(Place(base, call, one, other), gradient)

    def _shared(
        self,
        role: Role,
        base: Call,
        call: Call,
        other: Slot,
        share: Share,
        of_base: Mapping[int, Value | None],
        gradient: Value,
    ) -> Array | Held | None:
        """One share of a gradient; with the last of them the sum is held against base's."""
        found, expected = share.added(other, gradient), summed(of_base.values())
        if found is None or expected is None:
            return None
        one, added = valued(share.largest(of_base), expected), valued(other, found)
        outcome, arranged = self.compared.compare("backward", role, base, call, one, added, role)
        if arranged is None or (outcome.agrees and len(share.raw) > 1):
            return None
        whole = arranged.numpy() if isinstance(arranged, Held) else arranged
        last: Array = gradient.numpy() + (whole - found.numpy())  # it makes up for what all of them lack
        return last

    def _gradient(
        self, role: Role, base: Call, call: Call, one: Slot, other: Slot, expected: Value, gradient: Value
    ) -> Array | Held | None:
        one, other = valued(one, expected), valued(other, gradient)
        outcome, arranged = self.compared.compare("backward", role, base, call, one, other, role)
        if self._change is None and outcome.verdict == "equal" and expected.shape == gradient.shape:
            return None  # it is base's as it is
        return None if arranged is None else self._changed(arranged)

    def look(self) -> None:
        """Forward is over: who is to blame for what differs there."""
        self._blame.look()

    def finish(self) -> None:
        """The run is over: who was to blame is decided."""
        self.compared.finish()
        self.silent.look()
        self._blame.look()
        faults = self.silent.without_shares(self.silent.without_lacking(self.faults))
        lone = (self.silent.in_a_lone_taker, self.silent.in_a_lone_call)
        self.faults[:] = [next(filter(None, (tell(fault) for tell in lone)), fault) for fault in faults]
