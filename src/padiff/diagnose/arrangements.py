"""Two authors arrange the same computation differently: axes in another order, parts joined in another order."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from padiff.diagnose.likes import Event, Likes
from padiff.records import Array, Slot

SUMS = frozenset({"add", "sub"})
JOINING = frozenset({"cat", "stack"})
MOST_PARTS = 64
"""Parts that are looked for in another tensor."""


def turned(likes: Likes, base: Sequence[Event], raw: Sequence[Event]) -> bool:
    """Whether the two sides compute the same in another order of axes: somewhere on the way both make the same new
    numbers, one for one, of what one of them has moved, or by other steps; or children return them so."""
    for one in base:
        ours = [] if likes.of(0, _made(one)) else [mine for mine in _one_for_one(one) if not likes.of(0, mine)]
        for other in raw if ours else ():
            turned = one.thing == other.thing and any(
                (likes.sides[0].moved(mine) or likes.sides[1].moved(their)) and likes.in_any_order(0, mine, their)
                for mine in ours
                for their in _one_for_one(other)
            )
            if turned and likes.in_any_order(0, _made(one), _made(other)):
                return True
    if any(new_in_another_order(likes, one, other) for one in base for other in raw):
        return True
    returned = [slot for slot in _given(likes, 0, base) if slot.tensor in likes.sides[0].maker]  # by a child
    return any(
        one.value.shape != other.value.shape and likes.in_any_order(0, one.tensor, other.tensor)
        for one in returned
        for other in _given(likes, 1, raw)
    )


def _given(likes: Likes, side: int, events: Sequence[Event]) -> list[Slot]:
    """What ops were given that none of them made, and that the other side does not have as it is."""
    slots = {slot.tensor: slot for event in events for slot in event.call.inputs}
    return [one for one in slots.values() if likes.sides[side].was_given(one.tensor) and not likes.of(side, one.tensor)]


def given_in_another_order(likes: Likes, base: Event, raw: Event) -> bool:
    """Whether two ops that only move numbers are given the same ones in another order of axes already."""
    if not (base.moving and raw.moving) or not base.call.inputs or not raw.call.inputs:
        return False
    one, other = base.call.inputs[0], raw.call.inputs[0]
    if one.value.shape == other.value.shape or likes.of(0, one.tensor):
        return False
    return likes.in_any_order(0, one.tensor, other.tensor)


def new_in_another_order(likes: Likes, base: Event, raw: Event) -> bool:
    """Whether two ops return the same numbers in another order of axes, which one of them has made. Axes of one length
    that are exchanged say that it made something else: scores by key and query."""
    ours, theirs = _made(base), _made(raw)
    if base.child or raw.child or len(base.call.outputs) != 1 or len(raw.call.outputs) != 1:
        return False
    if base.call.outputs[0].value.shape == raw.call.outputs[0].value.shape:
        return False
    if likes.of(0, ours) or likes.of(1, theirs) or not (_makes_new(likes, 0, base) or _makes_new(likes, 1, raw)):
        return False
    return likes.in_any_order(0, ours, theirs)


def _makes_new(likes: Likes, side: int, event: Event) -> bool:
    own = likes.sides[side]
    return not event.moving and not any(own.passes_on(event, slot.tensor) for slot in event.call.inputs)


def _made(event: Event) -> int:
    return event.call.outputs[0].tensor if event.call.outputs else -1


def _one_for_one(event: Event) -> list[int]:
    """What an op was given and makes a number of for each number."""
    if event.moving or event.child or len(event.call.outputs) != 1:
        return []
    shape = event.call.outputs[0].value.shape
    return [slot.tensor for slot in event.call.inputs if slot.value.shape == shape]


def without_turned(likes: Likes, side: int, firsts: Sequence[Event], bad: Sequence[Event]) -> list[Event]:
    """Those that don't merely lay something out for an op to which the other side gives it in another order of axes:
    values with their places first, or last. All of them where nothing else is left."""
    kept = [event for event in firsts if not (event.moving and _given_in_another_order(likes, side, event, bad))]
    return kept or list(firsts)


def _given_in_another_order(likes: Likes, side: int, event: Event, bad: Sequence[Event]) -> bool:
    own, among = likes.sides[side], {id(one) for one in bad}
    todo = [slot.tensor for slot in event.call.outputs]
    met = False
    for tensor in todo:  # grows
        for user in own.users.get(tensor, ()):
            if id(user) not in among:
                continue
            if user.moving:
                todo += [slot.tensor for slot in user.call.outputs if slot.tensor not in todo]
            elif not _does_the_same(likes, side, tensor, user):
                return False
            else:
                met = True
    return met


def _does_the_same(likes: Likes, side: int, tensor: int, user: Event) -> bool:
    """Whether the other side's op of that kind is given the same in another order of axes."""
    theirs = likes.sides[1 - side]
    shape = likes.sides[side].values[tensor].shape
    return any(
        user.thing == other.thing and likes.in_any_order(side, tensor, one)
        for one in theirs.by_size.get(math.prod(shape), ())
        for other in theirs.users.get(one, ())
    )


def lacks_a_move(
    likes: Likes,
    pair: tuple[Event, Event],
    firsts: tuple[Event, Event],
    bad: tuple[Sequence[Event], Sequence[Event]],
) -> bool:
    """Whether two ops differ because one of them was given something moved elsewhere, or not moved: one side begins
    with a move that the other makes less often, and what the two were given is not the same in any order."""
    if firsts[0].thing == firsts[1].thing:
        return False
    counts = [[sum(event.thing == first.thing for event in side) for side in bad] for first in firsts]
    lacking = (firsts[0].moving and counts[0][0] > counts[0][1], firsts[1].moving and counts[1][1] > counts[1][0])
    if not any(lacking):
        return False
    theirs = [slot.tensor for slot in pair[1].call.inputs]
    return not all(
        any(likes.in_any_order(0, slot.tensor, other) for other in theirs)
        for slot in pair[0].call.inputs
        if slot.tensor not in likes.sides[0].constants
    )


def differing_summand(likes: Likes, base: Sequence[Event], raw: Sequence[Event]) -> tuple[Event, Event] | None:
    """Where both sides do nothing but sum up the same tensors, in whatever order: the two that take one of them with
    another sign."""
    ours, theirs = _summands(0, likes, base), _summands(1, likes, raw)
    if not ours or ours.keys() != theirs.keys():
        return None
    unlike = [tensor for tensor, (sign, _) in ours.items() if theirs[tensor][0] != sign]
    return (ours[unlike[0]][1], theirs[unlike[0]][1]) if len(unlike) == 1 else None


def _summands(side: int, likes: Likes, bad: Sequence[Event]) -> dict[int, tuple[int, Event]]:
    """Base's number of a tensor to its sign and the op that takes it up; empty where anything else is done."""
    made: set[int] = set()
    found: dict[int, tuple[int, Event]] = {}
    for event in bad:
        if event.thing not in SUMS or len(event.call.inputs) != 2 or "r" in event.call.kind.rpartition(".")[2]:
            return {}
        for place, slot in enumerate(event.call.inputs):
            sign = -1 if place and event.thing == "sub" else 1
            if slot.tensor in made:
                if sign < 0:
                    return {}
                continue
            like = (slot.tensor,) if side == 0 else likes.like(1, slot.tensor)
            if len(like) != 1 or like[0] in found:
                return {}
            found[like[0]] = (sign, event)
        made.update(slot.tensor for slot in event.call.outputs)
    return found


def joining(side: int, likes: Likes, accused: tuple[int, int], bad: tuple[list[Event], list[Event]]) -> list[Event]:
    """An op that joins all parts of a tensor of the other side's in another order than there."""
    theirs = [slot.tensor for event in bad[1 - side] for slot in event.call.outputs]
    wholes = [likes.sides[1 - side].values.get(tensor) for tensor in dict.fromkeys((accused[1 - side], *theirs))]
    for event in bad[side]:
        parts = [slot for slot in event.call.inputs if not slot.value.overwritten]
        if event.thing not in JOINING or not 1 < len(parts) <= MOST_PARTS or len(parts) != len(event.call.inputs):
            continue
        arrays = [slot.value.numpy().reshape(-1) for slot in parts]
        for whole in wholes:
            if whole is None or whole.overwritten or math.prod(whole.shape) != sum(array.size for array in arrays):
                continue
            if any(_in_another_order(arrays, whole.numpy(), axis) for axis in range(len(whole.shape))):
                return [event]
    return []


def _in_another_order(arrays: Sequence[Array], whole: Array, axis: int) -> bool:
    if whole.shape[axis] % len(arrays):
        return False
    chunks = [chunk.reshape(-1) for chunk in np.split(whole, len(arrays), axis)]
    order = [_place_of(array, chunks) for array in arrays]
    return sorted(order) == list(range(len(arrays))) and order != sorted(order)


def _place_of(array: Array, chunks: Sequence[Array]) -> int:
    same = (place for place, chunk in enumerate(chunks) if chunk.size == array.size and np.allclose(chunk, array))
    return next(same, -1)
