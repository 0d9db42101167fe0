"""A mask that is made outside of the module that uses it. Where raw's module is given one that leaves out other places
than base's, who made it is to blame; where it is given none and could be, who does not hand it on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from padiff.compare.layouts import agree_in_any_layout
from padiff.compare.masks import level
from padiff.diagnose.likes import Event, Likes, Side
from padiff.diagnose.own_code import MASKING, Culprit
from padiff.engine.explaining.scenes import Scenes
from padiff.engine.fed.calls_met import outward, parents_of
from padiff.engine.fed.given_slots import parameters_of
from padiff.records import Array, Call, Fault, Slot, Tolerance, Value


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
    return _between(fault, inner, outer, scenes)


def left_without(culprit: Culprit, fault: Fault, scenes: Scenes, called: Call) -> Fault | None:
    """The fault of the call that hands no mask on, where base's module uses one that it is given, and raw's takes one
    and was given none; None where its likes are right without. ``called`` is raw's module, or the one inside of it in
    whose code it goes wrong."""
    if fault.phase != "forward" or culprit.likes is None or culprit.base is None:
        return None
    mask = _given_mask(culprit.likes.sides[0], culprit.base)
    if mask is None or any(_may_be_one(slot, mask) for slot in called.inputs[1:]):
        return None
    if not _takes_a_mask(scenes, called) or _others_do_without(scenes, called, mask):
        return None
    calls = {call.index: call for call in scenes.found.calls}
    inner, outer = called, calls.get(called.parent)
    while outer is not None and not _is_given(outer, mask) and _takes_a_mask(scenes, outer):
        partner = scenes.pairs.get(outer.index)
        if outer.parent < 0 or (partner is not None and not _is_given(partner, mask)):
            break
        inner, outer = outer, calls.get(outer.parent)
    return _between(fault, inner, outer, scenes)


def kept_back(fault: Fault, scenes: Scenes, called: Call) -> Fault | None:
    """The fault of the call that is given a mask and does not hand it on to the module inside of which it goes wrong,
    while base's does and raw's module would take it; None where raw's makes up for that, or is right without."""
    if fault.phase != "forward":
        return None
    calls = {call.index: call for call in scenes.found.calls}
    inner, outer = called, calls.get(called.parent)
    while outer is not None:
        partner = scenes.pairs.get(inner.index)
        lost = partner.inputs[1:] if partner is not None and _tensors(partner) > _tensors(inner) else ()
        for slot in filter(_tells_apart, lost):
            mask = slot.value.numpy()
            if not _is_given(inner, mask) and _is_given(outer, mask) and _takes_a_mask(scenes, inner):
                return None if _made_up_for(mask, inner, fault, scenes) else _between(fault, inner, outer, scenes)
        inner, outer = outer, calls.get(outer.parent)
    return None


def _tensors(call: Call) -> int:
    """How many a call is given: one in two places is one."""
    return len({slot.origin for slot in call.inputs})


def _tells_apart(slot: Slot) -> bool:
    """Whether it is a mask, of ones and zeros or of what is added to scores, that leaves something out."""
    if slot.tracked or slot.value.overwritten or len(slot.value.shape) < 2:
        return False
    array = slot.value.numpy()
    if array.dtype.kind == "f":
        return _leaves_out(slot.value)
    return array.dtype.kind in "biu" and array.size > 1 and array.min() == 0 and array.max() == 1


def _made_up_for(lost: Array, around: Call, fault: Fault, scenes: Scenes) -> bool:
    """Whether a call inside of another is given the mask that base's is, made of one that is ``lost``; or is right
    without, where something else inside is wrong."""
    parents = parents_of(scenes.found.calls)
    wrong = set().union(*(outward(index, parents) for index in (fault.raw.index, *scenes.wrong)))
    for other in scenes.found.calls:
        base = scenes.pairs.get(other.index)
        if base is None or other.index == around.index or around.index not in outward(other.index, parents):
            continue
        masks = [slot.value.numpy() for slot in base.inputs[1:] if _tells_apart(slot)]
        masks = [mask for mask in masks if _leaves_out_as_well(mask, lost)]
        right = fault.raw.index != around.index and other.index not in wrong
        if any(right or _is_given(other, mask) for mask in masks):
            return True
    return False


def _leaves_out_as_well(mask: Array, lost: Array) -> bool:
    """Whether a mask of scores leaves out, for whatever looks, all that one of rows and places does."""
    if lost.ndim != 2 or mask.ndim < 2 or mask.shape[-1] != lost.shape[-1] or mask.shape[0] not in (1, lost.shape[0]):
        return _same(lost, mask, unsure=False)
    kept = mask if mask.dtype == bool else mask == (0 if mask.dtype.kind == "f" else 1)
    seen = kept.any(axis=tuple(range(1, mask.ndim - 1)))
    unseen = (~kept).any(axis=tuple(range(1, mask.ndim - 1))) if mask.dtype == bool else seen
    return any(not bool((one & (lost == 0)).any()) for one in (seen, unseen))


def _returns_the_same(base: Call, raw: Call) -> bool:
    if not (base.outputs and raw.outputs):
        return False
    one, two = base.outputs[0].value, raw.outputs[0].value
    if one.overwritten or two.overwritten:
        return False
    return agree_in_any_layout(one.numpy(), two.numpy(), Tolerance(mode="auto"))


def _between(fault: Fault, inner: Call, outer: Call | None, scenes: Scenes) -> Fault | None:
    """It is the code of ``outer``, before it calls ``inner``."""
    calls = {call.index: call for call in scenes.found.calls}
    around = outer
    while around is not None and around.index not in scenes.pairs:
        around = calls.get(around.parent)
    if outer is None or around is None:
        return None
    before = [call for call in scenes.found.calls if call.parent == outer.index and call.index < inner.index]
    partner, last = scenes.pairs[around.index], before[-1] if before else None
    return Fault("forward", partner, outer, fault.comparison, between=True, before=last, after=inner)


def _given_mask(side: Side, event: Event) -> Array | None:
    """The mask that an op works with and that the module was given."""
    given = {slot.tensor for slot in side.inside.given}
    for slot in event.call.inputs:
        tensor: int | None = slot.tensor
        while tensor is not None and tensor not in given:
            tensor = _made_of(side, tensor)
        if tensor is not None and _leaves_out(side.values[tensor]):
            return side.values[tensor].numpy()
    return None


def _made_of(side: Side, tensor: int) -> int | None:
    """The mask that another was made of, by turning it or taking a part."""
    maker = side.maker.get(tensor)
    given = [] if maker is None or maker.child else [slot.tensor for slot in maker.call.inputs]
    return given[0] if len(given) == 1 and _leaves_out(side.values[given[0]]) else None


def _leaves_out(value: Value) -> bool:
    """Whether it is a mask: of booleans, or added to scores, which holds any two numbers, one of them nothing."""
    if value.overwritten or len(value.shape) < 2:
        return False
    array = value.numpy()
    if array.dtype.kind != "f" or array.size < 2:
        return array.dtype == bool
    return bool(array.max() == 0 > array.min()) and bool(((array == 0) | (array == array.min())).all())


def _may_be_one(slot: Slot, mask: Array) -> bool:
    """Whether something has the place of a mask, whatever it holds."""
    shape = slot.value.shape
    if slot.tracked or len(shape) < 2:
        return False
    return all(one in (1, other) for one, other in zip(reversed(shape), reversed(mask.shape), strict=False))


def _takes_a_mask(scenes: Scenes, call: Call) -> bool:
    """Whether the module's code may be given a mask."""
    return any("mask" in name for name in parameters_of(scenes.job.raw, call) or ())


def _others_do_without(scenes: Scenes, call: Call, mask: Array) -> bool:
    """Whether another call of its class is right without a mask, where base's is given one: its code makes its own."""
    parents = parents_of(scenes.found.calls)
    wrong = {call.index}.union(*(outward(index, parents) for index in scenes.wrong))
    for other in scenes.found.calls:
        base = scenes.pairs.get(other.index)
        if other.kind != call.kind or other.index in wrong or base is None:
            continue
        if _is_given(base, mask) and not _is_given(other, mask) and _returns_the_same(base, other):
            return True
    return False


def _is_given(call: Call, mask: Array) -> bool:
    """Whether a call is given a mask that leaves out the same."""
    for slot in call.inputs[1:]:
        if not slot.value.overwritten and not slot.tracked and len(slot.value.shape) > 1:
            values = slot.value.numpy()
            if values.size > 1 and values.min() != values.max() and _same(mask, values, unsure=False):
                return True
    return False


def _is_wrong(likes: Likes, given: Slot) -> bool:
    """Whether raw leaves out something by this, of what base leaves out something else of by a mask of its own; or adds
    this, which leaves out nothing, where base adds a mask that raw's module is not given in another place."""
    base, raw = likes.sides
    if given.value.overwritten or len(given.value.shape) < 2:
        return False
    # Of what base is given, raw may do a part by a mask of its own.
    several = len([event for event in raw.inside.events if _leaves_out_by(raw, event)]) > 1
    own = {slot.tensor for slot in base.inside.given} if several else set[int]()
    for event in _masking(raw, given.tensor):
        scores = {like for slot in event.call.inputs for like in likes.like(1, slot.tensor)}
        for other in base.inside.events:
            tensors = [slot.tensor for slot in other.call.inputs]
            masks = [one for one in tensors if one in base.values and base.masks(one) and one not in own]
            if other.thing in MASKING and scores.intersection(tensors) and len(masks) == 1:
                mask = base.values[masks[0]].numpy()
                if raw.masks(given.tensor):
                    return not _same(mask, given.value.numpy())
                return other.thing == event.thing == "add" and not any(
                    raw.masks(slot.tensor) and _same(mask, slot.value.numpy()) for slot in raw.inside.given
                )
    return False


def _leaves_out_by(side: Side, event: Event) -> bool:
    return event.thing in MASKING and any(side.masks(slot.tensor) for slot in event.call.inputs)


def _masking(side: Side, tensor: int) -> Iterator[Event]:
    """What leaves something out by a mask, wherever that is put before."""
    for event in side.users.get(tensor, ()):
        if event.thing in MASKING:
            yield event
        elif event.moving and not event.child:
            for slot in event.call.outputs:
                yield from _masking(side, slot.tensor)


def _same(base: Array, raw: Array, *, unsure: bool = True) -> bool:
    """Whether two masks mark the same places, or one the others; ``unsure`` where nobody can say."""
    marks = [mask if mask.dtype == bool else mask == 0 for mask in (base, raw)]
    levelled, bare = level(marks[0], marks[1]), [np.squeeze(mark) for mark in marks]
    # [b, 1, 1, t] is [b, t] with axes for heads and queries, though one may be repeated to the other's shape otherwise.
    for one, two in (bare, marks) if bare[0].shape == bare[1].shape else (levelled or marks, bare):
        try:
            one, two = np.broadcast_arrays(one, two)
        except ValueError:
            continue
        return bool((one == two).all() or (one != two).all())
    return unsure
