"""Compares raw with base while raw runs, and lets go of tensors as soon as nothing will ask for them again."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from padiff.align import CallPairing, Repeated, name_of, pair_slots, tag_key, tags_of, wherever_they_are
from padiff.compare.arrays import missing
from padiff.compare.given import as_given, as_masks, beside_the_least, beside_the_masked, leave_out_alike
from padiff.compare.layouts import compare_in_any_layout
from padiff.compare.masks import without_masked
from padiff.compare.tolerance import predicting
from padiff.engine.fed.beside import resized
from padiff.engine.free.crossings import Crossings
from padiff.engine.free.ends import ending_elsewhere, made_after
from padiff.engine.free.held_of_base import HeldOfBase
from padiff.engine.free.lone_outputs import LoneOutputs, exists_in, unmatched
from padiff.engine.free.partners import Partners
from padiff.engine.free.reordered import Reordered
from padiff.engine.free.shares import shares_of
from padiff.engine.free.where_they_lie import compare_values, compared_there
from padiff.engine.gallery import MOST_AGREEING, Gallery
from padiff.engine.ops.ops_beside import OpsBeside
from padiff.records import (
    Array,
    Call,
    Comparison,
    ModuleTree,
    Noise,
    Order,
    Outcome,
    Phase,
    Role,
    Slot,
    StepComparison,
    StepTrace,
    Tolerance,
    Unmatched,
    Value,
)

NOISE_OF_SUMS = 5e-6
"""Rounding in a sum, relative to its terms: all that is left of a gradient that is zero by rights."""


QUEUE_LENGTH = 64
QUEUE_BYTES = 1 << 21


class Place(NamedTuple):
    """Where a tensor of raw was met first: base's tensor, the comparison, whether both take part in backward."""

    base: int
    met: Comparison
    tracked: bool


class SideBySide:
    """Told of raw's calls and gradients as they happen; holds base's step next to them."""

    def __init__(
        self,
        base: StepTrace,
        pairing: CallPairing,
        tolerance: Tolerance,
        base_tree: ModuleTree,
        twins: bool = True,
        noise: Noise | None = None,
        crossings: Crossings | None = None,
    ) -> None:
        self._crossings = crossings
        self._base = base
        self._pairing = pairing
        self._tolerance = tolerance
        self._noise = noise
        self._base_tree = base_tree
        self._alike = pairing.alike
        """Both models call the same leaves: what differs in the small is a difference."""
        self._twins = twins
        """Both models name their tensors alike."""
        self._partners = Partners(pairing, base_tree, tolerance)
        self._lone = LoneOutputs(base_tree, base.step, twins=twins, alike=pairing.alike)
        self.wait_for: Callable[[Collection[int], Collection[int]], None] | None = None
        """Where both backward passes run side by side: has base's run until it made the gradients asked for."""
        self._gradient_scale = 0.0
        self._gallery = Gallery()
        self._queue: list[tuple[tuple[int, int], tuple[Array, Array] | None, Role, Call, Call, Slot, Slot]] = []
        self._gradient_queue: list[tuple[Place, Value, Value]] = []
        self._queued: set[tuple[int, int]] = set()
        self._masks: set[tuple[int, int]] = set()
        """Tensors of base and raw that leave out the same, with other numbers."""
        self._given_masks: set[int] = set()
        """Raw calls that were given such, and may hand on scores that they were added to."""
        self._queued_bytes = 0
        self._pairs: list[tuple[Call, Call]] = []
        self._comparisons: list[Comparison] = []
        self._unmatched: list[Unmatched] = []
        self._outcomes: dict[tuple[int, int], Outcome] = {}
        self._places: dict[int, Place] = {}
        self._shared: set[int] = set()
        """Tensors of raw that stand beside one of base's with others, or beside several: each gets a share."""
        self._held = HeldOfBase(base, pairing.members)
        self._ops = OpsBeside(base.step)
        self._reordered = Reordered(tolerance.narrow)
        self._repeated = Repeated(pairing.by_occurrence(), base.calls)
        self._tags_met: set[tuple[str, int]] = set()
        self.uneven = False
        """Whether a call is given more tensors in one model than in the other: they share gradients differently."""

    # --- while raw runs

    def on_call(self, call: Call) -> None:
        finished = self._partners.finishes(call)
        if finished is not None:
            self._settle()
            self._drop_outputs({finished.index})
            for slot in finished.outputs:  # nor is its gradient: it has another place in base, which is met now
                met = self._places.get(slot.tensor)
                if met is not None and met.met.raw_call == finished.index and met.met.role == "output":
                    del self._places[slot.tensor]
        base = self._partners.of(call, self._same)
        if base is None:
            return
        self._pairs.append((base, call))
        self._repeated.see(call)
        if not self._alike:
            self.uneven = self.uneven or _followed(base.inputs) != _followed(call.inputs)
        self._compare_slots("input", base, call, base.inputs, call.inputs)
        self._compare_slots("output", base, call, base.outputs, call.outputs)
        if not self._alike:
            self._reordered.see(base, call, self._outcomes, self._tensors)
        if call.ops or base.ops:
            self._ops.compare(base, call, self._allowed)
        for done in self._pairing.dealt_with(call):
            self._held.dealt_with(done)
        if call.parent < 0:  # the model has ended: nothing is left unread when the loss or backward begin
            self._settle()

    def on_tag(self, tag: Call) -> None:
        """What the user marked with one name on both sides."""
        base = self._pairing.tagged(tag)
        if base is None:
            self._unmatched.append(Unmatched("raw", tag.path, tag.kind, "base tags nothing of this name"))
            return
        self._tags_met.add(tag_key(base))
        pairs, base_alone, raw_alone = pair_slots(base.outputs, tag.outputs)
        for one, other in pairs:
            if one.value.dtype == "released":
                text = "base's tensor of this name was let go: the two lie too far apart"
                self._unmatched.append(Unmatched("raw", tag.path, tag.kind, text))
                continue
            outcome = self._values_of(one.value, other.value, self._allowed(one.tensor), masks=True)
            comparison = self._comparison("forward", "output", base, tag, name_of(one, other), outcome, other.tensor)
            self._comparisons.append(comparison)
            self._places.setdefault(other.tensor, Place(one.tensor, comparison, one.tracked and other.tracked))
        for side, alone in (("base", base_alone), ("raw", raw_alone)):
            for slot in alone:
                self._lone_slot("output", base, tag, side, slot)

    def _drop_outputs(self, calls: set[int]) -> None:
        """What some calls returned is no longer held against base."""
        self._comparisons = [c for c in self._comparisons if c.raw_call not in calls or c.role != "output"]

    def _same(self, base: Slot, raw: Slot) -> bool:
        if base.value.shape != raw.value.shape or base.tensor not in self._held:
            return False
        key = (base.tensor, raw.tensor)
        if key not in self._outcomes:
            self._outcomes[key] = self._tensors(base, raw)
        return self._outcomes[key].agrees

    def _allowed(self, tensor: int, *, gradients: bool = False) -> Tolerance:
        """The tolerance for one tensor of base, or one made of several."""
        if self._noise is None:
            if gradients and self._tolerance.mode == "auto":  # what cancels is as uncertain as what it was summed from
                return replace(self._tolerance, atol=NOISE_OF_SUMS * self._gradient_scale)
            return self._tolerance
        known = self._noise.gradients if gradients else self._noise.tensors
        found = [known.get(part, math.inf) for part in self._pairing.parts.get(tensor, (tensor,))]
        predicted = max(found)
        if not math.isfinite(predicted):
            return self._tolerance
        return predicting(self._tolerance, predicted, sums=gradients)

    def on_gradient(self, tensor: int, gradient: Value) -> Array | None:
        if self._queue:
            self._settle()
        place = self._places.get(tensor)
        if place is None:
            self._ops.on_gradient(tensor, gradient, self._base.gradients, self._allowed)
            return None
        if self.wait_for is not None and place.tracked:
            self.wait_for(self._pairing.parts.get(place.base, (place.base,)), self._base.gradients)
        expected = self._base_gradient(place.base)
        if expected is not None:
            if not gradient.overwritten and not expected.overwritten:
                self._gradient_queue.append((place, expected, gradient))
                self._queued_bytes += math.prod(gradient.shape) * 4
                if self._crossings is not None and self._crossings.concern(gradient.shape):
                    return self._settle_gradients()
                if len(self._gradient_queue) >= QUEUE_LENGTH or self._queued_bytes >= QUEUE_BYTES:
                    self._settle_gradients()
                return None
            outcome = self._values_of(expected, gradient, self._allowed(place.base, gradients=True), gradients=True)
            self._picture("backward", outcome, expected, gradient)
            self._gradient_used(place.base, expected)
        elif place.tracked:
            outcome = _one_sided(gradient, "raw")
        else:
            return None  # base did not follow this tensor: a checkpoint's first pass, or a cut that its parameters show
        self._gradient_compared(place, outcome)
        return None

    def _settle_gradients(self) -> Array | None:
        """Compare what has queued up; says what the last of them is to be instead."""
        instead: Array | None = None
        for place, expected, gradient in self._gradient_queue:
            tolerance = self._allowed(place.base, gradients=True)
            outcome = compare_values(expected, gradient, tolerance, gradients=True, loosely=not self._alike)
            if self._crossings is not None and self._crossings.concern(gradient.shape):
                outcome, instead = self._crossings.compare(expected.numpy(), gradient.numpy(), outcome, tolerance)
            self._picture("backward", outcome, expected, gradient)
            if outcome.numbers is not None:
                self._gradient_scale = max(self._gradient_scale, outcome.numbers.base_rms)
            self._gradient_used(place.base, expected)
            self._gradient_compared(place, outcome)
        self._gradient_queue.clear()
        self._queued_bytes = 0
        return instead

    def _gradient_compared(self, place: Place, outcome: Outcome) -> None:
        if outcome.agrees or place.met.tensor not in self._shared:  # a share is no whole: what is before it tells
            self._comparisons.append(_in_backward(place.met, outcome))

    def _gradient_used(self, tensor: int, gradient: Value) -> None:
        self._held.gradient_met(tensor, gradient, (place.base for place in self._places.values()))

    def _base_gradient(self, tensor: int) -> Value | None:
        if tensor in self._pairing.derived:
            return self._pairing.derived[tensor](self._base.gradients)
        return self._base.gradients.get(tensor)

    def partner(self, raw: Call) -> Call | None:
        """Base's call that the last one told of was held against."""
        return self._pairs[-1][0] if self._pairs and self._pairs[-1][1] is raw else None

    def goes_on_with(self, gradients: Mapping[int, Value]) -> None:
        """Before raw's backward: what its gradients are held against instead."""
        self._base = replace(self._base, gradients=gradients)

    def finish(self, raw: StepTrace) -> StepComparison:
        """What backward left out on one side, and the whole step."""
        self._settle()
        self._settle_gradients()
        places = {place.base: place for place in self._places.values()}
        followed: set[int] | None = None
        for tensor, gradient in self._base.gradients.items():
            place = places.get(tensor)
            if place is not None and place.tracked and tensor not in self._held.gradients_met and raw.ran_backward:
                if followed is None:  # what a checkpoint's first run was taken to follow, its second may not have
                    followed = {
                        slot.tensor for call in raw.calls for slot in (*call.inputs, *call.outputs) if slot.tracked
                    }
                if place.met.tensor not in followed:
                    continue
                outcome = _one_sided(gradient, "base")
                self._comparisons.append(_in_backward(place.met, outcome))
        wrong, told = self._lone.judged(self._base.calls, raw.calls)
        self._comparisons += wrong
        self._unmatched += told
        doubtful = self._without_ends()
        for key, tag in tags_of(self._base.calls).items():
            if key not in self._tags_met:
                self._unmatched.append(Unmatched("base", tag.path, tag.kind, "raw tags nothing of this name"))
        ops = self._ops
        return StepComparison(
            raw.step,
            self._base,
            raw,
            tuple(self._pairs),
            tuple(self._gallery.hung(self._comparisons)),
            (*self._pairing.unmatched(raw.calls), *self._unmatched, *ops.unmatched),
            self._alike,
            doubtful,
            tuple(ops.comparisons),
            tuple(ops.pairs),
        )

    def _without_ends(self) -> bool:
        """Leaves out what was made by calls that end elsewhere; says whether something wrong may be among it."""
        root = [c for c in self._comparisons if c.raw_path == "" and c.role == "output" and c.phase == "forward"]
        if root and all(c.agrees for c in root):  # base rectifies outside of any module, and nothing is lost by it
            self._drop_outputs(set(self._partners.rectified))
            ends = (
                set()
                if self._alike
                else ending_elsewhere(self._pairs, self._comparisons, self._base_tree, self._pairing)
            )
            self._comparisons = self._reordered.left_out(self._comparisons, ends)
        else:
            agreeing = {base for (base, _), outcome in self._outcomes.items() if outcome.agrees}
            met = {tensor for tensor, place in self._places.items() if place.base in agreeing}
            ends = set() if self._alike else made_after(self._pairs, self._comparisons, self._base_tree, met)
        compared = len(self._comparisons)
        self._drop_outputs(ends)
        return len(self._comparisons) < compared

    def orders(self, raw: StepTrace) -> tuple[Order, ...]:
        """In which order the calls of modules belong together, where that is not the one in which they come."""
        return self._repeated.orders(raw.calls)

    # --- tensors

    def _compare_slots(self, role: Role, base: Call, raw: Call, left: Sequence[Slot], right: Sequence[Slot]) -> None:
        loosely = role == "input" and not self._twins
        counted = role == "output" and self._lone.counted(base)
        pairs, base_alone, raw_alone = pair_slots(left, right, loosely=loosely, counted=counted)
        if role == "output" and raw.parent >= 0 and raw_alone and not self._alike:
            pairs, raw_alone = wherever_they_are(pairs, raw_alone, lambda one, other: self._outcome(one, other).agrees)
        self._shared.update(shares_of(pairs, left, right))
        for one, other in pairs:
            if self._alike:
                self._queue_up((one.tensor, other.tensor), role, base, raw, one, other)
                continue
            outcome = self._outcome(one, other)
            if role == "input":
                outcome = as_given(one.value, other.value, outcome)
            self._picture("forward", outcome, one.value, other.value, result=role == "output" and raw.parent < 0)
            comparison = self._comparison("forward", role, base, raw, name_of(one, other), outcome, other.tensor)
            if self._beside_the_point(role, base, raw, other, right, outcome):
                self._unmatched.append(Unmatched("raw", raw.path, raw.kind, f"{role} {other.name}: {outcome.message}"))
                continue
            self._comparisons.append(comparison)
            self._places.setdefault(other.tensor, Place(one.tensor, comparison, one.tracked and other.tracked))
        if role == "output" and not self._pairing.cut(raw):
            self._lone.met(base, raw)
        if not base_alone and not raw_alone:
            return
        # One tensor passed as query, key and value is compared once, however many names it has on one side.
        known = {("base", one.tensor) for one, _ in pairs} | {("raw", other.tensor) for _, other in pairs}
        raw_alone = [slot for slot in raw_alone if not self._pairing.by_the_way(raw, slot)]
        for side, alone in (("base", base_alone), ("raw", raw_alone)):
            for slot in alone:
                if counted or (side, slot.tensor) not in known:
                    self._lone_slot(role, base, raw, side, slot)

    def _outcome(self, one: Slot, other: Slot) -> Outcome:
        key = (one.tensor, other.tensor)
        found = self._outcomes.get(key)
        if found is None:
            found = self._outcomes[key] = self._tensors(one, other)
        return found

    # --- many small comparisons at once: between the models' own work each would find the caches cold

    def _queue_up(self, key: tuple[int, int], role: Role, base: Call, raw: Call, one: Slot, other: Slot) -> None:
        arrays = None
        if key not in self._outcomes and key not in self._queued:
            drawn = role == "output" and raw.parent < 0 and math.prod(other.value.shape) <= MOST_AGREEING
            there = None if drawn else compared_there(one.value, other.value, self._allowed(one.tensor))
            if one.value.overwritten or other.value.overwritten:
                self._outcomes[key] = self._tensors(one, other)
            elif there is not None:
                self._outcomes[key] = there
            else:
                arrays = (one.value.numpy(), other.value.numpy())
                self._queued.add(key)
                self._queued_bytes += arrays[1].nbytes
        self._queue.append((key, arrays, role, base, raw, one, other))
        if len(self._queue) >= QUEUE_LENGTH or self._queued_bytes >= QUEUE_BYTES:
            self._settle()

    def _settle(self) -> None:
        """Compare what has queued up, in order."""
        results: dict[tuple[int, int], tuple[Array, Array]] = {}
        for key, arrays, role, base, raw, one, other in self._queue:
            if arrays is not None:
                results[key] = arrays
                tolerance = self._allowed(one.tensor)
                outcome = beside_the_least(*arrays, compare_in_any_layout(*arrays, tolerance), tolerance)
                if role == "input":
                    outcome = as_masks(*arrays, outcome)
                    if not outcome.agrees and leave_out_alike(*arrays):
                        self._masks.add(key)
                elif raw.index in self._given_masks:
                    outcome = beside_the_masked(*arrays, outcome, tolerance)
                self._outcomes[key] = outcome
                if self._crossings is not None and outcome.verdict == "rounding":
                    self._crossings.look(*arrays, key)
                if not outcome.agrees:
                    self._gallery.see("forward", outcome, *arrays)
            outcome = self._outcomes[key]
            if key in self._masks and raw.parent >= 0:
                self._given_masks.add(raw.index)
            if role == "input":
                outcome = as_given(one.value, other.value, outcome)
            if raw.parent < 0 and role == "output" and key in results:
                self._gallery.see_result(outcome, *results[key])
            comparison = self._comparison("forward", role, base, raw, name_of(one, other), outcome, other.tensor)
            self._comparisons.append(comparison)
            self._places.setdefault(other.tensor, Place(one.tensor, comparison, one.tracked and other.tracked))
        self._queue.clear()
        self._queued.clear()
        self._queued_bytes = 0

    def before_write(self) -> None:
        self._settle()

    def _beside_the_point(
        self, role: Role, base: Call, raw: Call, slot: Slot, slots: Sequence[Slot], outcome: Outcome
    ) -> bool:
        """In models built differently, an inner module's further outputs (masks, caches), or one whose output is of
        another shape because it ends elsewhere, accuse nobody: what is wrong shows in what is made of them."""
        if outcome.agrees or role != "output" or self._alike or raw.parent < 0:
            return False
        holds = bool(self._base_tree.nodes[base.node].children) or self._pairing.adds_up(base, raw)
        return slot is not slots[0] or (outcome.reason == "shape" and (holds or resized(base, raw)))

    def _lone_slot(self, role: Role, base: Call, raw: Call, side: str, slot: Slot) -> None:
        if role == "input":
            told: Unmatched | None = unmatched(side, base, raw, exists_in(side, role, slot))
        else:
            told = self._lone.add(base, raw, side, slot)
        if told is not None:
            self._unmatched.append(told)

    def _tensors(self, base: Slot, raw: Slot) -> Outcome:
        numbers = base.tensor, raw.tensor
        return self._values_of(base.value, raw.value, self._allowed(base.tensor), numbers=numbers)

    def _values_of(
        self,
        base: Value,
        raw: Value,
        tolerance: Tolerance,
        gradients: bool = False,
        masks: bool = False,
        numbers: tuple[int, int] | None = None,
    ) -> Outcome:
        for side, value in (("base", base), ("raw", raw)):
            if value.overwritten:
                return missing(f"{side}'s tensor was overwritten in place by code that padiff cannot see into")
        there = None if masks else compared_there(base, raw, tolerance)
        if there is not None:
            return there
        expected, found = base.numpy(), raw.numpy()
        rest = without_masked(expected, found) if masks else None
        if rest is not None:  # what is left out is large, and so is its noise
            (expected, found), tolerance = rest, replace(tolerance, predicted=None)
        outcome = compare_in_any_layout(expected, found, tolerance, gradients=gradients, loosely=not self._alike)
        outcome = outcome if gradients else beside_the_least(expected, found, outcome, tolerance)
        if self._crossings is not None and outcome.verdict == "rounding" and not gradients:
            self._crossings.look(expected, found, numbers)
        return outcome

    def _picture(self, phase: Phase, outcome: Outcome, base: Value, raw: Value, *, result: bool = False) -> None:
        if (outcome.agrees and not result) or base.overwritten or raw.overwritten:
            return
        try:
            arrays = base.numpy(), raw.numpy()
        except RuntimeError:  # compared before, and let go since
            return
        if outcome.agrees:
            self._gallery.see_result(outcome, *arrays)
        else:
            self._gallery.see(phase, outcome, *arrays)

    def _comparison(
        self, phase: Phase, role: Role, base: Call, raw: Call, name: str, outcome: Outcome, tensor: int
    ) -> Comparison:
        return Comparison(
            phase,
            self._base.step,
            role,
            base.path,
            raw.path,
            base.kind,
            raw.kind,
            name,
            outcome,
            base.index,
            raw.index,
            tensor,
        )


def _in_backward(met: Comparison, outcome: Outcome) -> Comparison:
    """A tensor's gradient, at the place where the tensor was met; written out, since it is made for every tensor."""
    return Comparison(
        "backward",
        met.step,
        met.role,
        met.base_path,
        met.raw_path,
        met.base_kind,
        met.raw_kind,
        met.name,
        outcome,
        met.base_call,
        met.raw_call,
        met.tensor,
    )


def _followed(slots: Sequence[Slot]) -> int:
    """How many tensors take part in backward."""
    return len({slot.tensor for slot in slots if slot.tracked})


def _one_sided(gradient: Value, side: str) -> Outcome:
    """A gradient that the other side does not have; zero is as good as none."""
    if not gradient.numpy().any():
        return Outcome("equal", None, f"{side}'s gradient is zero, the other side has none")
    other = "raw" if side == "base" else "base"
    return missing(f"{side} has a gradient here, {other} has none")
