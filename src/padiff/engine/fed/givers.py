"""Who gave a call what it was given: whose code hands a tensor on, and who made it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence

from padiff.compare.measure import rms, rms_gap
from padiff.engine.families import floating
from padiff.engine.fed.calls_met import CallsMet
from padiff.engine.fed.given_slots import NEARLY
from padiff.engine.fed.prints import other_numbers
from padiff.engine.free.partners import alters
from padiff.records import Array, Call, Side, Slot

_NUMBERS = re.compile(r"\d+")


class Givers:
    """What the calls of a run were given and made, as it goes."""

    def __init__(self, met: CallsMet, faulty: Collection[int], held: Callable[[Call, Array], bool]) -> None:
        self._met = met
        self._faulty = faulty
        """Raw calls in which something was found."""
        self.held = held
        """Whether a call of base's goes on from these numbers."""
        self.right: set[tuple[int, int]] = set()
        """Raw calls with the tensors that they were given and that are base's."""
        self.has: dict[tuple[int, int], int] = {}
        """Raw calls with the tensors of base's that they were given the like of, to that."""
        self._made_alone: dict[int, Call] = {}
        """Raw tensor to the innermost call that made it and has no partner."""

    def alone(self, call: Call) -> None:
        """A call of raw that nothing of base's stands beside has ended. One of a module that base calls, too, but less
        often, is its caller's doing; so is one of a module that only raw has around such."""
        if self._met.has_partner(call.node):
            return
        known = [one for one in self._met.all_inside(call) if self._met.has_partner(one.node)]
        if known and all(self._met.beside(one) is None for one in known):
            return
        given = {slot.origin for slot in call.inputs}
        for slot in call.outputs:
            if slot.origin == slot.tensor and slot.tensor not in given:
                self._made_alone.setdefault(slot.tensor, call)

    def taken_up_inside(self, call: Call, side: Side, origin: int) -> bool:
        """Whether a call inside of another is given, rightly, what one side gives the other and the other's makes."""
        if side == "raw":
            found = [index for index, tensor in self.right if tensor == origin]
        else:
            found = [index for index, tensor in self.has if tensor == origin]
        return any(self._met.inside(self._met[index][1], call) for index in found)

    def around(
        self, call: Call, slot: Slot, expected: Slot | None = None, *, returned: Slot | None = None
    ) -> tuple[Call, Call]:
        """Whose code hands this tensor to the call, or takes it from it, where base's has ``returned`` its own: the
        call around it, or one further out that passed it on, or that gave it nothing else where base's is given what
        is ``expected``. Whoever merely returns it, where base goes on inside, takes nothing from it."""
        blamed: Call | None = None
        for base, raw in self._met.outward(call.parent):
            if returned is not None and self._returned(raw, slot) and not _returns(base, returned):
                continue
            others = expected is not None and (self._lacks(raw, expected) or self._given_other_numbers(base, raw))
            others = others or (base is None and expected is not None and _rearranges(raw, slot, expected))
            if blamed is None and not others and not self._passed(base, raw, slot):
                blamed = raw
            if blamed is not None and base is not None:
                return base, blamed
        return self._met.beside(call) or call, call

    def maker(self, call: Call, slot: Slot) -> Call | None:
        """The call without a partner that made what a call is given, where it is not around that; what a call around
        was given, rightly, nobody made wrong."""
        if any((outer.index, slot.origin) in self.right for _, outer in self._met.outward(call.parent)):
            return None
        maker = self._made_alone.get(slot.origin)
        while maker is not None and not alters(maker):
            maker = self._made_alone.get(maker.inputs[0].origin)
        if maker is None or self._met.inside(call, maker):
            return None
        made = maker.outputs[0].origin
        for _, outer in self._met.outward(maker.parent):
            steps = [one for one in self._met.all_inside(outer) if alters(one)]
            whole = self._met.as_ended(outer)
            if len(steps) < 2 or whole is None or made not in {one.origin for one in whole.outputs}:
                break
            if not self.wholly_alone(outer):
                break
            maker = whole
        return maker

    def returned_by(self, slot: Slot, place: Call) -> list[Call]:
        """The calls without a partner, inside of another, that returned a tensor just as one inside of them had; the
        outermost first."""
        lone = (call for call in self._met.all_inside(place) if self._met.beside(call) is None)
        found = [call for call in lone if slot.origin in _origins(call.outputs) - _origins(call.inputs)]
        return [call for call in found if any(slot.origin in _origins(o.outputs) for o in self._met.all_inside(call))]

    def likes_are_right(self, call: Call) -> bool:
        """Whether what modules at the same place in other blocks returned was right where it was taken up."""
        taken = {tensor for _, tensor in self.right}
        place = call.kind, _NUMBERS.sub("", call.path)
        likes = (one for one in self._met.all_ended() if (one.kind, _NUMBERS.sub("", one.path)) == place)
        return any(_origins(one.outputs[:1]) & taken for one in likes if one.node != call.node)

    def wholly_alone(self, call: Call) -> bool:
        """Whether base has nothing for a call, nor for any inside of it."""
        return not any(self._met.has_partner(one.node) for one in (call, *self._met.all_inside(call)))

    def ends_early(self, call: Call, maker: Call, slot: Slot) -> tuple[Call, Call] | None:
        """The call with a partner, around the one that made something, that returns just that where base's goes on from
        it: a block without its last norm."""
        for base, outer in self._met.outward(maker.parent):
            if self._met.inside(call, outer) or slot.origin not in [one.origin for one in outer.outputs]:
                return None
            if base is not None:
                return (base, outer) if self.held(base, slot.value.numpy()) else None
        return None

    def keeps_back(self, call: Call, slot: Slot, expected: Slot, place: Call) -> Call | None:
        """The call that base has none for, inside of the place, in which was made what another call is to be given, or
        just what that lacks, and whose code went on with something else: nobody outside of it could do better."""
        if any(not floating(one.value) or one.value.overwritten for one in (slot, expected)):
            return None
        wanted, found = expected.value.numpy(), slot.value.numpy()
        if wanted.shape != found.shape:
            return None
        sought = wanted, wanted - found
        around = [outer for _, outer in self._met.outward(call.parent) if not self._met.inside(place, outer)]
        open_ones = {outer.index for outer in around}
        for inner in (inner for outer in around for inner in self._met.all_inside(outer)):
            made = next((made for made in inner.outputs if _is_one_of(made, sought)), None)
            if made is None or inner.index in self._faulty:
                continue
            for base, holder in self._met.outward(inner.parent):
                if holder.index == place.index or base is not None:
                    break
                if holder.index in open_ones:
                    return holder
                ended = self._met.as_ended(holder)
                returned = [] if ended is None else [one.origin for one in ended.outputs]
                if slot.origin in returned and made.origin not in returned:
                    return ended
        return None

    def passing_on(self, call: Call, slot: Slot) -> set[int]:
        """The calls around this one that merely passed on what they were given."""
        found: set[int] = set()
        for base, outer in self._met.outward(call.parent):
            if not self._passed(base, outer, slot):
                break
            found.add(outer.index)
        return found

    def _lacks(self, outer: Call, expected: Slot | None) -> bool:
        """Whether base's call was given what it passes on there, and this one was not: keys of a decoder that gets no
        memory. Its code may do no better. Of a call without partner, the nearest around it that has one tells."""
        if expected is None or outer.parent < 0 or not self._all_known(outer):
            return False
        for base, one in self._met.outward(outer.index):
            if base is not None:
                held = self.has.get((one.index, expected.origin))
                given = {slot.origin for slot in base.inputs}
                if expected.origin not in given or len(given) < 2:
                    return False
                return held is None if one is outer else held not in (None, *(slot.origin for slot in outer.inputs))
        return False

    def _given_other_numbers(self, base: Call | None, outer: Call) -> bool:
        """Whether a call is given what base's is given in another form, in parts say, and as many numbers that are not
        base's in any order. What a call returned in which something is wrong tells nothing."""
        if base is None or outer.parent < 0:
            return False
        ours, theirs = ([slot for slot in call.inputs if floating(slot.value)] for call in (base, outer))
        if not ours or not theirs or any((outer.index, slot.origin) in self.right for slot in theirs):
            return False
        if any(slot.value.overwritten for slot in (*ours, *theirs)):
            return False
        made = {slot.origin for index in self._faulty for slot in self._met[index][1].outputs}
        if made.intersection(slot.origin for slot in theirs):
            return False
        return other_numbers(*([slot.value.numpy() for slot in slots] for slots in (ours, theirs)))

    def _all_known(self, call: Call) -> bool:
        """Whether a call is given nothing but base's, as far as that has a partner at all."""
        if self._met.beside(call) is None:
            return True
        return all((call.index, slot.origin) in self.right for slot in call.inputs if floating(slot.value))

    def _returned(self, outer: Call, slot: Slot) -> bool:
        """Whether a call has returned this very tensor: what comes back to it comes from further out."""
        ended = self._met.as_ended(outer)
        return ended is not None and any(one.origin == slot.origin for one in ended.outputs)

    def _passed(self, base: Call | None, outer: Call, slot: Slot) -> bool:
        """Whether a call was given this very tensor, and wrong: what was right when it came is not passed on, but
        chosen. A tensor that is given twice, where base gives two, is wrong once."""
        given = [one.origin for one in outer.inputs]
        if slot.origin not in given:
            return False
        twice = base is not None and len({one.origin for one in base.inputs}) > len(set(given))
        return (outer.index, slot.origin) not in self.right or (twice and given.count(slot.origin) > 1)


def _origins(slots: Sequence[Slot]) -> set[int]:
    return {slot.origin for slot in slots}


def _is_one_of(made: Slot, sought: Sequence[Array]) -> bool:
    """Whether a call made one of some tensors."""
    if not floating(made.value) or made.value.overwritten:
        return False
    array = made.value.numpy()
    return array.shape == sought[0].shape and any(rms_gap(one, array) <= NEARLY * rms(one) for one in sought)


def follows(call: Call) -> bool:
    """Whether gradients are followed through something that a call is given."""
    return any(slot.tracked for slot in call.inputs)


def asked_for_no_number(call: Call) -> bool:
    """Whether a call that is given something through which gradients are followed returns nothing through which they
    are: a table of positions, given an activation for its dtype, or what is made with following switched off."""
    return follows(call) and bool(call.outputs) and not any(slot.tracked for slot in call.outputs)


def _rearranges(outer: Call, slot: Slot, expected: Slot) -> bool:
    """Whether a call hands on the numbers that it was given, in whatever order, and they are not those that are
    expected: its own code only puts them elsewhere, and nothing it could do would make them right."""
    given = [one for one in outer.inputs[:1] if floating(one.value)]
    if not given or any(one.value.overwritten for one in (*given, slot, expected)) or not floating(expected.value):
        return False
    came, found, wanted = (one.value.numpy() for one in (*given, slot, expected))
    return (
        came.size == found.size == wanted.size
        and other_numbers([wanted], [came])
        and not other_numbers([came], [found])
    )


def _returns(base: Call | None, slot: Slot) -> bool:
    return base is not None and any(one.origin == slot.origin for one in base.outputs)
