"""What one side does in one op and the other step by step: the one op, spelled out.

Its steps are computed from what it was given, and stand for it only where they lead to what it returned. So the line at
which the other side's steps go wrong can be told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from padiff.diagnose.likes import Event, Inside
from padiff.diagnose.recipes import RECIPES
from padiff.diagnose.steps import Steps
from padiff.records import Tolerance

FIRST_STEP = 1 << 40
"""Tensors that nobody made are numbered from here on."""
WHOLE = frozenset({"relu", "leaky_relu", "elu", "hardswish", "mish", "log_softmax", "batch_norm", "group_norm"})
"""What is done in one op by everybody."""


def spelled_out(
    sides: tuple[Inside, Inside], unlike: tuple[Sequence[Event], Sequence[Event]]
) -> tuple[Inside, Inside] | None:
    """Both sides with one sort of op spelled out, which lies between what both have and the tensor that differs on one
    side alone; None where there is none. What does most comes first: its steps may be ops of the other side's."""
    things = [{event.thing for event in events} for events in unlike]
    for word in RECIPES:
        found = list(sides)
        for side, inside in enumerate(sides):
            lone = [event for event in unlike[side] if event.thing not in things[1 - side]]
            fused = {id(event) for event in lone if _word(event) == word}
            found[side] = replace(inside, events=tuple(_spelled(inside, fused))) if fused else inside
        if any(len(one.events) != len(other.events) for one, other in zip(found, sides, strict=True)):
            return found[0], found[1]
    return None


def is_whole(event: Event) -> bool:
    """Whether an op stands for itself, and is no step of what another does at once."""
    return _word(event) in RECIPES or event.thing in WHOLE


def _word(event: Event) -> str:
    """What to look an op up by; nothing for the step of one."""
    last = event.call.kind.rpartition(".")[2]
    return "" if event.child or event.part else last if last in RECIPES else event.thing


def _spelled(inside: Inside, fused: set[int]) -> Iterator[Event]:
    made = (slot.tensor for event in inside.events for slot in event.call.outputs)
    first = max((*made, FIRST_STEP)) + 1
    for event in inside.events:
        steps = _in_steps(event, first, inside.tolerance()) if id(event) in fused else []
        first += len(steps)
        yield from steps or [event]


def _in_steps(event: Event, first: int, tolerance: Tolerance) -> list[Event]:
    slots = (*event.call.inputs, *event.call.outputs)
    if not event.call.outputs or any(slot.value.overwritten for slot in slots):
        return []
    steps = Steps(event, first)
    try:
        with np.errstate(all="ignore"):
            RECIPES[_word(event)](steps)
        return steps.finished(tolerance)
    except Exception:  # given something that the recipe does not know
        return []
