"""Calls whose outputs differ and that may just end elsewhere in base: what comes later tells whether they are wrong."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np

from padiff.align import pair_slots
from padiff.compare.unordered import apart_in_any_order
from padiff.engine.fed.calls_met import CallsMet
from padiff.records import Array, Call, Fault, Slot

CONTAINERS = frozenset({"Sequential", "ModuleList", "LayerList", "ModuleDict", "LayerDict"})
"""Hold whatever they are given: two of them are not alike."""

_SLIGHT = 1e-3
"""Up to here, relative to their size, two tensors differ by an eps or a kernel, not by a step that is left out."""


class Doubts:
    """What is in doubt in one run, as it goes."""

    def __init__(self, met: CallsMet, innocent: frozenset[int] | None = None) -> None:
        self._met, self._innocent = met, innocent
        """Raw calls of which it is known that they end elsewhere; None where nothing is."""
        self.rivals: list[Fault] = []
        """All that was in doubt when one was confirmed, but for what lies inside of that."""
        self._open: list[Fault] = []
        """If they are wrong, something later will be."""
        self._outlived: list[Fault] = []
        """Those that a call around them returned the right thing after."""
        self.given_another_size: set[int] = set()
        """Raw calls whose first input is not that of base's with a frame: what they return proves nothing."""
        self._right: set[int] = set()
        """Tensors of raw that were seen to be base's."""
        self._likes: defaultdict[tuple[str, str], list[Fault | None]] = defaultdict(list)
        """The two classes of calls that may end elsewhere to what each of them was found to return: None: the same."""
        self._all: list[Fault] = []
        """Whatever was in doubt, also of calls that were given something else."""
        self._slight: set[int] = set()
        """Raw calls that were found wrong for so little that no step can be missing."""
        self._gone_on: set[int] = set()
        """Raw calls in doubt after which one beside them was given the right thing."""

    def add(self, base: Call, call: Call, fault: Fault, *, misfed: bool) -> None:
        """A call that might end elsewhere returned something else; ``misfed`` says that it was given something else,
        too."""
        if self._innocent is not None and call.index in self._innocent:
            return
        self._all.append(fault)
        if not misfed:
            self._likes[base.kind, call.kind].append(fault)
        if any(one.raw.node == call.node for one in self._outlived):
            return  # it returned something else before, and what came of it was right
        if not self._open or not misfed:  # else what was doubtful before explains it
            self._open.append(fault)

    def like_its_partner(self, base: Call, call: Call) -> None:
        """A call that might end elsewhere returned what base's did."""
        self._likes[base.kind, call.kind].append(None)

    def forgive(self, index: int) -> None:
        """A call of raw has turned out to be right."""
        self._open = [fault for fault in self._open if fault.raw.index != index]

    def dispel(self, one: Slot, other: Slot) -> None:
        """A tensor that a call is given, or returns, just as another had returned it, and that is right there, was
        right then."""
        self._right.add(other.origin)
        self._open = [fault for fault in self._open if not _told_by(fault, one, other)]

    def outlive(self, call: Call) -> None:
        """A call returned the right thing: what was doubtful inside just ends elsewhere."""
        if self._open:
            inside = {id(doubt) for doubt in self._open if self._met.inside(doubt.raw, call)}
            self._outlived += [doubt for doubt in self._open if id(doubt) in inside]
            self._open = [doubt for doubt in self._open if id(doubt) not in inside]

    def goes_on(self, call: Call) -> None:
        """A call is given what base's was: one before it that merely returned more or less just ends elsewhere."""
        if self._open:
            beside = call.parent
            self._gone_on.update(doubt.raw.index for doubt in self._open if doubt.raw.parent == beside)
            self._open = [
                doubt
                for doubt in self._open
                if doubt.comparison.outcome.reason != "shape"
                or doubt.raw.parent != beside
                or doubt.raw.index in self.given_another_size
            ]

    def returned(self, other: Slot) -> Fault | None:
        """What is in doubt of a tensor of raw: the call that returned it, or one inside of that."""
        found = [doubt for doubt in self._open if _told_by(doubt, None, other)]
        return self._innermost(found[-1]) if found else None

    def left(self, one: Slot, told: Slot) -> bool:
        """Whether something doubtful may be wrong, where a tensor is; what one side rectifies in the module, and the
        other after it, is not what was wrong. Where both hand on what they returned, nobody does it after it. Nor is
        one that lacks a whole step, and after which all went on rightly, what is slightly wrong later."""
        if not self._gone_on.isdisjoint(doubt.raw.index for doubt in self._open) and _slightly(one, told):
            self._open = [
                doubt for doubt in self._open if doubt.raw.index not in self._gone_on or _slight_itself(doubt)
            ]
        while self._open and _rectifies(latest := self._innermost(self._open[-1])):
            if _is_output_of(latest, one, told) and not self._rectified_as_a_rule(latest):
                break
            self._open = [doubt for doubt in self._open if doubt is not latest]
        return bool(self._open)

    def _rectified_as_a_rule(self, doubt: Fault) -> bool:
        """Whether others of its class are rectified by one side only, too: who calls this one left that out."""
        likes = self._likes[_sort(doubt)]
        return any(one is not None and one.raw.node != doubt.raw.node and _rectifies(one) for one in likes)

    def confirmed(self, one: Slot, told: Slot) -> Fault | None:
        """A tensor is wrong: what was doubtful last is, and explains the rest; of several, the last that returned as
        much, or where it is known which do end elsewhere, the first of its sort. But before all these comes the first
        of a class that returns what base's does elsewhere. None where it is not known which end elsewhere, and the one
        is right as far as it goes, and what the code around it adds is not."""
        size = math.prod(told.value.shape)
        last = next((doubt for doubt in reversed(self._open) if _size(doubt) == size), self._open[-1])
        if self._innocent is not None:
            last = next(doubt for doubt in self._open if _sort(doubt) == _sort(last))
        # What one returned that is wrong was not replaced, and may have made others wrong.
        last = next(filter(self._unlike_its_likes, self._open), last)
        beside = (doubt for doubt in self._open if doubt is last or not self._met.inside(doubt.raw, last.raw))
        self.rivals += beside
        found = self._innermost(last)
        if _slightly(one, told):
            self._slight.update(doubt.raw.index for doubt in self.rivals)
        self._open.clear()
        return None if self._innocent is None and self._goes_on_outside(found, one, told) else found

    def _unlike_its_likes(self, doubt: Fault) -> bool:
        """Whether others of its class return what base's do."""
        return None in self._likes[_sort(doubt)] and doubt.base.kind not in CONTAINERS and not _rectifies(doubt)

    def _goes_on_outside(self, doubt: Fault, one: Slot, told: Slot) -> bool:
        """Whether base hands on just what its call returns, and raw something that it makes of what its call returns,
        which is what another in there returned, rightly: raw's author does the rest outside."""
        returned = output_of(doubt)
        if returned is None or returned[1].origin not in self._right or returned[0] is None:
            return False
        return one.origin == returned[0].origin and told.origin != returned[1].origin

    def _innermost(self, found: Fault) -> Fault:
        """A doubt, or the innermost within it that was doubtful already."""
        place = next(place for place, doubt in enumerate(self._open) if doubt is found)
        for earlier in reversed(self._open[:place]):
            if not self._met.inside(earlier.raw, found.raw):
                break
            if not _normalises(earlier) and not self._merely_ends_elsewhere(earlier, found):
                found = earlier
        return found

    def _merely_ends_elsewhere(self, inner: Fault, outer: Fault) -> bool:
        """Whether one inside returned more or less than base's, and what is around it as much as base's."""
        shapes = [doubt.comparison.outcome.reason == "shape" for doubt in (inner, outer)]
        return shapes == [True, False] and inner.raw.index not in self.given_another_size

    def likes(self, doubt: Fault) -> list[Fault]:
        """Other calls of the two classes that a doubtful one is of: they return something else than base's, too, and
        nobody is wrong for it; none where one returns what base's does."""
        rivals = {one.raw.index for one in self.rivals}
        slight = doubt.raw.index in self._slight
        if slight or doubt.base.kind in CONTAINERS:
            return []
        return [one for one in self._all if _sort(one) == _sort(doubt) and one.raw.index not in rivals]

    def unlike_their_likes(self) -> list[Fault]:
        """A class that returns what base's does, but for one call of it: that one does not end elsewhere, it is wrong,
        even if nothing after it shows (an order that a mean forgets)."""
        pending = {id(doubt) for doubt in (*self._open, *self._outlived)}
        wrong = (fault for seen in self._likes.values() for fault in seen if fault is not None)
        return [fault for fault in wrong if id(fault) in pending and self.alone(fault)][:1]

    def alone(self, doubt: Fault) -> bool:
        """Whether all others of its class return what base's do, and those are several."""
        seen = self._likes[_sort(doubt)]
        wrong = [fault for fault in seen if fault is not None]
        if len(wrong) != 1 or len(seen) < 3 or wrong[0] is not doubt:
            return False
        return doubt.base.kind not in CONTAINERS and not _rectifies(doubt)


def _sort(doubt: Fault) -> tuple[str, str]:
    return doubt.base.kind, doubt.raw.kind


def _size(doubt: Fault) -> int:
    return -1 if doubt.found is None else doubt.found.size


def _slightly(one: Slot, told: Slot) -> bool:
    """Whether two tensors hold nearly the same numbers; in whatever order, where they are laid out differently."""
    return _nearly_alike(one.value.numpy(), told.value.numpy())


def _slight_itself(doubt: Fault) -> bool:
    """The same of what a call returned; of one that nothing is known of it may be."""
    return doubt.expected is None or doubt.found is None or _nearly_alike(doubt.expected, doubt.found)


def _nearly_alike(base: Array, raw: Array) -> bool:
    if base.shape == raw.shape and base.dtype.kind == raw.dtype.kind == "f":
        with np.errstate(all="ignore"):
            return bool(np.abs(base - raw).max(initial=0.0) <= _SLIGHT * np.sqrt(np.square(base).mean()))
    return apart_in_any_order(base, raw) <= _SLIGHT


def longer(fault: Fault) -> bool:
    """Whether one side has the other's numbers, and more before or after them: a convolution that pads on both ends."""
    base, raw = fault.expected, fault.found
    if base is None or raw is None or base.ndim != raw.ndim or not base.size or base.dtype.kind != "f":
        return False
    axes = [axis for axis in range(base.ndim) if base.shape[axis] != raw.shape[axis]]
    size = min(base.shape[axes[0]], raw.shape[axes[0]]) if len(axes) == 1 else 0
    if not size:
        return False
    least = 1e-4 * float(np.abs(base).max())
    for start in (0, -size):
        part = (slice(None),) * axes[0] + (slice(start, start + size or None),)
        if float(np.abs(base[part] - raw[part]).max()) <= least:
            return True
    return False


def _rectifies(fault: Fault) -> bool:
    """Whether one side has only set to zero what is negative on the other: there the other's own code does that."""
    base, raw = fault.expected, fault.found
    if base is None or raw is None or base.shape != raw.shape or base.dtype.kind != "f" or not base.size:
        return False
    least = 1e-4 * float(np.abs(base).max())
    return any(float(np.abs(np.maximum(one, 0) - other).max()) <= least for one, other in ((base, raw), (raw, base)))


def _normalises(fault: Fault) -> bool:
    """Whether one side returns scores and the other what a softmax or a sigmoid makes of them: there the other's own
    code does that."""
    base, raw = fault.expected, fault.found
    if (
        base is None
        or raw is None
        or base.shape != raw.shape
        or base.dtype.kind != "f"
        or not (base.size and base.ndim)
    ):
        return False
    return any(_normalised(one, other) for one, other in ((base, raw), (raw, base)))


def _normalised(scores: Array, shares: Array) -> bool:
    if not (float(shares.min()) >= 0 and float(shares.max()) <= 1 and np.isfinite(scores).all()):
        return False
    raised = np.exp(scores - scores.max(-1, keepdims=True))
    soft = raised / raised.sum(-1, keepdims=True)
    single = 0.5 * (1 + np.tanh(0.5 * scores))
    return any(float(np.abs(made - shares).max()) <= 1e-4 for made in (soft, single))


def _told_by(fault: Fault, one: Slot | None, other: Slot) -> bool:
    """Whether a tensor of raw, or of base, is the very output that a fault is about; a call may return others."""
    returned = output_of(fault)
    if returned is None:
        return False
    base, raw = returned
    return other.origin == raw.origin or (one is not None and base is not None and one.origin == base.origin)


def _is_output_of(fault: Fault, one: Slot, other: Slot) -> bool:
    """Whether two tensors of base and raw are the very output that a fault is about."""
    base, raw = output_of(fault) or (None, None)
    return base is not None and raw is not None and (one.origin, other.origin) == (base.origin, raw.origin)


def output_of(fault: Fault) -> tuple[Slot | None, Slot] | None:
    """The output that a fault is about, in base, where it has one, and in raw."""
    base, raw = fault.base.outputs, fault.raw.outputs
    place = next((n for n, slot in enumerate(raw) if slot.tensor == fault.comparison.tensor), None)
    if place is None:
        return None
    if len(base) == len(raw):
        return base[place], raw[place]
    pairs, _, _ = pair_slots(base, raw)
    return next((left for left, right in pairs if right is raw[place]), None), raw[place]
