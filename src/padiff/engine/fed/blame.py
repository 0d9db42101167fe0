"""Who is to blame for what differs in a run that is fed base's tensors.

What a call returns, given base's inputs, is its own doing. What it would have been given, and differs, is the doing of
the code around it, or of a call further out that passed it on. Some of that is in doubt until something later tells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from padiff.compare.angles import same_angles
from padiff.compare.layouts import framed, spread
from padiff.compare.masks import in_another_form, mean_the_same, turned_over
from padiff.compare.measure import rms, rms_gap
from padiff.engine.families import comparable, floating
from padiff.engine.fed.calls_met import CallsMet
from padiff.engine.fed.doubts import Doubts, longer
from padiff.engine.fed.given_slots import NEARLY
from padiff.engine.fed.givers import Givers, follows
from padiff.records import Array, Call, Comparison, Fault, Phase, Role, Side, Slot

Sort = tuple[str, str, str]
"""Kind of base's module, kind of raw's, name of the input."""


NOTHING = (-1, -1)
"""No tensors of base and raw."""


class Excuse(NamedTuple):
    """What a call was given besides, that differs from what base's was given: a mask, a table of positions."""

    sort: Sort
    fault: Fault
    tensors: tuple[int, int] = NOTHING
    """Of base and of raw, where both gave one."""
    alone: tuple[Side, int] | None = None
    """Which side gave one, and that, where the other gave none."""
    needs: int = 0
    """How many tensors another call of the two kinds must have been given by both sides: authors who build differently
    may hand a mask to different modules, but then to all of a kind."""
    added: Array | None = None
    """An activation that raw's call could have been given and was not: it tells if that is all that is missing."""


class Blame:
    """The faults of one run, as it goes."""

    def __init__(
        self,
        *,
        loosely: bool = False,
        innocent: frozenset[int] | None = None,
        held: Callable[[Call, Array], bool] = lambda base, array: False,
    ) -> None:
        self._loosely = loosely
        """The models are built differently, and calls that belong together may be given different things."""
        self.faults: list[Fault] = []
        """Filled when the run is over: forward first, then backward, each in the order of computation."""
        self._accused: list[tuple[Fault, list[Excuse]]] = []
        self.met = CallsMet()
        self.doubts = Doubts(self.met, innocent)
        self.misfed: set[int] = set()
        """Raw calls whose first input differs: what they return may differ for that alone."""
        self._excuses: dict[int, list[Excuse]] = {}
        """Raw call to what it was given besides its first input that differs: matters if what it returns differs."""
        self._framed: dict[int, Fault] = {}
        """Raw call to who padded what it was given, where that is not what base's pads."""
        self._idle: set[Sort | tuple[int, int]] = set()
        """Sorts of such inputs, and such inputs, with which some call returned what base's did: they differ in form
        only."""
        self._idle_in_doubt: set[Sort | tuple[int, int]] = set()
        """The same of calls that are in doubt when somebody looks."""
        self._given_alike: dict[tuple[str, str], int] = {}
        """Kinds of base's module and of raw's to how many tensors calls of them were given, at most, by both sides."""
        self._in_doubt: list[int] = []
        """Raw calls that returned something else, and may just end elsewhere."""
        self.unreplaced: set[int] = set()
        """Raw calls that were found to be wrong later than they ended: what they returned went on as it was."""
        self._left = False
        """Something doubtful turned out to be wrong."""
        self.passed_on: set[int] = set()
        """Raw calls that were given something wrong and were not fed: what goes wrong inside comes from there."""
        self.faulty: set[int] = set()
        """Raw calls in which something was found."""
        self.givers = Givers(self.met, self.faulty, held)
        self._sent_moved: list[Call] = []
        """Raw calls that sent back something wrong which has not been met yet where it arrives."""
        self._further: dict[tuple[int, int], Fault] = {}
        """Tensors of base and raw that calls returned besides their first, and that differ."""
        self._stopped: set[int] = set()
        """Raw calls in which one side stops following gradients."""
        self._cuts: set[int] = set()
        """The faults that are, by identity."""
        self._handed_on: dict[int, tuple[Fault, list[Call]]] = {}
        """Faults, by identity, with the calls without partner that returned what somebody was given there."""
        self.lost = False
        """Something could not be replaced: what differs from here on may come from there."""

    # --- what happens

    def ended(self, call: Call, forgiven: int | None) -> bool:
        """A call ends, and another may turn out to be right; returns whether its partner had been known before."""
        if forgiven is not None:
            self.doubts.forgive(forgiven)
        return self.met.ended(call)

    def judged(self, call: Call, *, right: bool, wrong: bool) -> None:
        """All that a call returned was seen; where nothing was found, what the call was given besides does not matter.
        ``right`` says that all of it is base's, ``wrong`` that some of it is not."""
        if right:
            self.doubts.outlive(call)
        if wrong:
            self._in_doubt.append(call.index)
        else:
            self._idle.update(self._idle_of(call.index))

    def _idle_of(self, index: int) -> Iterator[Sort | tuple[int, int]]:
        """What a call was given besides, where it did nothing wrong with it."""
        for excuse in self._excuses.get(index, ()) if index not in self.faulty else ():
            yield excuse.sort
            if excuse.tensors != NOTHING:
                yield excuse.tensors

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
        place = self.givers.around(call, other) if between else (base, call)
        around = None if outer is None else next(self.met.outward(outer.parent), None)
        if outer is not None and around is not None and around[0] is not None:
            place, call, between = (around[0], around[1]), outer, True
        maker = self.givers.maker(call, other) if between and side == "raw" and outer is None else None
        if maker is not None and follows(maker):  # it returned what is not followed, and may have returned anything
            place, between = (place[0], maker), False
        elif maker is not None and maker.inputs:
            call, place = maker, self.givers.around(maker, maker.inputs[0])
        after = self.met.child_of(place[1], call) if between else None
        before = self.met.before(after) if after else None
        fault = Fault("backward", *place, comparison, between=between, before=before, after=after, side=side)
        self._accused.append((fault, []))
        self._cuts.add(id(fault))
        self._stopped.update(one.index for _, one in self.met.outward(place[1].index))

    def _outermost(self, call: Call, off: Callable[[Call | None, Call], bool]) -> Call | None:
        """The outermost call around this one, or this one, that began so."""
        found: Call | None = None
        for pair in self.met.outward(call.index):
            if not off(*pair):
                break
            found = pair[1]
        return found

    def sent_nothing(self, base: Call, call: Call, comparison: Comparison, side: Side = "raw") -> None:
        """A call of one side got a gradient and sent none back: what differs before it, in calls around it, follows
        from that."""
        around = {one.index for _, one in self.met.outward(call.parent)}

        def follows(fault: Fault) -> bool:
            if fault.phase != "backward" or fault.raw.index not in around or id(fault) in self._cuts:
                return False
            return not fault.between or fault.after is None or fault.after.index < call.index

        kept = [(fault, excuses) for fault, excuses in self._accused if not follows(fault)]
        if call.index not in self._stopped:  # else it is known where inside
            before = (n for n, (fault, _) in enumerate(kept) if fault.phase == "backward" and _is_later(call, fault))
            place = next(before, len(kept))
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

    def further(
        self, base: Call, call: Call, one: Slot, other: Slot, comparison: Comparison, arranged: Array | None
    ) -> None:
        """A call returns something else besides its first output, which may be a mask or a cache in another form: who
        hands on that very tensor, or returns it, will tell whether it matters."""
        if self.doubts.returned(other) is not None:  # it merely hands on what one inside of it returned
            return
        if not self._misled(call) and call.index not in self.misfed:
            expected = np.array(one.value.numpy() if arranged is None else arranged)
            fault = Fault("forward", base, call, comparison, expected=expected, found=np.array(other.value.numpy()))
            self._further.setdefault((one.origin, other.origin), fault)

    @property
    def further_faults(self) -> list[Fault]:
        return list(self._further.values())

    def given_alike(self, base: Call, call: Call) -> None:
        """Both sides give their calls as many tensors."""
        kinds = base.kind, call.kind
        self._given_alike[kinds] = max(len(base.inputs), self._given_alike.get(kinds, 0))

    def not_given(
        self, base: Call, call: Call, comparison: Comparison, alone: tuple[Side, int], added: Array | None = None
    ) -> None:
        """One side's call is given a tensor, and the other's is not: who calls it is to blame if what it returns
        differs, or if it lacks just what is ``added`` there, unless the other makes the same itself."""
        around = list(self.met.outward(call.parent))
        partner = next((one for one, _ in around if one is not None), None)
        if partner is None:
            return
        before = self.met.before(call)
        fault = Fault("forward", partner, around[0][1], comparison, between=True, before=before, after=call)
        sort = (base.kind, call.kind, f"no {comparison.name}")
        needs = max(len(base.inputs), len(call.inputs)) if self._loosely and added is None else 0
        excuse = Excuse(sort, fault, alone=alone, needs=needs, added=added)
        self._excuses.setdefault(call.index, []).append(excuse)

    def framed_otherwise(self, call: Call, one: Slot, other: Slot, comparison: Comparison) -> None:
        """A call is given more than base's, which pads by itself, and not what that makes: if what it returns is wrong,
        the code that pads is to blame."""
        base, raw = self.givers.around(call, other)
        after = self.met.child_of(raw, call)
        arrays = np.array(one.value.numpy()), np.array(other.value.numpy())
        self._framed[call.index] = Fault(
            "forward", base, raw, comparison, True, self.met.before(after) if after else None, after, *arrays
        )

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
            if other is not call.inputs[0] or (self._loosely and _told_otherwise(one, other)):
                return
            if arranged is None:  # another shape, which stays: what the call returns will tell whether that matters
                kind = "beside"
        if kind == "beside" and (_says_the_same(one, other, arranged) or self._begun_elsewhere(call, one, other)):
            return
        if self.lost or (kind == "beside" and _of_other_sorts(one, other)):
            return
        if phase == "forward" and self._misled(call):
            return
        between = call.tag or (phase, role) in (("forward", "input"), ("backward", "output"))
        expected = one if (phase, role) == ("forward", "input") and other is call.inputs[0] else None
        place = (base, call)
        if between:
            place = self.givers.around(call, other, expected, returned=one if phase == "backward" else None)
        keeper = None if expected is None else self.givers.keeps_back(call, other, expected, place[1])
        place = place if keeper is None else (place[0], keeper)
        maker = self.givers.maker(call, other) if (phase, role, kind) == ("forward", "input", "edge") else None
        early = None if maker is None else self.givers.ends_early(call, maker, other)
        if maker is not None and early is None and self.givers.held(place[0], other.value.numpy()):
            maker = None  # it made what base makes, and goes on from elsewhere
        ended = maker if early is None else early[1]
        last = None if ended is None or self.givers.wholly_alone(ended) else self.met.last_child(ended)
        if maker is not None:  # it is handed on just as that call returned it
            place, between = early or (place[0], maker), early is not None or last is not None
        elif keeper is not None and not self.met.inside(call, keeper):
            last = self.met.last_child(keeper)
        met_inside = between and maker is None and (keeper is None or last is None)
        after = self.met.child_of(place[1], call) if met_inside else None
        if after is not None and phase == "backward" and self._comes_from_moved(after):
            return
        fault = Fault(
            phase,
            place[0],
            place[1],
            comparison,
            between=between,
            before=self.met.before(after) if after else last,
            after=after,
            expected=np.array(one.value.numpy() if arranged is None else arranged),
            found=np.array(other.value.numpy()),
        )
        if after is not None and expected is not None:
            self._handed_on[id(fault)] = fault, self.givers.returned_by(other, place[1])
        if (phase, role) == ("forward", "output"):
            fault = self._framed.get(call.index, fault)
        further = self._further.get((one.origin, other.origin)) if phase == "forward" else None
        if further is not None and kind in ("edge", "output"):
            self._accuse_now(call, further)
        elif kind == "beside":
            if other is call.inputs[0]:
                self.doubts.given_another_size.add(call.index)
            # Who returned it just so is to blame, and what a doubtful call returned tells on that.
            fault = further or self.doubts.returned(other) or fault
            excuse = Excuse((base.kind, call.kind, other.name), fault, (one.origin, other.origin))
            self._excuses.setdefault(call.index, []).append(excuse)
        elif kind == "doubtful" and call.index not in self._excuses and longer(fault):
            pass  # what is cut off of it, or is not, comes after it
        elif kind == "doubtful":
            self.doubts.add(base, call, fault, misfed=call.index in self.misfed)
        elif phase == "forward" and (kind == "edge" or call.parent < 0) and self.doubts.left(one, other):
            if kind == "edge":
                self.passed_on |= self.givers.passing_on(call, other)
            doubt = self.doubts.confirmed(one, other)
            if doubt is not None:
                self.unreplaced.add(doubt.raw.index)
                self._left = True
            self._accuse_now(call, doubt or fault)
        elif self._left and call.parent < 0 and phase == "forward":
            pass  # what was found wrong in a doubtful place was never replaced, and may have come here
        else:
            if kind == "edge":
                self.passed_on |= self.givers.passing_on(call, other)
            self._accuse_now(call, fault)

    def _begun_elsewhere(self, call: Call, one: Slot, other: Slot) -> bool:
        """Whether a call that is not given base's first is given another activation besides: what it is, it will be
        inside."""
        return self._loosely and call.index in self.misfed and (one.tracked or other.tracked)

    def _misled(self, call: Call) -> bool:
        """Whether the call, or one around it, was given something wrong that could not be replaced."""
        return any(one.index in self.passed_on for _, one in self.met.outward(call.index))

    def _accuse_now(self, call: Call, fault: Fault) -> None:
        """``call`` told of the fault, which may lie in another."""
        self.faulty.update(one.index for _, one in self.met.outward(call.index))
        self.faulty.update(one.index for _, one in self.met.outward(fault.raw.index))
        self._accused.append((fault, self._excuses_of(fault) if fault.phase == "forward" else []))

    def _excuses_of(self, fault: Fault) -> list[Excuse]:
        """What the call was given besides, and those around it, the outermost first: up to one that was given nothing
        but what base's was, which nothing further out can have reached."""
        excuses: list[Excuse] = []
        for _, one in self.met.outward(fault.raw.index):
            own = (e for e in self._excuses.get(one.index, ()) if e.added is None or _lacks_just(fault, e.added))
            excuses = [*own, *excuses]
            rightly = one.index not in self._excuses and bool(one.inputs)
            if rightly and all((one.index, slot.origin) in self.givers.right for slot in one.inputs):
                break
        return excuses

    def look(self) -> None:
        """Find the faults of what was seen so far. Of what calls were given besides, the outermost that never went well
        is to blame for what went wrong inside."""
        self.faults.clear()
        self._put_cuts_in_order()
        self._idle_in_doubt = {
            one
            for index in self._in_doubt
            if index not in self.doubts.given_another_size
            for one in self._idle_of(index)
        }
        mattering = [self._mattering(excuses) for _, excuses in self._accused]
        sure = {_sort_of(fault) for (fault, _), excuse in zip(self._accused, mattering, strict=True) if excuse is None}
        for (fault, _), excuse in zip(self._accused, mattering, strict=True):
            # Where its likes are wrong that were given nothing but the right things, that is not why.
            blamed = None if excuse is None or _sort_of(fault) in sure else excuse.fault
            if fault.phase == "backward" and self._was_given_otherwise(fault.raw):
                continue  # a gradient made with a wrong mask follows from the mask
            sent = fault.phase == "backward" and fault.found is not None and not fault.between
            if sent and fault.raw.index in self._stopped:
                continue  # so does what a call sends back, in which nothing is followed from some place on
            self.faults.append(blamed or self._of_who_returned_it(fault))
        if not any(fault.phase == "forward" for fault in self.faults):
            self.faults[:0] = self.doubts.unlike_their_likes()

    def _of_who_returned_it(self, fault: Fault) -> Fault:
        """Where a call was given just what one without a partner had returned, and what others like that return is
        right as they return it: the code around only hands on."""
        _, returned = self._handed_on.get(id(fault), (fault, []))
        lone = next(filter(self.givers.likes_are_right, reversed(returned)), None)
        if lone is None:
            return fault
        return replace(fault, raw=lone, before=self.met.last_child(lone), after=None)

    def _put_cuts_in_order(self) -> None:
        """They were met in forward; gradients come to the last of these places first. What one place stops in several
        calls it may stop before the first of them, and what is met inside of one follows from it."""
        places = [place for place, (fault, _) in enumerate(self._accused) if id(fault) in self._cuts]
        groups: list[list[tuple[Fault, list[Excuse]]]] = []
        for told in (self._accused[place] for place in places):
            around = {one.index for _, one in self.met.outward(told[0].raw.index)}
            own = next((group for group in groups if group[0][0].raw.index in around), None)
            if own is None:
                groups.append([told])
            else:
                own.append(told)
        ordered = [told for group in sorted(groups, key=lambda one: -one[0][0].raw.index) for told in group]
        for place, told in zip(places, ordered, strict=True):
            self._accused[place] = told

    def _was_given_otherwise(self, call: Call) -> bool:
        """Whether the call, or one around it, was given something besides that differs, matters, and stayed."""
        faulty = [one.index for _, one in self.met.outward(call.index) if one.index in self.faulty]
        excuses = [excuse for index in reversed(faulty) for excuse in self._excuses.get(index, ())]
        return self._mattering(excuses) is not None

    def _mattering(self, excuses: Sequence[Excuse]) -> Excuse | None:
        """The outermost that matters, of those of calls around each other. What one side is not given it lacks where
        the innermost call lacks it: if that does not matter, nor does it further out."""
        innermost = {excuse.alone: excuse for excuse in excuses}
        for excuse in filter(self._matters, excuses):
            if excuse.alone is None or self._matters(innermost[excuse.alone]):
                return excuse
        return None

    def _matters(self, excuse: Excuse) -> bool:
        """Whether no call is known to have returned the right thing though it was given that."""
        if excuse.needs > self._given_alike.get(excuse.sort[:2], 0):
            return False
        idle = self._idle, self._idle_in_doubt
        called, alone = excuse.fault.after, excuse.alone
        if alone is not None and called is not None and self.givers.taken_up_inside(called, *alone):
            return False
        return not any(excuse.sort in known or excuse.tensors in known for known in idle)


def _is_later(call: Call, fault: Fault) -> bool:
    """Whether gradients come to a call before they come to where a fault is."""
    return (fault.after or fault.raw).index < call.index


def _sort_of(fault: Fault) -> tuple[str, str, str, bool]:
    return fault.phase, fault.base.kind, fault.raw.kind, fault.between


def _lacks_just(fault: Fault, added: Array) -> bool:
    """Whether what is wrong is right but for one tensor that was not added."""
    base, raw = fault.expected, fault.found
    if base is None or raw is None or base.shape != raw.shape or base.size != added.size or base.dtype.kind != "f":
        return False
    return rms_gap((base - raw).reshape(added.shape), added) <= NEARLY * rms(added)


def _says_the_same(one: Slot, other: Slot, arranged: Array | None) -> bool:
    """Whether what a call is given besides is a mask in another dtype, or in a form that may mean the same, or an index
    of another width, or a table of angles and one of their cosines, or the same once and repeated: no excuse."""
    base, raw = one.value.numpy(), other.value.numpy()
    if not (one.tracked or other.tracked) and same_angles(base, raw):
        return True
    if spread(base, raw) or mean_the_same(base, raw) or (arranged is not None and mean_the_same(arranged, raw)):
        return True
    if floating(one.value) and floating(other.value):
        return in_another_form(base, raw) is not None
    return turned_over(base, raw) is not None


def _of_other_sorts(one: Slot, other: Slot) -> bool:
    """Whether one of two counts, positions or words, and the other has fractions: they are not each other's, a mask
    of ones and zeros may be."""
    if floating(one.value) == floating(other.value):
        return False
    counts = (other if floating(one.value) else one).value.numpy()
    return counts.dtype.kind in "iu" and bool(((counts != 0) & (counts != 1)).any())


def _told_otherwise(one: Slot, other: Slot) -> bool:
    """Whether two authors may give a layer that without one of them being wrong: numbers and a mask, a picture and the
    same with a frame around it."""
    return not (floating(one.value) and floating(other.value)) or in_a_frame(one, other)


def in_a_frame(one: Slot, other: Slot) -> bool:
    """Whether one of two pictures is the other with a frame around it: whose layer pads by itself returns the same."""
    return floating(one.value) and floating(other.value) and framed(one.value.numpy(), other.value.numpy())
