"""What a call returns besides its first output may be a mask or a cache in another form, and accuses nobody. Where the
code around, or that of a module it is handed on to, goes wrong just because it is given such a thing, it was the call.
"""

from __future__ import annotations

from collections.abc import Sequence

from padiff.diagnose.likes import Event, Side
from padiff.diagnose.own_code import Culprit
from padiff.engine.fed.doubts import output_of
from padiff.records import Call, Fault

SUMMING = frozenset({"add", "sub", "sum", "cat", "stack"})
"""Ops by which authors add up what calls return, each in his own way: one after the other, or all in the end."""
PROJECTING = frozenset({"linear", "matmul"})
"""A layer, and what a module's own code does instead with a parameter of its own."""


def returned_wrong(culprit: Culprit, further: Sequence[Fault], fault: Fault) -> Fault | None:
    """The call that returned what an op of both sides' was given and differs, or one inside that it handed it on from;
    ``further`` are all that returned something else besides their first output, ``fault`` is the one in whose code the
    op is."""
    likes = culprit.likes
    if likes is None or culprit.base is None or culprit.raw is None:
        return None
    events: list[Sequence[Event]] = [[culprit.base], [culprit.raw]]
    things = {culprit.base.thing, culprit.raw.thing}
    if len(things) > 1 and things <= SUMMING:
        events = [[one for one in unlike if one.thing in SUMMING] for unlike in culprit.unlike]
    elif len(things) > 1 and not things <= PROJECTING:
        return None
    given = [{slot.tensor for event in own for slot in event.call.inputs} for own in events]
    makers: list[list[Call]] = []
    handed: list[set[int]] = []
    for side in (0, 1):
        # What has a like elsewhere may still not be what the other's op is given: a cosine in the place of a sine.
        beside = given[1 - side] if culprit.base.thing == culprit.raw.thing else set(likes.sides[1 - side].values)
        unlike = [tensor for tensor in sorted(given[side]) if beside.isdisjoint(likes.like(side, tensor))]
        made = [likes.sides[side].maker.get(tensor) for tensor in unlike]
        makers.append([one.call for one in made if one is not None and one.child])
        handed.append(_handed((fault.base, fault.raw)[side], likes.sides[side], unlike))
    for one in further:
        if _in_one_of(one.base, makers[0]) and _in_one_of(one.raw, makers[1]):
            return one
        returned = output_of(one)
        if returned is None or returned[0] is None:
            continue
        if returned[0].origin in handed[0] and returned[1].origin in handed[1]:
            return one
    return None


def _in_one_of(call: Call, makers: Sequence[Call]) -> bool:
    return any(call.index == one.index or call.path.startswith(f"{one.path}.") for one in makers)


def _handed(call: Call, side: Side, tensors: Sequence[int]) -> set[int]:
    """What a call was given of these, as the tensors that others returned; the module ran again to be watched."""
    given = [slot.tensor for slot in side.inside.given]
    if len(given) != len(call.inputs):
        return set()
    return {slot.origin for slot, tensor in zip(call.inputs, given, strict=True) if tensor in tensors}
