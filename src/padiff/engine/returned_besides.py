"""What a call returns besides its first output may be a mask or a cache in another form, and accuses nobody. Where the
code around, or that of a module it is handed on to, goes wrong just because it is given such a thing, it was the call.
"""

from __future__ import annotations

from collections.abc import Sequence

from padiff.diagnose.likes import Side
from padiff.diagnose.own_code import Culprit
from padiff.engine.doubts import output_of
from padiff.records import Call, Fault


def returned_wrong(culprit: Culprit, further: Sequence[Fault], fault: Fault) -> Fault | None:
    """The call that returned what an op of both sides' was given and differs; ``further`` are all that returned
    something else besides their first output, ``fault`` is the one in whose code the op is."""
    likes = culprit.likes
    if likes is None or culprit.base is None or culprit.raw is None or culprit.base.thing != culprit.raw.thing:
        return None
    makers: list[list[int]] = []
    handed: list[set[int]] = []
    events = (culprit.base, culprit.raw)
    given = [{slot.tensor for slot in event.call.inputs} for event in events]
    for side, event in enumerate(events):
        # What has a like elsewhere may still not be what the other's op is given: a cosine in the place of a sine.
        tensors = [slot.tensor for slot in event.call.inputs]
        unlike = [tensor for tensor in tensors if given[1 - side].isdisjoint(likes.like(side, tensor))]
        made = [likes.sides[side].maker.get(tensor) for tensor in unlike]
        makers.append([one.call.index for one in made if one is not None and one.child])
        handed.append(_handed((fault.base, fault.raw)[side], likes.sides[side], unlike))
    for one in further:
        returned = output_of(one)
        if one.base.index in makers[0] and one.raw.index in makers[1]:
            return one
        if returned is None or returned[0] is None:
            continue
        if returned[0].origin in handed[0] and returned[1].origin in handed[1]:
            return one
    return None


def _handed(call: Call, side: Side, tensors: Sequence[int]) -> set[int]:
    """What a call was given of these, as the tensors that others returned; the module ran again to be watched."""
    given = [slot.tensor for slot in side.inside.given]
    if len(given) != len(call.inputs):
        return set()
    return {slot.origin for slot, tensor in zip(call.inputs, given, strict=True) if tensor in tensors}
