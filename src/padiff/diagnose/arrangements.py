"""Two authors arrange the same computation differently: axes in another order, parts joined in another order."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from padiff.diagnose.likes import Event, Likes
from padiff.records import Array

JOINING = frozenset({"cat", "stack"})
MOST_PARTS = 64
"""Parts that are looked for in another tensor."""


def turned(likes: Likes, base: Sequence[Event], raw: Sequence[Event]) -> bool:
    """Whether the two sides compute the same in another order of axes: somewhere on the way both make the same new
    numbers, one for one, of what one of them has moved."""
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
    return False


def _made(event: Event) -> int:
    return event.call.outputs[0].tensor if event.call.outputs else -1


def _one_for_one(event: Event) -> list[int]:
    """What an op was given and makes a number of for each number."""
    if event.moving or event.child or len(event.call.outputs) != 1:
        return []
    shape = event.call.outputs[0].value.shape
    return [slot.tensor for slot in event.call.inputs if slot.value.shape == shape]


def lacks_a_move(likes: Likes, pair: tuple[Event, Event], firsts: tuple[Event, Event]) -> bool:
    """Whether two ops differ because one of them was given something moved elsewhere, or not moved: what they were
    given is not the same in any order, and one side begins with a move that the other lacks."""
    if not (firsts[0].moving or firsts[1].moving) or firsts[0].thing == firsts[1].thing:
        return False
    theirs = [slot.tensor for slot in pair[1].call.inputs]
    return not all(
        any(likes.in_any_order(0, slot.tensor, other) for other in theirs)
        for slot in pair[0].call.inputs
        if slot.tensor not in likes.sides[0].constants
    )


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
