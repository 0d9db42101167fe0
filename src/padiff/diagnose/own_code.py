"""Inside a module's own code: the op with which it starts to go wrong.

Both sides' ops are known with all that they were given and returned. Tensors of the two are the same when their
elements are, whatever they are called: so code that goes another way to the same result is not accused. From the tensor
that differs one goes back, on each side, through all that has no like on the other, until everything an op was given
has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from padiff.compare.arrays import compare_arrays
from padiff.compare.masks import without_masked
from padiff.compare.measure import rms
from padiff.records import Array, Call, Slot, Tolerance, Value

CLOSE = 4.0
"""How many times as far apart as its nearest like a tensor may be and still be one."""
LAST_DIGIT = 1.2e-7
"""How far rounding alone may bring two apart that are the same, relative to them."""
MASKING = frozenset({"add", "masked_fill", "where"})
SAMPLE = 32
"""Elements looked at before two tensors are compared in full."""


@dataclass(frozen=True)
class Event:
    """An op of a module's own code, or the call of a child."""

    call: Call
    thing: str
    """What it does, in one word for all frameworks."""
    moving: bool = False
    """It makes no new numbers."""
    free: bool = False
    """It takes its tensors in another order of axes from one framework to the other."""
    child: bool = False
    """A child that has a partner: what it returns is base's, and right."""


@dataclass(frozen=True)
class Inside:
    """One side's own code, from its beginning to the tensor that differs."""

    events: tuple[Event, ...]
    accused: int
    """Number of the tensor that differs."""
    given: tuple[Slot, ...] = ()
    """What the module was given."""
    gradients: Mapping[int, Value] = field(default_factory=dict)
    noise: Mapping[int, float] = field(default_factory=dict)
    """How far rounding moves a tensor; of base's."""


@dataclass(frozen=True)
class Culprit:
    """Where it starts: the op of each side, and where one has none, the op before which it is missing."""

    base: Event | None
    raw: Event | None
    base_next: Event | None = None
    raw_next: Event | None = None

    @property
    def found(self) -> bool:
        return self.base is not None or self.raw is not None


class _Side:
    """One side's tensors: who made them, who uses them."""

    def __init__(self, inside: Inside) -> None:
        self.inside = inside
        self.values: dict[int, Value] = {}
        self.maker: dict[int, Event] = {}
        self.users: dict[int, list[Event]] = {}
        self.constants: set[int] = set()
        """Tensors made of nothing that the module was given or holds: masks, positions."""
        for slot in inside.given:
            self.values.setdefault(slot.tensor, slot.value)
        for event in inside.events:
            for slot in event.call.inputs:
                self.values.setdefault(slot.tensor, slot.value)
                self.users.setdefault(slot.tensor, []).append(event)
            constant = not event.child and all(slot.tensor in self.constants for slot in event.call.inputs)
            for slot in event.call.outputs:
                self.values.setdefault(slot.tensor, slot.value)
                self.maker.setdefault(slot.tensor, event)
                if constant:
                    self.constants.add(slot.tensor)
        self.place = {id(event): place for place, event in enumerate(inside.events)}
        self.by_size: dict[int, list[int]] = {}
        self._arrays: dict[int, Array] = {}
        for tensor, value in self.values.items():
            if not value.overwritten:
                self.by_size.setdefault(int(np.prod(value.shape)), []).append(tensor)

    def array(self, tensor: int) -> Array:
        """Its elements in order."""
        if tensor not in self._arrays:
            self._arrays[tensor] = self.values[tensor].numpy().reshape(-1)
        return self._arrays[tensor]

    def free(self, tensor: int) -> bool:
        """Whether the order of its axes means nothing: it comes from, or goes to, what orders them as it likes."""
        maker = self.maker.get(tensor)
        if maker is not None and maker.free:
            return True
        users = self.users.get(tensor, [])
        return bool(users) and all(
            user.free or (user.moving and all(self.free(slot.tensor) for slot in user.call.outputs)) for user in users
        )

    def was_given(self, tensor: int) -> bool:
        """Nobody's doing here: given to the module, held by it, or returned by a child that was set right."""
        maker = self.maker.get(tensor)
        return maker is None or maker.child


class _Likes:
    """Which tensors of the two sides are the same."""

    def __init__(self, base: _Side, raw: _Side) -> None:
        self.sides = (base, raw)
        self._gaps: dict[tuple[int, int], float] = {}
        """Base's and raw's tensor to how far they are apart; infinitely where they are not the same at all."""
        self._found: dict[tuple[int, int], tuple[int, ...]] = {}

    def of(self, side: int, tensor: int) -> tuple[int, ...]:
        """The other side's tensors with the same elements, as near to it as to anything on its own side."""
        key = (side, tensor)
        if key not in self._found:
            found = []
            for one in self._near(side, tensor):
                gap, best = self._gap(side, tensor, one), min(self._all_gaps(1 - side, one))
                scale = rms(self.sides[side].array(tensor)) if gap else 0.0
                if gap <= CLOSE * best + LAST_DIGIT * scale:
                    found.append(one)
            self._found[key] = tuple(found)
        return self._found[key]

    def _all_gaps(self, side: int, tensor: int) -> list[float]:
        return [self._gap(side, tensor, one) for one in self._near(side, tensor)]

    def _near(self, side: int, tensor: int) -> list[int]:
        value = self.sides[side].values.get(tensor)
        if value is None or value.overwritten:
            return []
        near = self.sides[1 - side].by_size.get(int(np.prod(value.shape)), [])
        return [one for one in near if math.isfinite(self._gap(side, tensor, one))]

    def _gap(self, side: int, tensor: int, other: int) -> float:
        pair = (tensor, other) if side == 0 else (other, tensor)
        if pair not in self._gaps:
            self._gaps[pair] = self._measured(*pair)
        return self._gaps[pair]

    def _measured(self, base: int, raw: int) -> float:
        left, right = self.sides
        one, two = left.array(base), right.array(raw)
        tolerance = Tolerance(mode="auto", predicted=left.inside.noise.get(base))
        found = _apart(one, two, tolerance)
        if math.isfinite(found):
            return found
        if left.free(base) or right.free(raw):
            return _apart(np.sort(one), np.sort(two), tolerance)
        if base in left.constants and raw in right.constants and _same_pattern(one, two):
            return 0.0
        return math.inf


def _apart(base: Array, raw: Array, tolerance: Tolerance) -> float:
    """How far two are apart that are the same but for rounding; infinitely far where they are not."""
    kinds = (base.dtype.kind, raw.dtype.kind)
    if "b" in kinds or (kinds[0] in "iu" and kinds[1] in "iu"):
        return 0.0 if np.array_equal(base, raw) else math.inf
    if base.dtype != raw.dtype:
        raw = raw.astype(base.dtype) if kinds[0] not in "iu" else raw
        base = base.astype(raw.dtype) if base.dtype != raw.dtype else base
    rest = without_masked(base, raw)
    if rest is not None:  # what is left out is large, and so is its noise
        (base, raw), tolerance = rest, replace(tolerance, predicted=None)
    if base.size > 4 * SAMPLE and base.dtype.kind == "f":
        step = base.size // SAMPLE
        one, two = base[::step].astype(np.float64), raw[::step].astype(np.float64)
        far = np.abs(one - two)
        if np.isfinite(far).all() and far.max() > 0.05 * (np.abs(one).max() + np.abs(two).max()):
            return math.inf
    outcome = compare_arrays(base, raw, tolerance)
    if not outcome.agrees:
        return math.inf
    return outcome.numbers.rmse if outcome.numbers is not None else 0.0


def _same_pattern(base: Array, raw: Array) -> bool:
    """Masks that mean the same, as booleans or as numbers to add, kept or left out."""
    one, two = base != 0, raw != 0
    return bool(np.array_equal(one, two)) or bool(np.array_equal(one, ~two))


def first_op(base: Inside, raw: Inside) -> Culprit:
    """Where the accused tensors start to differ, in forward."""
    likes = _Likes(_Side(base), _Side(raw))
    return _first(likes, (base.accused, raw.accused))


def _first(likes: _Likes, accused: tuple[int, int]) -> Culprit:
    bad = tuple(_unlike(side, likes, accused[side], accused[1 - side]) for side in (0, 1))
    firsts = [_firsts(side, likes, bad[side]) for side in (0, 1)]
    pair = _pair(likes, *firsts, strictly=True)
    if pair is None and all(firsts):
        beyond = [_firsts(side, likes, bad[side], moved=True) for side in (0, 1)]
        pair = _pair(likes, *beyond, strictly=False)
    if pair is not None:
        return _constants(likes, *pair)
    one, other = (found[0] if found else None for found in firsts)
    told = _told(likes, one, other)
    return told if told.base is None or told.raw is None else _constants(likes, told.base, told.raw)


def _constants(likes: _Likes, base: Event, raw: Event) -> Culprit:
    """The same thing done on both sides with another mask: it starts where the mask is made."""
    own: list[list[int]] = []
    for side, event in enumerate((base, raw)):
        given = [slot.tensor for slot in event.call.inputs if slot.tensor in likes.sides[side].constants]
        own.append([tensor for tensor in given if not likes.of(side, tensor)])
    if len(own[0]) == 1 and len(own[1]) == 1:
        found = _first(likes, (own[0][0], own[1][0]))
        if found.base is not None and found.raw is not None and found.base.thing == found.raw.thing:
            return found
    return Culprit(base, raw)


def _unlike(side: int, likes: _Likes, accused: int, partner: int) -> list[Event]:
    """The ops between what both sides have and the accused tensor, in order; ``partner`` is accused on the other side,
    and known to be another."""
    own = likes.sides[side]
    found: dict[int, Event] = {}
    todo, seen = [accused], {accused}
    while todo:
        tensor = todo.pop()
        same = set(likes.of(side, tensor)) - ({partner} if tensor == accused else set())
        if own.was_given(tensor) or same:
            continue
        maker = own.maker[tensor]
        found[id(maker)] = maker
        for slot in maker.call.inputs:
            if slot.tensor not in seen:
                seen.add(slot.tensor)
                todo.append(slot.tensor)
    return sorted(found.values(), key=lambda event: own.place[id(event)])


def _firsts(side: int, likes: _Likes, bad: Sequence[Event], *, moved: bool = False) -> list[Event]:
    """Those of them that were given nothing but what both sides have, and constants; of constants only where there is
    nothing else. With ``moved``, numbers that were only put elsewhere count as what both have."""
    own = likes.sides[side]
    elsewhere: set[int] = set()

    def known(slot: Slot) -> bool:
        tensor = slot.tensor
        return own.was_given(tensor) or tensor in own.constants or tensor in elsewhere or bool(likes.of(side, tensor))

    found: list[Event] = []
    for event in bad:
        if not all(known(slot) for slot in event.call.inputs):
            continue
        if moved and event.moving:
            elsewhere.update(slot.tensor for slot in event.call.outputs)
        else:
            found.append(event)
    lively = [event for event in found if any(slot.tensor not in own.constants for slot in event.call.outputs)]
    return lively or found


def _pair(likes: _Likes, base: Sequence[Event], raw: Sequence[Event], *, strictly: bool) -> tuple[Event, Event] | None:
    """Two that do the same thing; ``strictly``, with the same tensors."""
    for one in base:
        for other in raw:
            if one.thing == other.thing and (not strictly or _same_given(likes, one, other)):
                return one, other
    return None


def _same_given(likes: _Likes, base: Event, raw: Event) -> bool:
    if len(base.call.inputs) != len(raw.call.inputs):
        return False
    theirs = {slot.tensor for slot in raw.call.inputs}
    for slot in base.call.inputs:
        same = likes.of(0, slot.tensor)
        if same and not theirs & set(same):
            return False
    return True


def _told(likes: _Likes, base: Event | None, raw: Event | None) -> Culprit:
    """One op on each side that differ, or one that the other side lacks: there, what should come after it comes."""
    if base is None or raw is None:
        return Culprit(base, raw)
    after_base, after_raw = _after(likes.sides[0], base), _after(likes.sides[1], raw)
    own_base, own_raw = _sort(likes.sides[0], base), _sort(likes.sides[1], raw)
    if own_raw in after_base and own_base not in after_raw:
        return Culprit(base, None, raw_next=raw)
    if own_base in after_raw and own_raw not in after_base:
        return Culprit(None, raw, base_next=base)
    return Culprit(base, raw)


def _sort(side: _Side, event: Event) -> tuple[str, int]:
    """What an op does, and with how many tensors; masking is one thing, however it is written."""
    given = event.call.inputs
    if event.thing in MASKING and any(slot.tensor in side.constants for slot in given):
        return "mask", 2
    return event.thing, len(given)


def _after(side: _Side, event: Event) -> set[tuple[str, int]]:
    """What is done next with what an op returns, wherever it is put in between."""
    found: set[tuple[str, int]] = set()
    todo, seen = [event], {id(event)}
    while todo:
        for slot in todo.pop().call.outputs:
            for user in side.users.get(slot.tensor, ()):
                found.add(_sort(side, user))
                if user.moving and id(user) not in seen:
                    seen.add(id(user))
                    todo.append(user)
    return found


def first_op_in_backward(base: Inside, raw: Inside, agree: Callable[[Array, Array], bool]) -> Culprit:
    """The op whose outputs' gradients agree and whose inputs' don't, or which one side does not follow."""
    sides = (_Side(base), _Side(raw))
    likes = _Likes(*sides)

    def differs(slot: Slot) -> bool | None:
        """None where there is nothing to hold it against."""
        like = next((one for one in likes.of(1, slot.tensor)), None)
        if like is None:
            return None
        expected, found = base.gradients.get(like), raw.gradients.get(slot.tensor)
        if expected is None or found is None:
            return None if expected is None and found is None else True
        return not agree(expected.numpy(), found.numpy())

    for event in raw.events:
        if event.child:
            continue
        for slot in event.call.outputs:
            like = next((one for one in likes.of(1, slot.tensor)), None)
            followed = like is not None and _tracked(sides[0], like)
            if followed and not slot.tracked and any(given.tracked for given in event.call.inputs):
                partner = None if like is None else sides[0].maker.get(like)
                if partner is not None and partner.thing != event.thing:
                    return Culprit(None, event, base_next=partner)
                return Culprit(partner, event)
    for event in reversed(raw.events):
        if event.child or any(differs(slot) for slot in event.call.outputs):
            continue
        if any(differs(slot) for slot in event.call.inputs if slot.tracked):
            like = next((one for slot in event.call.outputs for one in likes.of(1, slot.tensor)), None)
            partner = None if like is None else sides[0].maker.get(like)
            return Culprit(None if partner is None or partner.child else partner, event)
    return Culprit(None, None)


def _tracked(side: _Side, tensor: int) -> bool:
    slots = [slot for event in side.inside.events for slot in (*event.call.inputs, *event.call.outputs)]
    return any(slot.tensor == tensor and slot.tracked for slot in slots)
