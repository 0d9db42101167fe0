"""Where one side stops following gradients and the other goes on: calls that get a gradient and send none back, outputs
to which none comes back, calls that began while nothing was followed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple, Protocol

import numpy as np

from padiff.compare.arrays import missing
from padiff.engine.families import floating
from padiff.engine.fed.blame import Blame
from padiff.engine.fed.givers import follows
from padiff.records import Array, Call, Comparison, Fault, Outcome, Phase, Role, Side, Slot, Value


class Place(NamedTuple):
    """A slot of a call of base, and what stands beside it in raw."""

    base: Call
    call: Call
    one: Slot
    other: Slot


class Compares(Protocol):
    """The run that is watched."""

    def comparison(
        self, phase: Phase, role: Role, base: Call, call: Call, one: Slot, other: Slot, outcome: Outcome
    ) -> Comparison:
        """Of two slots, with what was found."""
        ...


class Silent:
    """What is sent back in a run that is fed base's tensors, and what is not."""

    def __init__(
        self,
        blame: Blame,
        run: Compares,
        contributions: Mapping[tuple[int, int], Value],
        arrivals: Mapping[int, Value],
        off: frozenset[int],
        following: Callable[[], bool] | None,
    ) -> None:
        self._blame, self._run, self._following = blame, run, following
        self._contributions, self._arrivals, self._base_off = contributions, arrivals, off
        self._raw_off: set[int] = set()
        """Raw calls that began while nothing was followed."""
        self._awaited: dict[tuple[int, int], Place] = {}
        """Raw's call and tensor to what the call is to send back to it, until it does."""
        self._expected: dict[int, Place] = {}
        """Raw's call to its first output, until a gradient comes back to it."""
        self._outputs: dict[tuple[int, int], Place] = {}
        """The same for all outputs, by call and tensor."""
        self._unasked: list[Place] = []
        """What calls of raw sent back where base's got a gradient and sent none."""
        self.reached: set[int] = set()
        """Raw calls to whose outputs a gradient came back."""

    # --- forward

    def began(self, call: Call) -> None:
        if self._following is not None and not self._following():
            self._raw_off.add(call.index)

    def given(self, place: Place) -> None:
        """Both sides follow what a call is given, and something is to come back to it."""
        self._awaited[place.call.index, place.other.tensor] = place

    def returned(self, place: Place) -> None:
        """Both sides follow what a call returned."""
        self._outputs[place.call.index, place.other.tensor] = place
        if place.other is place.call.outputs[0]:
            self._expected[place.call.index] = place

    def cut(self, place: Place, *, between: bool) -> None:
        """One side does not follow what the other does."""
        role: Role = "input" if between else "output"
        side: Side = "raw" if place.one.tracked else "base"
        self._blame_for(place, role, side, f"{side} stops following gradients here (no_grad, detach)", between=between)

    def _blame_for(self, place: Place, role: Role, side: Side, why: str, *, between: bool) -> None:
        def off(base: Call | None, raw: Call) -> bool:
            """Whether nothing was followed when this side's call began."""
            if side == "raw":
                return raw.index in self._raw_off
            return base is not None and base.index in self._base_off

        comparison = self._run.comparison("backward", role, *place, missing(why))
        self._blame.cut(place.base, place.call, place.other, comparison, between=between, side=side, off=off)

    # --- backward

    def sent(self, call: Call, other: Slot) -> None:
        """A call of raw sends something back."""
        self._awaited.pop((call.index, other.tensor), None)

    def unasked(self, place: Place, gradient: Value) -> Array | None:
        """A call of raw sends back what base's doesn't, though it got a gradient: nothing goes on of it."""
        reached = any(slot.tensor in self._arrivals for slot in place.base.outputs)
        if not reached or not place.one.tracked or not np.any(gradient.numpy()):
            return None
        self._unasked.append(place)
        return nothing(gradient)

    def arrived(self, call: Call, other: Slot) -> None:
        """A gradient comes back to what a call of raw returned."""
        self.reached.add(call.index)
        self._expected.pop(call.index, None)
        self._outputs.pop((call.index, other.tensor), None)

    def forsaken(self, place: Place, gradient: Value) -> Array | None:
        """A gradient comes back to what a call of raw returned, and none to base's: whose code takes it is to blame."""
        if place.call.parent < 0 or not place.one.tracked or not np.any(gradient.numpy()):
            return None
        self._blame_for(place, "output", "base", "no gradient comes back to it in base (no_grad, detach)", between=True)
        return nothing(gradient)

    # --- when the run is over

    def look(self) -> None:
        """Calls to which gradients came, and which sent none back where the other side's did; the innermost. One
        that lacks a gradient at an output has nothing to send: who did not send that one is to blame."""
        if not self.reached:
            return
        asked = self.reached - self._lacking()
        found = [place for place in self._awaited.values() if place.call.index in asked and self._sends(place)]
        sides: tuple[tuple[Side, list[Place]], ...] = (("raw", found), ("base", self._unasked))
        for side, silent in sides:
            for place in _innermost(silent):
                outcome = missing(f"{side} sends no gradient back to it (no_grad, detach)")
                comparison = self._run.comparison("backward", "input", *place, outcome)
                self._blame.sent_nothing(place.base, place.call, comparison, side)

    def _lacking(self) -> set[int]:
        """Calls of raw to one of whose outputs no gradient came, where one does in base."""
        return {place.call.index for place in self._outputs.values() if self._answered_in_base(place)}

    def without_lacking(self, faults: list[Fault]) -> list[Fault]:
        """Without what calls send back that lack a gradient at an output, where somebody else is to blame for that."""
        lacking = self._lacking()
        kept = [fault for fault in faults if fault.phase == "forward" or fault.raw.index not in lacking]
        return kept or faults

    def without_shares(self, faults: list[Fault]) -> list[Fault]:
        """Without gradients that arrive inside of a call too small, since a call that comes later in there sends none
        back: the code around it only adds up what there is. Where gradients stop in there is told by itself."""
        cuts = [fault.raw for fault in faults if fault.comparison.outcome.reason == "structure"]
        if not cuts:
            return faults
        met = self._blame.met
        unsent = [place.call for place in self._awaited.values() if self._sends(place)]

        def lacks(fault: Fault) -> bool:
            after = fault.after
            if fault.phase != "backward" or fault.comparison.outcome.reason != "values" or after is None:
                return False
            silent = any(call.index > after.index and met.inside(call, fault.raw) for call in unsent)
            return fault.between and silent and any(met.inside(call, fault.raw) for call in cuts)

        return [fault for fault in faults if not lacks(fault)]

    def _sends(self, place: Place) -> bool:
        """Whether base's call sends anything back."""
        sent = self._contributions.get((place.base.index, place.one.tensor))
        return sent is not None and bool(np.any(sent.numpy()))

    def never_reached(self) -> Fault | None:
        """The last output to which a gradient comes back in base and none in raw, in a call to which one does: for
        where no call is to blame, and gradients of parameters differ."""
        for place in self._unanswered():
            around = self._reached_around(place)
            if around is not None:
                return Fault("backward", *around, self._no_answer(place), between=True, after=place.call)
        return None

    def _reached_around(self, place: Place) -> tuple[Call, Call] | None:
        """The call in whose code an output is taken up, if a gradient comes to it: to one without a partner, if one
        comes to a call inside; with base's beside it, or beside the nearest around it."""
        met, call = self._blame.met, self._whose_code(place)
        while (lone := met.lone_around(call)) is not None and not any(
            one.index in self.reached for one in met.all_inside(lone)
        ):
            call = lone
        around = list(met.outward(call.parent))
        nearest = next((pair for pair in around if pair[0] is not None), None)
        if nearest is None or nearest[0] is None or nearest[1].index not in self.reached:
            return None
        return nearest[0], around[0][1]

    def in_a_lone_call(self, fault: Fault) -> Fault | None:
        """Where a call sends back something wrong, and a call inside that has no partner gets nothing back to what the
        last of those in it returned: it is that one's own code."""
        if fault.phase != "backward" or fault.between:
            return None
        met = self._blame.met
        inside = (place for place in self._unanswered() if met.inside(place.call, fault.raw))
        last = next(inside, None)
        around = None if last is None else met[self._whose_code(last).parent]
        if last is None or around is None or around[0] is not None:
            return None
        nearest = next(raw for base, raw in met.outward(last.call.parent) if base is not None)
        if nearest.index != fault.raw.index:
            return None
        return Fault("backward", fault.base, around[1], self._no_answer(last), between=True, before=last.call)

    def in_a_lone_taker(self, fault: Fault) -> Fault | None:
        """Where nothing comes back to what a call inside of the blamed one returned, and a call without a partner that
        takes it, or returns it, hands on something that is not followed: it is that one's doing."""
        if fault.phase != "backward":
            return None
        met = self._blame.met
        last = next((place for place in self._unanswered() if met.inside(place.call, fault.raw)), None)
        for call in () if last is None else met.all_inside(fault.raw):
            assert last is not None
            takes = last.other.origin in [slot.origin for slot in call.inputs] or met.inside(last.call, call)
            if takes and met.beside(call) is None and stops(call):
                return Fault("backward", fault.base, call, self._no_answer(last))
        return None

    def in_a_lone_layer(self, fault: Fault, lost: Collection[str]) -> Fault:
        """Where a call sends back something wrong, or too little arrives somewhere inside of it, and a call after that
        in there, which has no partner (base's layer is one with others), is given what is followed and returns what is
        not: it is that one's doing, if its own parameters are among those whose gradient is ``lost``."""
        met = self._blame.met
        if (fault.phase, fault.comparison.outcome.reason) != ("backward", "values"):
            return fault
        first = fault.after.index if fault.between and fault.after is not None else -1
        for call in met.all_inside(fault.raw):
            if call.index < first or call.path not in lost or not fault.base.outputs:
                continue
            if met.beside(call) is None and stops(call):
                place = Place(fault.base, call, fault.base.outputs[0], call.outputs[0])
                return Fault("backward", fault.base, call, self._no_answer(place))
        return fault

    def _whose_code(self, place: Place) -> Call:
        """The call that returned an output, or the outermost without a partner that hands on just that: their own code
        does nothing with it, whoever calls them may."""
        met, call = self._blame.met, place.call
        while (around := met.lone_around(call)) is not None and place.other.origin in _origins(around):
            call = around
        return call

    @property
    def unanswered(self) -> frozenset[int]:
        """Raw's calls to whose first output no gradient came back, where one does in base."""
        return frozenset(place.call.index for place in self._unanswered())

    def _unanswered(self) -> Iterator[Place]:
        """The last first."""
        for index in sorted(self._expected, reverse=True):
            if self._answered_in_base(self._expected[index]):
                yield self._expected[index]

    def _answered_in_base(self, place: Place) -> bool:
        arrived = self._arrivals.get(place.one.tensor)
        return arrived is not None and bool(np.any(arrived.numpy()))

    def _no_answer(self, place: Place) -> Comparison:
        why = missing("no gradient comes back to it in raw (no_grad, detach)")
        return self._run.comparison("backward", "output", *place, why)


def nothing(gradient: Value) -> Array:
    """What goes on of a gradient where base follows none."""
    array = gradient.numpy()
    return np.zeros(array.shape, array.dtype)


def stops(call: Call) -> bool:
    """Whether something that a call is given is followed, and nothing that it returns."""
    returned = [slot for slot in call.outputs if floating(slot.value)]
    return bool(returned) and follows(call) and not any(slot.tracked for slot in returned)


def _origins(call: Call) -> set[int]:
    return {slot.origin for slot in call.outputs}


def _innermost(silent: list[Place]) -> Iterator[Place]:
    """One of each call, and none that holds another of them."""
    of_call = {place.call.index: place for place in reversed(silent)}
    around: set[int] = set()
    for place in sorted(of_call.values(), key=lambda found: -found.call.index):
        if place.call.index not in around:
            yield place
        around.add(place.call.parent)
