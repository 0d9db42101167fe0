"""What calls make of base's tensors, held against what base's calls made of them: how far it is apart, and how far it
may be."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from padiff.align import name_of
from padiff.capture.held import Held, measured
from padiff.capture.jitter import Jitter
from padiff.compare.layouts import compare_arranged
from padiff.compare.leaning import leaning
from padiff.compare.masks import least_alike, masked_alike, mean_the_same, without_least, without_masked
from padiff.compare.measure import rms_gap
from padiff.compare.tolerance import predicting
from padiff.engine.families import floating
from padiff.engine.fed.beside import Beside
from padiff.engine.fed.blame import Blame
from padiff.engine.fed.saturation import Saturation
from padiff.engine.free.where_they_lie import compared_there, gap
from padiff.engine.gallery import Gallery
from padiff.records import Array, Call, Comparison, Numbers, Outcome, Phase, Role, Slot, Tolerance, Value

SAME = Outcome("equal", None, "equal")

Key = tuple[str, str, int, int]
"""Phase, role, base's call (-1 where it does not matter) and base's tensor."""


class Unsettled(NamedTuple):
    """Two gradients of which it is not known yet whether they differ."""

    outcome: Outcome
    key: Key
    base: Array
    raw: Array


class LocalComparing:
    """Compares the tensors of one run that is fed base's, and tells who is to blame of what differs."""

    def __init__(
        self,
        step: int,
        noise: Mapping[Key, float],
        beside: Beside,
        tolerance: Tolerance,
        blame: Blame,
        saturation: Saturation,
        *,
        loosely: bool,
        gradients_later: bool,
        change: Jitter | None,
        look: Callable[[str, str, int, str, Value], None] | None,
        gallery: Gallery | None,
    ) -> None:
        self._step, self._noise, self._beside, self._tolerance = step, noise, beside, tolerance
        self._blame, self._saturation, self._gallery = blame, saturation, gallery
        self._loosely, self._gradients_later = loosely, gradients_later
        self._change = change
        """Done to everything that is fed: rounding, imitated."""
        self._look = look
        """Told of everything before it is compared: phase, role, raw's call, name, raw's value."""
        self.comparisons: list[Comparison] = []
        self.gaps: dict[Key, float] = {}
        """How far things moved, where what is fed is changed."""
        self.unsettled: list[Unsettled] = []
        """Gradients that are more than the least apart, while base's noise is not known."""
        self._handed: dict[int, int | None] = {}
        """Tensor of raw to base's that was handed on in its place; None where several were."""
        self._altered: set[int] = set()
        """Those of them that hold some of raw's own numbers."""
        self._given_masks: set[int] = set()
        """Raw calls that were given a mask which leaves out the same as base's, with other numbers."""
        self._layouts: dict[tuple[tuple[int, ...], tuple[int, ...]], set[str]] = {}
        """Shapes of base's and raw's tensors to the arrangements in which such tensors agree."""
        self._sizes: dict[int, Numbers] = {}
        """Tensor of base to what was found when it was compared first."""

    def compare(
        self, phase: Phase, role: Role, base: Call, call: Call, one: Slot, other: Slot, kind: str
    ) -> tuple[Outcome, Array | Held | None]:
        """What is found, and base's numbers in raw's arrangement, if they can take raw's place; ``kind`` says what is
        to be made of it if they differ. Where both lie on an accelerator and are equal, nothing is fetched."""
        key = self._key(phase, role, base, one)
        if self._look is not None:
            self._look(phase, role, call.index, name_of(one, other), other.value)
        if role == "input" and other.origin in self._altered:
            self._given_masks.add(call.index)
        if phase == "forward" and self.is_handed(one, other) and (role == "input" or self.is_as_it_was(one, other)):
            return self._compare_handed(role, key, base, call, one, other)
        there = self._compare_there(phase, role, key, base, call, one, other)
        if there is not None:
            return there
        expected, found = one.value.numpy(), other.value.numpy()
        if self._change is not None:  # base beside itself: how far things move is all that is asked
            moved = rms_gap(expected, found) if expected.shape == found.shape else math.inf
            self.gaps[key] = max(self.gaps.get(key, 0.0), moved)
            return SAME, expected if expected.shape == found.shape else None
        if (phase, role) == ("forward", "input") and mean_the_same(expected, found):
            self._given_masks.add(call.index)
        tolerance = self.allowed(key)
        masked = call.parent >= 0 and call.index in self._given_masks
        alike = masked_alike if role == "input" or masked else least_alike
        told = alike(expected, found) if phase == "forward" else expected
        if told is not expected:
            self._altered.add(other.origin)
            if role == "input":
                self._given_masks.add(call.index)
        rest = _unmasked(expected, found, all_of=bool(call.tag) or masked) if phase == "forward" else None
        expected = told
        if rest is not None:  # what is left out is large, and so is its noise
            (expected, found), tolerance = rest, replace(tolerance, predicted=None)
        layouts = self._layouts.setdefault((expected.shape, found.shape), set())
        outcome, arranged = compare_arranged(
            expected, found, tolerance, gradients=phase == "backward", loosely=self._loosely, known=layouts
        )
        if outcome.agrees and outcome.layout and phase == "forward":
            layouts.add(outcome.layout)
        outcome = _unless_leaning(outcome, arranged, found, tolerance) if phase == "forward" else outcome
        if rest is not None:
            arranged = None if arranged is None else told
        if phase == "forward" and outcome.numbers is not None:
            self._sizes.setdefault(one.origin, outcome.numbers)
        if phase == "backward" and self._saturation.explains(role, base, outcome):
            message = f"{outcome.message}; rounding of a gradient that hardly gets through"
            outcome = replace(outcome, verdict="rounding", reason=None, message=message)
        if self._gallery is not None and not outcome.agrees:
            self._gallery.see(phase, outcome, expected, found)
        if self._gradients_later and phase == "backward" and outcome.reason == "values":
            found = np.array(found)  # of a gradient nobody keeps
            self.unsettled.append(Unsettled(outcome, key, expected if arranged is None else arranged, found))
        comparison = self.comparison(phase, role, base, call, one, other, outcome)
        if outcome.agrees or kind not in ("beside", "elsewhere"):
            self.comparisons.append(comparison)
        if not outcome.agrees and kind == "beside" and role == "output":
            self._blame.further(base, call, one, other, comparison, arranged)
        elif not outcome.agrees and kind != "elsewhere":
            self._blame.accuse(phase, role, base, call, one, other, comparison, kind, arranged)
        return outcome, arranged

    def is_handed(self, one: Slot, other: Slot) -> bool:
        """Whether a call is given base's tensor just as it was handed on to it."""
        mine = other.origin != other.tensor and self._handed.get(other.origin) == one.origin
        return mine and one.value.shape == other.value.shape and one.value.dtype == other.value.dtype

    def is_as_it_was(self, one: Slot, other: Slot) -> bool:
        """Whether a tensor that was handed on holds base's numbers, and is known by its size."""
        return self._change is None and other.origin not in self._altered and one.origin in self._sizes

    def hand(self, one: Slot, other: Slot) -> None:
        """Base's tensor is handed on in the place of raw's."""
        known = self._handed.setdefault(other.origin, one.origin)
        self._handed[other.origin] = one.origin if known == one.origin else None

    def _compare_there(
        self, phase: Phase, role: Role, key: Key, base: Call, call: Call, one: Slot, other: Slot
    ) -> tuple[Outcome, Held] | None:
        """Of two that lie on one accelerator: how far base moves when it is shaken, or that raw's is equal to base's;
        None where the elements must be looked at."""
        if not isinstance(one.value, Held) or not one.value.elsewhere or one.value.dtype != other.value.dtype:
            return None
        if self._change is not None:
            found = measured(one.value, other.value)
            if found is None:
                return None
            self.gaps[key] = max(self.gaps.get(key, 0.0), found.gap_rms)
            return SAME, one.value
        outcome = compared_there(one.value, other.value, self.allowed(key))
        if outcome is None or outcome.verdict != "equal" or outcome.numbers is None:
            return None
        if phase == "forward":
            self._sizes.setdefault(one.origin, outcome.numbers)
        self.comparisons.append(self.comparison(phase, role, base, call, one, other, outcome))
        return outcome, one.value

    def _compare_handed(
        self, role: Role, key: Key, base: Call, call: Call, one: Slot, other: Slot
    ) -> tuple[Outcome, Array | Held | None]:
        """What was replaced already is equal by rights, or moved as far as it is moved everywhere."""
        expected = one.value if isinstance(one.value, Held) and one.value.elsewhere else one.value.numpy()
        if self._change is not None:
            self.gaps[key] = max(self.gaps.get(key, 0.0), gap(one.value, other.value))
            return SAME, expected
        outcome = SAME
        known = self._sizes.get(one.origin)
        if known is not None:
            ulp = 0 if floating(one.value) else None
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
            self._step,
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
        if noise is None and self._gradients_later and phase == "backward":
            return predicting(self._tolerance, 0.0, sums=True)
        noise = self._noise if noise is None else noise
        if not noise:
            return self._tolerance
        found = [noise.get((phase, role, index, part)) for part in self._beside.parts(tensor)]
        known = [noise for noise in found if noise is not None and math.isfinite(noise)]
        if not known:
            return self._tolerance
        return predicting(self._tolerance, max(known), sums=phase == "backward")

    def finish(self) -> None:
        """The run is over: what was drawn of it is hung where it belongs."""
        if self._gallery is not None:
            self.comparisons = self._gallery.hung(self.comparisons)


def _unmasked(base: Array, raw: Array, *, all_of: bool) -> tuple[Array, Array] | None:
    """Both without what both leave out; None where there is no such thing."""
    return without_masked(base, raw) if all_of else without_least(base, raw)


def _unless_leaning(outcome: Outcome, base: Array | None, raw: Array, tolerance: Tolerance) -> Outcome:
    """A fault where a narrower dtype explains how far two are apart, and not that all of it is to one side."""
    if outcome.verdict == "equal" or not outcome.agrees or base is None:
        return outcome
    why = leaning(base, raw, tolerance)
    if not why:
        return outcome
    return replace(outcome, verdict="different", reason="values", message=f"{outcome.message}; {why}")
