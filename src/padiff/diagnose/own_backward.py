"""Inside a module's own code: the op with which its gradients start to go wrong, or stop."""

from __future__ import annotations

from collections.abc import Callable

from padiff.diagnose.likes import Event, Inside, Likes, Side
from padiff.diagnose.own_code import Culprit
from padiff.records import Array, Slot


def first_op_in_backward(base: Inside, raw: Inside, agree: Callable[[Array, Array], bool]) -> Culprit:
    """The op whose outputs' gradients agree and whose inputs' don't, or which one side does not follow."""
    sides = (Side(base), Side(raw))
    likes = Likes(*sides)

    def differs(slot: Slot) -> bool | None:
        """None where there is nothing to hold it against."""
        like = next((one for one in likes.of(1, slot.tensor)), None)
        if like is None:
            return None
        expected, found = base.gradients.get(like), raw.gradients.get(slot.tensor)
        if expected is None or found is None:
            return None if expected is None and found is None else True
        return not agree(expected.numpy(), found.numpy())

    for side in (1, 0):
        stopped = _stopped(side, likes, sides)
        if stopped is not None:
            return stopped
    for event in reversed(raw.events):
        if event.child or any(differs(slot) for slot in event.call.outputs):
            continue
        if any(differs(slot) for slot in event.call.inputs if slot.tracked):
            partner = _partner(likes, event)
            return Culprit(None if partner is None or partner.child else partner, event)
    return Culprit(None, None)


def _partner(likes: Likes, event: Event) -> Event | None:
    """Base's op beside one of raw's: what makes the same, or does the same thing with the same tensor."""
    own = likes.sides[0]
    for slot in event.call.outputs:
        for one in likes.of(1, slot.tensor):
            return own.maker.get(one)
    users = (user for slot in event.call.inputs for one in likes.of(1, slot.tensor) for user in own.users.get(one, []))
    return next((user for user in users if user.thing == event.thing), None)


def _stopped(side: int, likes: Likes, sides: tuple[Side, Side]) -> Culprit | None:
    """An op that one side does not follow, and the other's that makes the same."""
    other = sides[1 - side]
    for event in sides[side].inside.events:
        if event.child or not any(given.tracked for given in event.call.inputs):
            continue
        for slot in event.call.outputs:
            like = next((one for one in likes.of(side, slot.tensor) if _tracked(other, one)), None)
            if like is None or slot.tracked:
                continue
            partner = other.maker.get(like)
            following = partner if partner is not None and partner.thing != event.thing else None
            pair = (None if following is not None else partner, event)
            if side == 1:
                return Culprit(*pair, base_next=following, stopped="raw")
            return Culprit(*pair[::-1], raw_next=following, stopped="base")
    return None


def _tracked(side: Side, tensor: int) -> bool:
    slots = [slot for event in side.inside.events for slot in (*event.call.inputs, *event.call.outputs)]
    return any(slot.tensor == tensor and slot.tracked for slot in slots)
