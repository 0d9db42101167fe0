"""A module of base's that makes its mask itself, ``is_causal`` say, and one of raw's that is given it: where the masks
differ, who made the one that was given is to blame."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from padiff.diagnose.likes import Event, Likes, Side
from padiff.diagnose.own_code import MASKING, Culprit
from padiff.engine.scenes import Scenes
from padiff.records import Array, Fault, Slot


def given_wrongly(culprit: Culprit, fault: Fault, scenes: Scenes) -> Fault | None:
    """The fault of the call that gives raw's module a mask which is not the one that base's makes, from where that
    comes; None where the module makes it itself, or was given the right one."""
    if fault.phase != "forward" or culprit.likes is None:
        return None
    raw = culprit.likes.sides[1].inside
    places = [place for place, slot in enumerate(raw.given) if _is_wrong(culprit.likes, slot)]
    if not places or places[0] >= len(fault.raw.inputs):
        return None
    wrong = fault.raw.inputs[places[0]]
    calls = {call.index: call for call in scenes.found.calls}
    inner, outer = fault.raw, calls.get(fault.raw.parent)
    while outer is not None and wrong.origin in [slot.origin for slot in outer.inputs]:
        inner, outer = outer, calls.get(outer.parent)
    partner = None if outer is None else scenes.pairs.get(outer.index)
    if outer is None or partner is None:
        return None
    before = [call for call in scenes.found.calls if call.parent == outer.index and call.index < inner.index]
    return Fault(
        "forward", partner, outer, fault.comparison, between=True, before=before[-1] if before else None, after=inner
    )


def _is_wrong(likes: Likes, given: Slot) -> bool:
    """Whether raw leaves out something by this, of what base leaves out something else of by a mask of its own."""
    base, raw = likes.sides
    if given.value.overwritten or not raw.masks(given.tensor):
        return False
    own = {slot.tensor for slot in base.inside.given}
    for event in _masking(raw, given.tensor):
        scores = {like for slot in event.call.inputs for like in likes.like(1, slot.tensor)}
        for other in base.inside.events:
            tensors = [slot.tensor for slot in other.call.inputs]
            masks = [one for one in tensors if one in base.values and base.masks(one) and one not in own]
            if other.thing in MASKING and scores.intersection(tensors) and len(masks) == 1:
                return not _same(base.values[masks[0]].numpy(), given.value.numpy())
    return False


def _masking(side: Side, tensor: int) -> Iterator[Event]:
    """What leaves something out by a mask, wherever that is put before."""
    for event in side.users.get(tensor, ()):
        if event.thing in MASKING:
            yield event
        elif event.moving and not event.child:
            for slot in event.call.outputs:
                yield from _masking(side, slot.tensor)


def _same(base: Array, raw: Array) -> bool:
    """Whether two masks mark the same places, or one the others."""
    one, two = (np.squeeze(mask if mask.dtype == bool else mask == 0) for mask in (base, raw))
    try:
        one, two = np.broadcast_arrays(one, two)
    except ValueError:
        return True  # nobody can say
    return bool((one == two).all() or (one != two).all())
