"""Where a module's own code goes wrong, step by step: the op it starts with, and those of both sides that follow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import partial

from padiff.compare.masks import without_masked
from padiff.diagnose.bounds import Bounds
from padiff.diagnose.likes import Event, Likes, unknown
from padiff.diagnose.own_code import Culprit
from padiff.records import Array, Call

MOST_FOLLOWING = 5
"""Ops after the first that are looked at."""
MOST_AT_HAND = 12
"""Tensors before an op that are looked at."""
_MOST_ALIGNED = 400


@dataclass(frozen=True)
class Stage:
    """Two tensors that belong together and differ, each made by one op of its side, and what they were made of."""

    op: Call
    """Base's op; raw's where base has none."""
    expected: Array
    found: Array
    bounds: Bounds
    """How far rounding may move base's."""
    given: Mapping[str, Array] = field(default_factory=dict)
    """What the op was given, by place, as far as both sides have it."""
    around: Mapping[str, Array] = field(default_factory=dict)
    """What had been made before that both sides have, by the path of what made it, the nearest first."""


def stages(culprit: Culprit) -> Iterator[Stage]:
    """The op it starts with first."""
    likes = culprit.likes
    if likes is None:
        return
    first = _missing(likes, culprit) if culprit.base is None or culprit.raw is None else None
    if first is not None:
        yield first
    pairs = [] if culprit.base is None or culprit.raw is None else [(culprit.base, culprit.raw)]
    for base, raw in [*pairs, *_following(culprit)]:
        stage = _stage(likes, base, raw)
        if stage is not None:
            yield stage


def _following(culprit: Culprit) -> list[tuple[Event, Event]]:
    """Ops after it that do the same thing on both sides, in order."""
    known = {id(event) for event in (culprit.base, culprit.raw) if event is not None}
    lists = [
        [event for event in events[:_MOST_ALIGNED] if not (event.moving or event.child) and id(event) not in known]
        for events in culprit.unlike
    ]
    keys = [[(event.thing, _shape(event)) for event in events] for events in lists]
    blocks = SequenceMatcher(None, keys[0], keys[1], autojunk=False).get_matching_blocks()
    found = [(lists[0][b.a + n], lists[1][b.b + n]) for b in blocks for n in range(b.size)]
    return found[:MOST_FOLLOWING]


def _shape(event: Event) -> tuple[int, ...]:
    return tuple(event.call.outputs[0].value.shape) if event.call.outputs else ()


def _stage(likes: Likes, base: Event, raw: Event) -> Stage | None:
    if not base.call.outputs or not raw.call.outputs:
        return None
    one, other = base.call.outputs[0], raw.call.outputs[0]
    if one.value.overwritten or other.value.overwritten:
        return None
    noise = partial(likes.sides[0].inside.noise, one.tensor)
    expected, found = one.value.numpy(), other.value.numpy()
    rest = without_masked(expected, found) if expected.shape == found.shape else None
    if rest is not None:  # what both leave out is large: beside it nothing else would count, nor would its noise
        (expected, found), noise = rest, partial(unknown, one.tensor)
    bounds = Bounds(likes.sides[0].inside.tolerance(), noise)
    return Stage(base.call, expected, found, bounds, _given(likes, 0, base), _around(likes, 0, base))


def _missing(likes: Likes, culprit: Culprit) -> Stage | None:
    """An op that one side lacks: what the op makes of a tensor, beside that tensor."""
    side = 0 if culprit.base is not None else 1
    event = culprit.base or culprit.raw
    following = culprit.raw_next if side == 0 else culprit.base_next
    if event is None or not event.call.outputs or event.call.outputs[0].value.overwritten:
        return None
    made = event.call.outputs[0]
    goes_on = set() if following is None else {slot.tensor for slot in following.call.inputs}
    for slot in event.call.inputs:
        if slot.value.overwritten or slot.value.shape != made.value.shape:
            continue
        if not goes_on or goes_on & set(likes.of(side, slot.tensor)):
            sides = (made.value.numpy(), slot.value.numpy())
            expected, found = sides if side == 0 else sides[::-1]
            bounds = likes.sides[side].inside.bounds(made.tensor)
            given, around = _given(likes, side, event), _around(likes, side, event)
            return Stage(event.call, expected, found, bounds, given, around)
    return None


def _given(likes: Likes, side: int, event: Event) -> dict[str, Array]:
    return {
        str(place): slot.value.numpy()
        for place, slot in enumerate(event.call.inputs)
        if not slot.value.overwritten and likes.of(side, slot.tensor)
    }


def _around(likes: Likes, side: int, event: Event) -> dict[str, Array]:
    """What the op's tensors were made of, as far as both sides have it, the nearest first."""
    own = likes.sides[side]
    found: dict[str, Array] = {}
    todo = [slot.tensor for slot in event.call.inputs]
    seen = set(todo)
    for tensor in todo:  # grows
        maker = own.maker.get(tensor)
        if len(found) >= MOST_AT_HAND:
            break
        if maker is None:
            continue
        value = own.values[tensor]
        if not value.overwritten and (own.was_given(tensor) or likes.of(side, tensor)):
            place = next(n for n, slot in enumerate(maker.call.outputs) if slot.tensor == tensor)
            found.setdefault(maker.call.path if not place else f"{maker.call.path}[{place}]", value.numpy())
        if maker.child:
            continue
        for slot in maker.call.inputs:
            if slot.tensor not in seen:
                seen.add(slot.tensor)
                todo.append(slot.tensor)
    return found
