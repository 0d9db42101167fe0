"""Calls that raw makes one after the other on stretches of what base's call is given at once: parts of a batch, or a
prompt and then token after token, or a frame at a time."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from padiff.records import Array, Call, ModulePairs, Slot, Stretch, Value

Cut = tuple[tuple[int, int], ...]
"""Start and stop along each axis."""
Shape = tuple[int, ...]
Number = Callable[[int, Cut, Shape | None], int]
"""Gives a stretch of a tensor a number of its own; and the shape that it is brought to, where that has an axis less."""
MOST = 4096
"""Calls that are put together to one."""


def stretches_of(modules: ModulePairs, base: Sequence[Call], raw: Sequence[Call]) -> tuple[Stretch, ...]:
    """For modules that base calls once and raw often: which stretch of base's call each of raw's is, if they make it
    up."""
    base_of = modules.base_of()
    ones, others = by_node(base), by_node(raw)
    found: list[Stretch] = []
    for node, calls in others.items():
        wholes = ones.get(base_of.get(node, -1), [])
        if len(wholes) == 1 and 1 < len(calls) <= MOST:
            found += _cut(wholes[0], calls)
    return tuple(found)


def scattered_of(modules: ModulePairs, base: Sequence[Call], raw: Sequence[Call]) -> frozenset[int]:
    """Modules that base calls once and raw often, on as many numbers, which are no stretches of base's: a token that is
    kept apart from the others, and those in another order."""
    base_of, cut = modules.base_of(), {one.node for one in stretches_of(modules, base, raw)}
    ones, others = by_node(base), by_node(raw)
    found: set[int] = set()
    for node, calls in others.items():
        wholes = ones.get(base_of.get(node, -1), [])
        if len(wholes) != 1 or len(calls) < 2 or node in cut or not wholes[0].inputs:
            continue
        whole = wholes[0].inputs[0].value.shape
        parts = [call.inputs[0].value.shape for call in calls if call.inputs]
        if sum(map(math.prod, parts)) == math.prod(whole) and {part[-1:] for part in parts} == {whole[-1:]}:
            found.add(node)
    return frozenset(found)


def by_node(calls: Sequence[Call]) -> dict[int, list[Call]]:
    found: dict[int, list[Call]] = defaultdict(list)
    for call in calls:
        found[call.node].append(call)
    return {node: sorted(own, key=lambda call: call.occurrence) for node, own in found.items()}


def _cut(whole: Call, calls: Sequence[Call]) -> list[Stretch]:
    """By what they are given first; where that is nothing, or the same for all, by what they return."""
    for whole_shape, shapes in first_shapes(whole, calls):
        axis = axis_of(whole_shape, shapes)
        if axis is None:
            continue
        single = len(shapes[0]) < len(whole_shape)
        found: list[Stretch] = []
        start = 0
        for call, shape in zip(calls, shapes, strict=True):
            stop = start + (1 if single else shape[axis])
            found.append(Stretch(call.node, call.occurrence, axis, start, stop, whole_shape[axis], single))
            start = stop
        return found
    return []


def first_shapes(whole: Call, calls: Sequence[Call]) -> Iterator[tuple[Shape, list[Shape]]]:
    """The shapes of what one call is given first, and several are; then of what they return first."""
    for of in ("inputs", "outputs"):
        one = getattr(whole, of)[:1]
        shapes = [getattr(call, of)[0].value.shape for call in calls if getattr(call, of)]
        if one and len(shapes) == len(calls):
            yield one[0].value.shape, shapes


def axis_of(whole: tuple[int, ...], parts: Sequence[tuple[int, ...]]) -> int | None:
    """The axis along which the parts make up the whole: stretches of it, or one place each, without that axis."""
    if all(len(part) == len(whole) - 1 for part in parts):
        fitting = [a for a, size in enumerate(whole) if size == len(parts) and set(parts) == {_without(whole, a)}]
        return (1 if 1 in fitting else fitting[0]) if fitting else None  # of a batch as long as a sequence, that
    if any(len(part) != len(whole) for part in parts):
        return None
    for axis in range(len(whole)):
        alike = all(_without(part, axis) == _without(whole, axis) for part in parts)
        if alike and sum(part[axis] for part in parts) == whole[axis]:
            return axis
    return None


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]


class Stretching:
    """The calls of raw that are held against stretches, and base's calls cut to them."""

    def __init__(self, stretches: Sequence[Stretch]) -> None:
        self._of = {(one.node, one.occurrence): one for one in stretches}
        self._numbers: dict[tuple[int, Cut], int] = {}

    def of(self, raw: Call) -> Stretch | None:
        return self._of.get((raw.node, raw.occurrence))

    def cut(self, base: Call, raw: Call, stretch: Stretch, number: Number) -> Call:
        """Base's call as far as it does what one of raw's does; what cannot be cut so is left out."""
        inputs = self._cut_all(base.inputs, raw.inputs, stretch, number)
        return replace(base, inputs=inputs, outputs=self._cut_all(base.outputs, raw.outputs, stretch, number))

    def _cut_all(
        self, slots: Sequence[Slot], partners: Sequence[Slot], stretch: Stretch, number: Number
    ) -> tuple[Slot, ...]:
        named = {slot.name: slot for slot in partners}
        found: list[Slot] = []
        followed = False
        for place, slot in enumerate(slots):
            if slot.tracked and followed:
                continue  # keys and values for later calls: base's code goes on with them inside, raw's in other calls
            partner = named.get(slot.name) or (partners[place] if len(slots) == len(partners) else None)
            if partner is not None and partner.value.shape == slot.value.shape:
                if math.prod(slot.value.shape) > 1:  # one number, such as a loss, is of all of it
                    found.append(slot)
                continue
            cut = _cut_slot(slot, partner, stretch)
            if cut is None:
                continue
            shape = None if partner is None else partner.value.shape
            key = (slot.tensor, cut)
            if key not in self._numbers:
                self._numbers[key] = number(*key, shape if stretch.single else None)
            followed = followed or slot.tracked
            found.append(Slot(slot.name, self._numbers[key], Stretched(slot.value, cut, shape), slot.tracked))
        return tuple(found)


def by_the_way(whole: Call, stretch: Stretch, slot: Slot) -> bool:
    """Whether a call on a stretch is given or returns something because of that: what earlier calls have kept for it,
    or what base's ``whole`` has, too, and cannot be cut."""
    kept = stretch.start > 0 and stretch.start in slot.value.shape
    return kept or any(slot.name == own.name for own in (*whole.inputs, *whole.outputs))


def _cut_slot(slot: Slot, partner: Slot | None, stretch: Stretch) -> Cut | None:
    """What a tensor of base's has for one of raw's calls; None where it is not cut so. Keys may be all up to then."""
    shape, start, stop = slot.value.shape, stretch.start, stretch.stop
    if partner is None:
        if len(shape) <= stretch.axis or shape[stretch.axis] != stretch.whole:
            return None
        return tuple((start, stop) if axis == stretch.axis else (0, size) for axis, size in enumerate(shape))
    found: list[tuple[int, int]] = []
    if stretch.single and len(partner.value.shape) == len(shape) - 1:
        fits = (axis for axis, size in enumerate(shape) if size == stretch.whole)
        cut = [axis for axis in fits if _without(shape, axis) == partner.value.shape]
        if not cut:
            return None
        chosen = stretch.axis if stretch.axis in cut else cut[0]
        return tuple((start, stop) if axis == chosen else (0, size) for axis, size in enumerate(shape))
    if len(shape) != len(partner.value.shape):
        return None
    for size, wanted in zip(shape, partner.value.shape, strict=True):
        if wanted == size:
            found.append((0, size))
        elif size == stretch.whole and wanted == stop - start:
            found.append((start, stop))
        elif size == stretch.whole and wanted == stop:
            found.append((0, stop))
        elif size == 1 and not slot.tracked:  # a table for all rows of a batch, or one for each
            found.append((0, 1))
        else:
            return None
    return tuple(found)


class Stretched:
    """A stretch of a value along any axes."""

    def __init__(self, value: Value, cut: Cut, shape: tuple[int, ...] | None = None) -> None:
        self._value, self._place = value, tuple(slice(start, stop) for start, stop in cut)
        self.shape = shape or tuple(stop - start for start, stop in cut)
        self.dtype = value.dtype

    @property
    def overwritten(self) -> bool:
        return self._value.overwritten

    def numpy(self) -> Array:
        found = self._value.numpy()[self._place]
        if found.size == math.prod(self.shape):
            return found.reshape(self.shape)
        return np.broadcast_to(found, self.shape)

    def release(self) -> None:
        """The value belongs to another."""


def stretched(tensor: int, cut: Cut, shape: Shape | None, values: Mapping[int, Value]) -> Value | None:
    return Stretched(values[tensor], cut, shape) if tensor in values else None
