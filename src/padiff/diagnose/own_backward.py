"""Inside a module's own code: the op with which its gradients start to go wrong, or stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from padiff.diagnose.likes import Event, Inside, Likes, Side
from padiff.diagnose.own_code import Culprit
from padiff.records import Array, Slot, Value

FOLLOWED = ("float", "bfloat", "complex")
"""How the names of dtypes begin that have gradients."""


def first_op_in_backward(
    base: Inside, raw: Inside, agree: Callable[[Array, Array], bool], *, sent: bool = False
) -> Culprit:
    """The op whose outputs' gradients agree and whose inputs' don't, or which one side does not follow; ``sent`` says
    that what differs is what the module sends back to its own input, and not what comes to one of its children."""
    sides = (Side(base), Side(raw))
    likes = Likes(*sides)

    def differs(slot: Slot) -> bool | None:
        """None where there is nothing to hold it against; of several with the same elements, one that agrees will
        do."""
        found = raw.gradients.get(slot.tensor)
        if found is None and sent and _is_put_there(likes, slot):
            return None
        verdicts = [apart(base.gradients.get(like), found) for like in likes.of(1, slot.tensor)]
        told = [one for one in verdicts if one is not None]
        return all(told) if told else None

    def apart(expected: Value | None, found: Value | None) -> bool | None:
        if expected is None or found is None:
            return None if expected is None and found is None else True
        return not agree(expected.numpy(), found.numpy())

    def agrees(slot: Slot) -> bool:
        """What arrives at a child's output is base's gradient, put there: that tells nothing."""
        return not sides[1].was_given(slot.tensor) and differs(slot) is False

    stopped = _stopped(1, likes, sides, agrees) or _stopped(0, likes, sides)
    if stopped is not None:
        return stopped
    for event in reversed(raw.events):
        if event.child or any(differs(slot) for slot in event.call.outputs):
            continue
        if any(differs(slot) for slot in event.call.inputs if slot.tracked):
            stop = None if _answered(raw, event) else _stop_behind(sides[1], event)
            if stop is not None:
                return Culprit(None, stop, stopped="raw")
            return _beside(likes, event)
    taking = _taking_the_given(raw) if sent else []
    if len(taking) == 1 and all(differs(slot) is False for slot in taking[0].call.outputs):
        return _beside(likes, taking[0])
    return Culprit(None, None)


def _is_put_there(likes: Likes, slot: Slot) -> bool:
    """Whether a tensor of raw's is base's, in the place of what a child returned."""
    base, raw = likes.sides
    makers = [base.maker.get(like) for like in likes.of(1, slot.tensor)]
    return slot.tensor not in raw.maker and any(one is not None and one.child for one in makers)


def _beside(likes: Likes, event: Event) -> Culprit:
    partner = _partner(likes, event)
    return Culprit(None if partner is None or partner.child else partner, event)


def _taking_the_given(side: Inside) -> list[Event]:
    """Ops that take what the module was given. What arrives there is replaced by base's gradient before it is seen, and
    what children send back is base's: if one op does, it is the one that sends back something else."""
    given = {slot.tensor for slot in side.given if slot.tracked}
    return [one for one in side.events if not one.child and any(slot.tensor in given for slot in one.call.inputs)]


def _answered(side: Inside, event: Event) -> bool:
    """Whether a gradient comes back to what an op returned."""
    return any(slot.tensor in side.gradients for slot in event.call.outputs)


def _stop_behind(side: Side, event: Event) -> Event | None:
    """The first op, of those that go on with what one returned, that is not followed."""
    stops = {id(one) for one, _ in _stops(side)}
    todo = {id(event): event}
    while todo:
        place = min(todo, key=side.place.__getitem__)
        one = todo.pop(place)
        if place in stops:
            return one
        users = (user for slot in one.call.outputs if slot.tracked for user in side.users.get(slot.tensor, ()))
        todo.update((id(user), user) for user in users if not user.child)
    return None


def _partner(likes: Likes, event: Event) -> Event | None:
    """Base's op beside one of raw's: what makes the same, or does the same thing with the same tensor."""
    own = likes.sides[0]
    for slot in event.call.outputs:
        for one in likes.of(1, slot.tensor):
            return own.maker.get(one)
    users = (user for slot in event.call.inputs for one in likes.of(1, slot.tensor) for user in own.users.get(one, []))
    return next((user for user in users if user.thing == event.thing), None)


def _stopped(
    side: int, likes: Likes, sides: tuple[Side, Side], agrees: Callable[[Slot], bool] = lambda slot: False
) -> Culprit | None:
    """An op that one side does not follow, and the other's that makes the same; not one that the other side does not
    follow, either, and none of which ``agrees`` says that the gradient of what it is given is right."""
    other = sides[1 - side]
    stops = [list(_stops(one)) for one in sides]
    met: set[int] = set()
    for event, slot in stops[side]:
        likely = likes.of(side, slot.tensor)
        stop = next((n for n, (_, one) in enumerate(stops[1 - side]) if one.tensor in likely and n not in met), -1)
        if stop >= 0:
            met.add(stop)
            continue
        like = next((one for one in likely if _tracked(other, one)), None)
        if like is None or all(agrees(given) for given in event.call.inputs if given.tracked):
            continue
        partner = other.maker.get(like)
        following = partner if partner is not None and partner.thing != event.thing else None
        pair = (None if following is not None else partner, event)
        if side == 1:
            return Culprit(*pair, base_next=following, stopped="raw")
        return Culprit(*pair[::-1], raw_next=following, stopped="base")
    return None


def _stops(side: Side) -> Iterator[tuple[Event, Slot]]:
    """Ops that are given what is followed, and what they return that is not. Of places nobody follows anything, and
    paddle (3.3) says of those that topk returns that they are followed."""
    for event in side.inside.events:
        if not event.child and any(given.tracked for given in event.call.inputs):
            made = (slot for slot in event.call.outputs if slot.value.dtype.startswith(FOLLOWED))
            yield from ((event, slot) for slot in made if not slot.tracked)


def _tracked(side: Side, tensor: int) -> bool:
    slots = [slot for event in side.inside.events for slot in (*event.call.inputs, *event.call.outputs)]
    return any(slot.tensor == tensor and slot.tracked for slot in slots)
