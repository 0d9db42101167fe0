"""What every call adds by itself: a run in which each is fed what base's was fed, forward and backward.

The input a call *would have* received is compared before it is replaced: when it differs although what came before was
right, the code between the calls is to blame. What a call returns, given base's inputs, is its own doing.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from padiff.align import name_of, pair_slots
from padiff.capture.feeding import Feed, See
from padiff.capture.held import HostValue
from padiff.compare.arrays import missing
from padiff.compare.layouts import compare_arranged
from padiff.compare.masks import masked_alike, without_masked
from padiff.compare.measure import rms_gap
from padiff.compare.tolerance import predicting
from padiff.engine.beside import Beside, resized
from padiff.engine.blame import Blame, family
from padiff.engine.gallery import Gallery
from padiff.engine.moved import Moved, valued
from padiff.engine.saturation import Saturation
from padiff.engine.silent import Place, Silent, nothing
from padiff.records import (
    Array,
    Call,
    Comparison,
    Fault,
    Numbers,
    Outcome,
    Phase,
    Role,
    Slot,
    StepTrace,
    Tolerance,
    Value,
)

SAME = Outcome("equal", None, "equal")

Key = tuple[str, str, int, int]
"""Phase, role, base's call (-1 where it does not matter) and base's tensor."""


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


class Unsettled(NamedTuple):
    """Two gradients of which it is not known yet whether they differ."""

    outcome: Outcome
    key: Key
    base: Array
    raw: Array


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
        following: Callable[[], bool] | None = None,
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
        self.gaps: dict[Key, float] = {}
        self._handed: dict[int, int | None] = {}
        """Tensor of raw to base's that was handed on in its place; None where several were."""
        self._altered: set[int] = set()
        """Those of them that hold some of raw's own numbers."""
        self._sizes: dict[int, Numbers] = {}
        """Tensor of base to what was found when it was compared first."""
        self.unsettled: list[Unsettled] = []
        """Gradients that are more than the least apart, while base's noise is not known."""
        self._blame = Blame(loosely=loosely)
        # By a proxy: what keeps itself alive keeps its tensors until the collector comes.
        sends = (reference.contributions, reference.arrivals, reference.off)
        self.silent = Silent(self._blame, weakref.proxy(self), *sends, following)
        sent = (reference.contributions, reference.arrivals) if backward else None
        self._moved = Moved(self._blame, beside, weakref.proxy(self), sent) if change is None else None

    @property
    def faults(self) -> list[Fault]:
        """Filled when the run is over: forward first, then backward, each in the order of computation."""
        return self._blame.faults

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
        self._blame.began(base, call)
        self.silent.began(call)
        feeds: dict[int, Feed] = {}
        if base is None and self._backward and self._beside.told_late(call):
            for slot in call.inputs[:1]:  # as it is: only what comes back to it is asked for
                if slot.tracked and not slot.value.overwritten:
                    feeds[slot.tensor] = Feed(None, partial(self._late_contribution, call, slot), True)
        for one, other in [] if base is None else self._slots(base.inputs, call.inputs, "input"):
            assert base is not None
            if other.tensor in feeds:
                continue
            if self._moved is not None and self._moved.merely("input", base, call, one, other):
                continue
            outcome, arranged = self._edge(base, call, one, other)
            if outcome.agrees:
                self._blame.dispel(one, other)
                self._blame.right.add((call.index, other.origin))
                if other is call.inputs[0]:
                    self._beside.begun_alike(base, call)
                    self._blame.goes_on(call)
            elif other is call.inputs[0]:
                self._blame.misfed.add(call.index)
            if arranged is None or not _same_family(arranged, other.value):
                continue
            if not self._backward and self._is_handed(one, other):
                continue  # it is base's as it is
            if not outcome.agrees and other is not call.inputs[0] and self._besides(one, other):
                continue
            if not outcome.agrees and self._beside.begins_elsewhere(base, call):
                continue  # it may begin elsewhere, too: its children will tell
            if call.parent < 0 and not outcome.agrees:  # the caller's own choice, and for the caller to mend
                self._blame.lost = True
                continue
            if self._backward and one.tracked and other.tracked and self._change is None:
                self.silent.given(Place(base, call, one, other))
            see = partial(self._contribution, base, call, one, other)
            stopped = self._only_raw_follows(one, other) and not self._besides(one, other)
            self._replace(feeds, one, other, arranged, nothing if stopped else see, stopped=stopped)
        if base is not None and self._moved is not None:
            self._moved.given(base, call, feeds)
        if base is not None and not self._loosely and base.kind == call.kind and call.parent >= 0:
            self._look_for_missing(base, call)
        return feeds

    def _look_for_missing(self, base: Call, call: Call) -> None:
        """What one side's call is given and the other's is not."""
        if len(base.inputs) == len(call.inputs):
            return
        _, only_base, only_raw = pair_slots(base.inputs, call.inputs)
        more = len(base.inputs) > len(call.inputs)
        has, lacks = ("base", "raw") if more else ("raw", "base")
        for slot in only_base if more else only_raw:
            given = f"{has} one of shape {list(slot.value.shape)}"
            outcome = missing(f"{lacks} gives {call.path} no {slot.name or 'tensor'}, {given}")
            comparison = self.comparison("forward", "input", base, call, slot, slot, outcome)
            self._blame.not_given(base, call, comparison)

    def _edge(self, base: Call, call: Call, one: Slot, other: Slot) -> tuple[Outcome, Array | None]:
        """What the call would have been given."""
        besides = other is not call.inputs[0] and self._besides(one, other)
        kind = "beside" if besides else "elsewhere" if self._beside.begins_elsewhere(base, call) else "edge"
        found = self._compare("forward", "input", base, call, one, other, kind)
        if self._backward and found[0].agrees and one.tracked != other.tracked and (one.tracked or not besides):
            self._cut(base, call, one, other, between=True)
        return found

    def _only_raw_follows(self, one: Slot, other: Slot) -> bool:
        """Base does not follow gradients where raw does: raw is stopped there, too, so that nothing else differs."""
        return self._backward and self._change is None and other.tracked and not one.tracked

    def _besides(self, one: Slot, other: Slot) -> bool:
        """A mask, a table of positions: it may be written otherwise and say the same."""
        return self._loosely or not (one.tracked or other.tracked)

    def hand_on(self, call: Call) -> Mapping[int, Feed]:
        known = self._blame.ended(call, self._beside.forgiven(call))
        base = self._beside.at_end(call)
        if base is None:
            if self._beside.lacking(call):
                self._blame.alone(call)
            return {}
        self._blame.began(base, call)
        self.pairs.append((base, call))
        feeds: dict[int, Feed] = {}
        loose = call.parent >= 0 and (self._beside.loose(base, call) or (self._loosely and resized(base, call)))
        misled = False
        if not known and call.inputs:  # its partner was not known when it began, and what it was given is its own
            given = self._slots(base.inputs[:1], call.inputs[:1], "input")
            misled = any(not self._edge(base, call, one, other)[0].agrees for one, other in given)
        met, right, moved = False, True, self._moved if loose and not misled else None
        for place, (one, other) in enumerate(self._slots(base.outputs, call.outputs, "output")):
            if other.tensor in feeds or (moved is not None and moved.merely("output", base, call, one, other)):
                continue
            met = True
            kind = "beside" if misled or (loose and place) else "doubtful" if loose else "output"
            outcome, arranged = self._compare("forward", "output", base, call, one, other, kind)
            right = right and outcome.agrees
            if outcome.agrees:
                self._blame.dispel(one, other)
                if kind == "doubtful":
                    self._blame.like_its_partner(base, call)
            if arranged is None or not _same_family(arranged, other.value):
                self._blame.lost = self._blame.lost or (not outcome.agrees and kind == "output")
                continue
            if loose and not outcome.agrees and call.index not in self._blame.passed_on:
                continue
            stopped = self._only_raw_follows(one, other) and not (loose and place)
            if self._backward and outcome.agrees and (stopped or (one.tracked and not other.tracked)):
                self._cut(base, call, one, other, between=False)
            elif self._backward and outcome.agrees and self._change is None and one.tracked:
                self.silent.returned(Place(base, call, one, other))
            see = nothing if stopped else partial(self._arrival, base, call, one, other)
            self._replace(feeds, one, other, arranged, see, stopped=stopped)
        if moved is not None and not met:
            moved.returned(base, call, feeds)
        self._blame.judged(call, right=met and right)
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

    def _replace(
        self, feeds: dict[int, Feed], one: Slot, other: Slot, arranged: Array, see: See, *, stopped: bool = False
    ) -> None:
        tracked = self._backward and one.tracked
        held = self._is_handed(one, other) and self._is_as_it_was(one, other)
        if arranged.shape == one.value.shape:
            known = self._handed.setdefault(other.origin, one.origin)
            self._handed[other.origin] = one.origin if known == one.origin else None
        feeds[other.tensor] = Feed(
            None if held else self._changed(arranged), see if tracked or stopped else None, tracked
        )

    def _cut(self, base: Call, call: Call, one: Slot, other: Slot, *, between: bool) -> None:
        """One side does not follow gradients where the other does."""
        if not self._blame.lost and _floating(one.value):
            self.silent.cut(Place(base, call, one, other), between=between)

    def _slots(self, left: Sequence[Slot], right: Sequence[Slot], role: Role) -> list[tuple[Slot, Slot]]:
        pairs, _, _ = pair_slots(left, right, loosely=role == "input" and self._loosely)
        return [(one, other) for one, other in pairs if not one.value.overwritten and not other.value.overwritten]

    def _changed(self, array: Array) -> Array:
        return array if self._change is None else self._change(array)

    # --- backward

    def _contribution(self, base: Call, call: Call, one: Slot, other: Slot, gradient: Value) -> Array | None:
        """What the call sends back to one of its inputs."""
        self.silent.sent(call, other)
        members = self._beside.members(base, call)
        if members is None:  # its share of what base's sends back is not known; the sum is seen where it arrives
            return None
        expected = self._sent_back(members, one)
        if expected is not None:
            return self._gradient("input", base, call, one, other, expected, gradient)
        if self._loosely or members != [base]:
            return None
        return self.silent.unasked(Place(base, call, one, other), gradient)

    def _late_contribution(self, call: Call, other: Slot, gradient: Value) -> Array | None:
        """The same, of a call whose partner was not known when it began."""
        base, call = self._blame.met[call.index]
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
        self.silent.arrived(call)
        expected = self._beside.arrival(one.tensor, self._reference.arrivals)
        if expected is not None:
            return self._gradient("output", base, call, one, other, expected, gradient)
        return None if self._loosely else self.silent.forsaken(Place(base, call, one, other), gradient)

    def _gradient(
        self, role: Role, base: Call, call: Call, one: Slot, other: Slot, expected: Value, gradient: Value
    ) -> Array | None:
        one, other = valued(one, expected), valued(other, gradient)
        outcome, arranged = self._compare("backward", role, base, call, one, other, role)
        if self._change is None and outcome.verdict == "equal" and expected.shape == gradient.shape:
            return None  # it is base's as it is
        return None if arranged is None else self._changed(arranged)

    # --- comparing

    def _compare(
        self, phase: Phase, role: Role, base: Call, call: Call, one: Slot, other: Slot, kind: str
    ) -> tuple[Outcome, Array | None]:
        key = self._key(phase, role, base, one)
        if self._look is not None:
            self._look(phase, role, call.index, name_of(one, other), other.value)
        if phase == "forward" and self._is_handed(one, other) and (role == "input" or self._is_as_it_was(one, other)):
            return self._compare_handed(role, key, base, call, one, other)
        expected, found = one.value.numpy(), other.value.numpy()
        if self._change is not None:  # base beside itself: how far things move is all that is asked
            moved = rms_gap(expected, found) if expected.shape == found.shape else math.inf
            self.gaps[key] = max(self.gaps.get(key, 0.0), moved)
            return SAME, expected if expected.shape == found.shape else None
        tolerance = self.allowed(key)
        if role == "input" and phase == "forward":
            own, expected = expected, masked_alike(expected, found)
            if expected is not own:
                self._altered.add(other.origin)
        rest = without_masked(expected, found) if call.tag and phase == "forward" else None
        if rest is not None:  # what is left out is large, and so is its noise
            (expected, found), tolerance = rest, replace(tolerance, predicted=None)
        outcome, arranged = compare_arranged(
            expected, found, tolerance, gradients=phase == "backward", loosely=self._loosely
        )
        if rest is not None:
            arranged = None if arranged is None else one.value.numpy()
        if phase == "forward" and outcome.numbers is not None:
            self._sizes.setdefault(one.origin, outcome.numbers)
        if phase == "backward" and self._saturation.explains(role, base, outcome):
            message = f"{outcome.message}; rounding of a gradient that hardly gets through"
            outcome = replace(outcome, verdict="rounding", reason=None, message=message)
        if self._gallery is not None and not outcome.agrees:
            self._gallery.see(phase, outcome, expected, found)
        if self._reference.gradients_later and phase == "backward" and outcome.reason == "values":
            found = np.array(found)  # of a gradient nobody keeps
            self.unsettled.append(Unsettled(outcome, key, expected if arranged is None else arranged, found))
        comparison = self.comparison(phase, role, base, call, one, other, outcome)
        if outcome.agrees or kind not in ("beside", "elsewhere"):
            self.comparisons.append(comparison)
        if not outcome.agrees and kind != "elsewhere" and (kind != "beside" or role == "input"):
            self._blame.accuse(phase, role, base, call, one, other, comparison, kind, arranged)
        return outcome, arranged

    def _is_handed(self, one: Slot, other: Slot) -> bool:
        """Whether a call is given base's tensor just as it was handed on to it."""
        mine = other.origin != other.tensor and self._handed.get(other.origin) == one.origin
        return mine and one.value.shape == other.value.shape and one.value.dtype == other.value.dtype

    def _is_as_it_was(self, one: Slot, other: Slot) -> bool:
        """Whether a tensor that was handed on holds base's numbers, and is known by its size."""
        return self._change is None and other.origin not in self._altered and one.origin in self._sizes

    def _compare_handed(
        self, role: Role, key: Key, base: Call, call: Call, one: Slot, other: Slot
    ) -> tuple[Outcome, Array | None]:
        """What was replaced already is equal by rights, or moved as far as it is moved everywhere."""
        expected = one.value.numpy()
        if self._change is not None:
            moved = rms_gap(expected, other.value.numpy())
            self.gaps[key] = max(self.gaps.get(key, 0.0), moved)
            return SAME, expected
        outcome = SAME
        known = self._sizes.get(one.origin)
        if known is not None:
            ulp = 0 if _floating(one.value) else None
            sizes = (known.base_mean_abs, 0.0, known.base_rms, 1.0)
            numbers = Numbers(known.size, 0.0, 0.0, *sizes, mismatched=0, max_rel=0.0, max_ulp=ulp)
            outcome = Outcome(SAME.verdict, None, SAME.message, numbers, None, self.allowed(key).predicted)
        self.comparisons.append(self.comparison("forward", role, base, call, one, other, outcome))
        return outcome, expected

    def comparison(
        self, phase: Phase, role: Role, base: Call, call: Call, one: Slot, other: Slot, outcome: Outcome
    ) -> Comparison:
        """Of two slots; it is not kept."""
        return Comparison(
            phase,
            self._reference.trace.step,
            role,
            base.path,
            call.path,
            base.kind,
            call.kind,
            name_of(one, other),
            outcome,
            base.index,
            call.index,
            other.tensor,
        )

    def told(
        self, phase: Phase, role: Role, base: Call, call: Call, one: Slot, other: Slot, outcome: Outcome
    ) -> Comparison:
        """Makes the comparison of two slots, and keeps it."""
        comparison = self.comparison(phase, role, base, call, one, other, outcome)
        self.comparisons.append(comparison)
        return comparison

    def allowed_at(self, phase: Phase, role: Role, base: Call, one: Slot) -> Tolerance:
        """What may differ at a slot of one of base's calls."""
        return self.allowed(self._key(phase, role, base, one))

    def _key(self, phase: Phase, role: Role, base: Call, one: Slot) -> Key:
        return (phase, role, base.index if (phase, role) == ("backward", "input") else -1, one.tensor)

    def allowed(self, key: Key, noise: Mapping[Key, float] | None = None) -> Tolerance:
        """What may differ there, by base's noise; by other noise than the reference's, if it is given."""
        phase, role, index, tensor = key
        if noise is None and self._reference.gradients_later and phase == "backward":
            return predicting(self._tolerance, 0.0, sums=True)
        noise = self._reference.noise if noise is None else noise
        if not noise:
            return self._tolerance
        found = [noise.get((phase, role, index, part)) for part in self._beside.parts(tensor)]
        known = [noise for noise in found if noise is not None and math.isfinite(noise)]
        if not known:
            return self._tolerance
        return predicting(self._tolerance, max(known), sums=phase == "backward")

    def finish(self) -> None:
        """The run is over: who was to blame is decided."""
        if self._gallery is not None:
            self.comparisons = self._gallery.hung(self.comparisons)
        if not self._loosely:
            self.silent.look()
        self._blame.finish()


def _same_family(array: Array, raw: Value) -> bool:
    return array.shape == raw.shape and _family_of(array.dtype) == family(raw.dtype)


@cache
def _family_of(dtype: np.dtype[Any]) -> str:
    return family(str(dtype))


def _floating(value: Value) -> bool:
    return family(value.dtype) == "float"
