"""What a call returns besides its first output may be a mask or a cache in another form, and accuses nobody. Where the
code around goes wrong just because it is given such a thing, it was the call."""

from __future__ import annotations

from collections.abc import Sequence

from padiff.diagnose.own_code import Culprit
from padiff.records import Fault


def returned_wrong(culprit: Culprit, further: Sequence[Fault]) -> Fault | None:
    """The call that returned what an op of both sides' was given and differs; ``further`` are all that returned
    something else besides their first output."""
    likes = culprit.likes
    if likes is None or culprit.base is None or culprit.raw is None or culprit.base.thing != culprit.raw.thing:
        return None
    makers: list[list[int]] = []
    for side, event in enumerate((culprit.base, culprit.raw)):
        unlike = [slot.tensor for slot in event.call.inputs if not likes.like(side, slot.tensor)]
        events = [likes.sides[side].maker.get(tensor) for tensor in unlike]
        makers.append([one.call.index for one in events if one is not None and one.child])
    return next((one for one in further if one.base.index in makers[0] and one.raw.index in makers[1]), None)
