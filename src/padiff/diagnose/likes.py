"""Which tensors of two sides are the same: by their elements, whatever they are called."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from padiff.compare.arrays import compare_arrays
from padiff.compare.leaning import leaning
from padiff.compare.masks import without_masked
from padiff.compare.measure import rms
from padiff.diagnose.bounds import Bounds
from padiff.records import MASKED, Array, Call, Slot, Tolerance, Value

CLOSE = 4.0
"""How many times as far apart as its nearest like a tensor may be and still be one."""
LAST_DIGIT = 1.2e-7
"""How far rounding alone may bring two apart that are the same, relative to them."""
REPEATING = frozenset({"expand", "repeat_interleave"})
MOST_AXES = 5
"""Axes of tensors that are held against each other in any order."""
LEFT_OUT = -1e4
"""What is added to leave something out is no more than this."""
FAR = 1e-2
"""How far apart mean and size of two tensors may be that are looked at in any order, relative to their size."""
WIDE = frozenset({"float32", "float64"})
"""Dtypes in which rounding moves nothing so far."""
SAMPLE = 32
"""Elements looked at before two tensors are compared in full."""


def unknown(_: int) -> float | None:
    """What rounding does to tensors of which nobody can say."""
    return None


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
    part: str = ""
    """Which step it is of an op that does several at once."""

    @property
    def words(self) -> str:
        """What it is called."""
        return f"{self.call.kind} (its {self.part})" if self.part else self.call.kind


@dataclass(frozen=True)
class Inside:
    """One side's own code, from its beginning to the tensor that differs."""

    events: tuple[Event, ...]
    accused: int
    """Number of the tensor that differs."""
    given: tuple[Slot, ...] = ()
    """What the module was given."""
    gradients: Mapping[int, Value] = field(default_factory=dict)
    noise: Callable[[int], float | None] = unknown
    """How far rounding moves a tensor, where that can be told; of base's. May take a run: asked where it decides."""
    path: str = ""
    """The module's."""
    narrow: float = 0.0
    """The spacing of the narrower dtype, where one of the models computes in one on purpose."""

    def tolerance(self) -> Tolerance:
        """What rounding may do to any tensor, by the dtypes alone, or by the narrower one."""
        return Tolerance(mode="auto", predicted=0.0 if self.narrow else None, narrow=self.narrow)

    def bounds(self, tensor: int) -> Bounds:
        """What it may do to a tensor of base's."""
        return Bounds(self.tolerance(), partial(self.noise, tensor))


class Side:
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
        self._once: dict[int, Array] = {}
        self._amounts: dict[int, tuple[float, float]] = {}
        self._repeating: set[int] | None = None
        for tensor, value in self.values.items():
            if not value.overwritten:
                self.by_size.setdefault(int(np.prod(value.shape)), []).append(tensor)

    def array(self, tensor: int) -> Array:
        """Its elements in order."""
        if tensor not in self._arrays:
            self._arrays[tensor] = self.values[tensor].numpy().reshape(-1)
        return self._arrays[tensor]

    def once(self, tensor: int) -> Array:
        """Its elements in order, each repetition along an axis left out: a table for one row, or for all rows."""
        if tensor not in self._once:
            array = self.values[tensor].numpy()
            for axis, size in enumerate(array.shape):
                first = array.take([0], axis) if size > 1 else array
                if size > 1 and np.array_equal(first, array.take([1], axis)) and (array == first).all():
                    array = first
            self._once[tensor] = array.reshape(-1)
        return self._once[tensor]

    def amounts(self, tensor: int) -> tuple[float, float]:
        """Mean and root mean square of its elements, the same in every order."""
        if tensor not in self._amounts:
            array = self.array(tensor)
            mean = float(array.mean(dtype=np.float64)) if array.size else 0.0
            self._amounts[tensor] = mean, rms(array)
        return self._amounts[tensor]

    def repeats(self, tensor: int) -> bool:
        """Whether it was given with repetitions, or made of what was: who repeats by itself means to, but for masks."""
        if self._repeating is None:
            self._repeating = {one for one in self.values if one not in self.maker and self._is_repeated(one)}
            for event in self.inside.events:
                made = [slot.tensor for slot in event.call.outputs]
                given = any(slot.tensor in self._repeating for slot in event.call.inputs)
                if given and not event.child and event.thing not in REPEATING:
                    self._repeating.update(made)
                self._repeating.update(one for one in made if one in self.constants and self._is_repeated(one))
        return tensor in self._repeating

    def _is_repeated(self, tensor: int) -> bool:
        return not self.values[tensor].overwritten and self.once(tensor).size < self.array(tensor).size

    def free(self, tensor: int) -> bool:
        """Whether the order of its axes means nothing: it comes from, or goes to, what orders them as it likes."""
        maker = self.maker.get(tensor)
        if maker is not None and maker.free:
            return True
        users = self.users.get(tensor, [])
        return bool(users) and all(
            user.free or (user.moving and all(self.free(slot.tensor) for slot in user.call.outputs)) for user in users
        )

    def passes_on(self, event: Event, tensor: int) -> bool:
        """Whether an op returns what it was given, number by number: an empty mask added, a factor of one."""
        given = self.values.get(tensor)
        if given is None or given.overwritten or event.child or len(event.call.outputs) != 1:
            return False
        made = event.call.outputs[0]
        if made.value.overwritten or made.value.shape != given.shape:
            return False
        return bool(np.array_equal(self.array(tensor), self.array(made.tensor)))

    def masks(self, tensor: int) -> bool:
        """Whether it says what to leave out: of booleans, or of nothing and what is far below everything."""
        value = self.values[tensor]
        if value.overwritten or not value.shape:
            return False
        if value.dtype == "bool":
            return True
        array = self.array(tensor)
        return array.dtype.kind == "f" and array.size > 0 and array.max() == 0 and array.min() <= LEFT_OUT

    def moved(self, tensor: int) -> bool:
        """Whether an op that only moves numbers returned it."""
        maker = self.maker.get(tensor)
        return maker is not None and maker.moving

    def was_given(self, tensor: int) -> bool:
        """Nobody's doing here: given to the module, held by it, or returned by a child that was set right."""
        maker = self.maker.get(tensor)
        return maker is None or maker.child


class Likes:
    """Which tensors of the two sides are the same."""

    def __init__(self, base: Side, raw: Side) -> None:
        self.sides = (base, raw)
        self._gaps: dict[tuple[int, int], float] = {}
        """Base's and raw's tensor to how far they are apart; infinitely where they are not the same at all."""
        self._found: dict[tuple[int, int], tuple[int, ...]] = {}
        self._ordered: dict[tuple[int, int], bool] = {}
        self.turned = False
        """Whether the order of axes says nothing: one side computes in another than the other."""

    def of(self, side: int, tensor: int) -> tuple[int, ...]:
        """The other side's tensors with the same elements, as near to it as to anything on its own side."""
        key = (side, tensor)
        if key not in self._found:
            found = []
            for one in self._near(side, tensor):
                gap, best = self._gap(side, tensor, one), min(self._all_gaps(1 - side, one))
                scale = rms(self.sides[side].array(tensor)) if gap else 0.0
                if gap <= CLOSE * best + max(LAST_DIGIT, self.sides[0].inside.narrow) * scale:
                    found.append(one)
            self._found[key] = tuple(found)
        return self._found[key]

    def _all_gaps(self, side: int, tensor: int) -> list[float]:
        return [self._gap(side, tensor, one) for one in self._near(side, tensor)]

    def _near(self, side: int, tensor: int) -> list[int]:
        value = self.sides[side].values.get(tensor)
        if value is None or value.overwritten:
            return []
        size = int(np.prod(value.shape))
        near = [*self.sides[1 - side].by_size.get(size, ()), *self._repeated(side, tensor, size)]
        return [one for one in near if math.isfinite(self._gap(side, tensor, one))]

    def _repeated(self, side: int, tensor: int, size: int) -> list[int]:
        """The other side's tensors that may hold the same, and were given to one side once, to the other repeatedly."""
        own, theirs = self.sides[side], self.sides[1 - side]
        found: list[int] = []
        for other, tensors in theirs.by_size.items():
            if other < size and other and not size % other and own.repeats(tensor):
                found += [one for one in tensors if 1 < own.once(tensor).size == theirs.once(one).size]
            elif other > size and size and not other % size:
                repeating = [one for one in tensors if theirs.repeats(one)]
                found += [one for one in repeating if 1 < own.once(tensor).size == theirs.once(one).size]
        return found

    def like(self, side: int, tensor: int) -> tuple[int, ...]:
        """The same, and where both sides order axes differently, those that differ in that alone."""
        found = self.of(side, tensor)
        if found or not self.turned:
            return found
        value = self.sides[side].values.get(tensor)
        if value is None or value.overwritten:
            return ()
        near = self.sides[1 - side].by_size.get(int(np.prod(value.shape)), [])
        return tuple(one for one in near if self.in_any_order(side, tensor, one))

    def in_any_order(self, side: int, tensor: int, other: int) -> bool:
        """Whether two tensors are the same but for the order of their axes."""
        pair = (tensor, other) if side == 0 else (other, tensor)
        if pair not in self._ordered:
            self._ordered[pair] = self._permuted(*pair)
        return self._ordered[pair]

    def _permuted(self, base: int, raw: int) -> bool:
        if raw in self.of(0, base):
            return True
        values = self.sides[0].values.get(base), self.sides[1].values.get(raw)
        if any(value is None or value.overwritten for value in values):
            return False
        one, two = (np.squeeze(value.numpy()) for value in values if value is not None)
        if not 1 < one.ndim <= MOST_AXES or sorted(one.shape) != sorted(two.shape):
            return False
        (mean, size), (other_mean, other_size) = self.sides[0].amounts(base), self.sides[1].amounts(raw)
        if max(abs(mean - other_mean), abs(size - other_size)) > FAR * max(size, other_size):
            return False
        if not math.isfinite(self._apart(base, np.sort(one, axis=None), np.sort(two, axis=None))):
            return False
        return any(
            math.isfinite(self._apart(base, one.reshape(-1), two.transpose(axes).reshape(-1)))
            for axes in itertools.permutations(range(one.ndim))
            if two.transpose(axes).shape == one.shape
        )

    def _gap(self, side: int, tensor: int, other: int) -> float:
        pair = (tensor, other) if side == 0 else (other, tensor)
        if pair not in self._gaps:
            self._gaps[pair] = self._measured(*pair)
        return self._gaps[pair]

    def _measured(self, base: int, raw: int) -> float:
        left, right = self.sides
        one, two = left.array(base), right.array(raw)
        if one.size != two.size:
            one, two = left.once(base), right.once(raw)
        found = math.inf if self._of_another_size(base, raw) else self._apart(base, one, two)
        if math.isfinite(found):
            return found
        if left.free(base) or right.free(raw):
            return self._apart(base, np.sort(one), np.sort(two))
        if base in left.constants and raw in right.constants and _same_pattern(one, two):
            return 0.0
        return math.inf

    def _of_another_size(self, base: int, raw: int) -> bool:
        """Whether two tensors cannot be the same by the size of their numbers, which each is asked for once: a loop has
        hundreds of them, and all would be held against all."""
        left, right = self.sides
        least = left.inside.bounds(base).least
        if least.mode != "auto" or least.narrow or left.array(base).size != right.array(raw).size:
            return False
        if any(side.array(one).dtype.name not in WIDE for side, one in ((left, base), (right, raw))):
            return False
        sizes = left.amounts(base)[1], right.amounts(raw)[1]
        if not max(sizes) * math.sqrt(left.array(base).size) < -MASKED:
            return False  # what a mask leaves out may be among them, which says nothing
        return abs(sizes[0] - sizes[1]) > max(FAR * max(sizes), least.atol)

    def _apart(self, tensor: int, base: Array, raw: Array) -> float:
        """How far base's tensor and one of raw's are apart, of which these are the elements."""
        return self.sides[0].inside.bounds(tensor).gap(base, lambda tolerance: _apart(base, raw, tolerance))


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
    if not outcome.agrees or leaning(base, raw, tolerance):
        return math.inf
    return outcome.numbers.rmse if outcome.numbers is not None else 0.0


def _same_pattern(base: Array, raw: Array) -> bool:
    """Masks that mean the same, as booleans or as numbers to add, kept or left out."""
    if base.size < 2 or not (_one_of_two(base) and _one_of_two(raw)):
        return False
    one, two = base != 0, raw != 0
    if one.all() == one.any() and base.dtype.kind == raw.dtype.kind:  # ones and zeros are not the same
        return False
    return bool(np.array_equal(one, two)) or bool(np.array_equal(one, ~two))


def _one_of_two(array: Array) -> bool:
    """Whether elements have two values at most, one of them 0 if there are two: positions and slopes are no masks."""
    least, most = array.min(initial=0), array.max(initial=0)
    return bool(least == 0 or most == 0) and bool(((array == least) | (array == most)).all())
