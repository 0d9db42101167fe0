"""Ops that only one side's code does: named where what they return goes wrong first, by who made it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from padiff.align import pair_slots
from padiff.records import Call, Divergence, Slot, StepComparison, Value

Agrees = Callable[[Value, Value], bool]
Found = tuple[Call | None, Call | None]
"""The op of base and that of raw; None where a side has none."""


def done_by_one_side(divergence: Divergence, done: StepComparison, agrees: Agrees) -> Found | None:
    """What was done to the first thing that a module's own code uses otherwise, on one side and not on the other. Ops
    that both do and that could not be compared are gone back through; one of these may be it itself."""
    places = [(base, raw) for base, raw in done.pairs if raw.index == divergence.raw_call]
    if not places:
        return None
    base, raw = places[0]
    paired = [{pair[side].index for pair in done.op_pairs} for side in (0, 1)]
    alone = [[op for op in call.ops if op.index not in met] for call, met in zip((base, raw), paired, strict=True)]
    compared = {one.raw_call for one in done.ops if one.phase == "forward"}
    unseen = [pair for pair in done.op_pairs if pair[1].parent == raw.index and pair[1].index not in compared]
    makers = {made.tensor: pair for pair in unseen for made in pair[1].outputs}
    user = _first_wrong(raw, done)
    used = pair_slots(base.outputs, raw.outputs) if user is None else pair_slots(user[0].inputs, user[1].inputs)
    for _ in range(len(unseen) + 1):
        wrong = [(one, other) for one, other in used[0] if not agrees(one.value, other.value)]
        for one, other in wrong:
            found = (_maker(one, other, alone[0], agrees), _maker(other, one, alone[1], agrees))
            if any(found):
                return found
        behind = next((makers[other.tensor] for _, other in wrong if other.tensor in makers), None)
        if behind is None:
            return None
        used = pair_slots(behind[0].inputs, behind[1].inputs)
        if all(agrees(one.value, other.value) for one, other in used[0]):
            return behind
    return None


def _first_wrong(raw: Call, done: StepComparison) -> tuple[Call, Call] | None:
    """The first op that returns, or child that is given, something else; None where only the result is."""
    wrong = {one.raw_call for one in done.ops if one.phase == "forward" and not one.agrees}
    given = {c.raw_call for c in done.comparisons if (c.phase, c.role) == ("forward", "input") and not c.agrees}
    found = [((pair[1].begun, 0, pair[1].index), pair) for pair in done.op_pairs if pair[1].index in wrong]
    found += [((pair[1].index, 1, 0), pair) for pair in done.pairs if pair[1].index in given and not pair[1].is_op]
    inside = [(when, pair) for when, pair in found if pair[1].parent == raw.index]
    return min(inside, key=lambda one: one[0])[1] if inside else None


def _maker(slot: Slot, other: Slot, alone: Sequence[Call], agrees: Agrees) -> Call | None:
    """The lone op that made a tensor of what is still the other side's; of several in a row, the first if none is."""
    by_output = {made.tensor: op for op in alone for made in op.outputs}
    maker = by_output.get(slot.tensor)
    last: Call | None = None
    while maker is not None:
        last = maker
        if any(agrees(given.value, other.value) for given in maker.inputs):
            return maker
        maker = next((by_output[given.tensor] for given in maker.inputs if given.tensor in by_output), None)
    return last
