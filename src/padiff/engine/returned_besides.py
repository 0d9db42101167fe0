"""What a call returns besides its first output may be a mask or a cache in another form, and accuses nobody. Where the
code around goes wrong just because it is given such a thing, it was the call."""

from __future__ import annotations

from collections.abc import Sequence

from padiff.diagnose.likes import Event
from padiff.diagnose.own_code import Culprit
from padiff.records import Call, Fault

SUMMING = frozenset({"add", "sub", "sum", "cat", "stack"})
"""Ops by which authors add up what calls return, each in his own way: one after the other, or all in the end."""


def returned_wrong(culprit: Culprit, further: Sequence[Fault]) -> Fault | None:
    """The call that returned what an op of both sides' was given and differs, or one inside that it handed it on from;
    ``further`` are all that returned something else besides their first output."""
    likes = culprit.likes
    if likes is None or culprit.base is None or culprit.raw is None:
        return None
    events: list[Sequence[Event]] = [[culprit.base], [culprit.raw]]
    if culprit.base.thing != culprit.raw.thing:
        if not {culprit.base.thing, culprit.raw.thing} <= SUMMING:
            return None
        events = [[one for one in unlike if one.thing in SUMMING] for unlike in culprit.unlike]
    makers: list[list[Call]] = []
    for side, own in enumerate(events):
        given = {slot.tensor for event in own for slot in event.call.inputs}
        made = [likes.sides[side].maker.get(tensor) for tensor in sorted(given) if not likes.like(side, tensor)]
        makers.append([one.call for one in made if one is not None and one.child])
    return next((one for one in further if _in_one_of(one.base, makers[0]) and _in_one_of(one.raw, makers[1])), None)


def _in_one_of(call: Call, makers: Sequence[Call]) -> bool:
    return any(call.index == one.index or call.path.startswith(f"{one.path}.") for one in makers)
