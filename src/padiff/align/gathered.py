"""Calls that base makes one after the other on stretches of what raw's call is given at once: frames in a loop here,
all of them in one call there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from padiff.align.derived import Joined, Stacked
from padiff.align.stretches import MOST, axis_of, by_node, first_shapes
from padiff.records import Call, Gathered, ModulePairs, Slot, Value

Join = tuple[int, bool]
"""Along which axis, and whether that is a new one."""
Number = Callable[[tuple[int, ...], Join], int]
"""Gives tensors that are put together a number of their own."""


def gathered_of(modules: ModulePairs, base: Sequence[Call], raw: Sequence[Call]) -> tuple[Gathered, ...]:
    """Modules that raw calls once and base often, if base's calls make up raw's."""
    base_of = modules.base_of()
    ones, others = by_node(base), by_node(raw)
    found: list[Gathered] = []
    for node, wholes in others.items():
        calls = ones.get(base_of.get(node, -1), [])
        if len(wholes) == 1 and 1 < len(calls) <= MOST:
            make_up = any(axis_of(*shapes) is not None for shapes in first_shapes(wholes[0], calls))
            found += [Gathered(node, len(calls))] if make_up else []
    return tuple(found)


def put_together(calls: Sequence[Call], raw: Call, number: Number) -> Call:
    """Base's calls as one that does what raw's does; what cannot be put together so is left out."""
    inputs = _all([call.inputs for call in calls], raw.inputs, number)
    return replace(calls[0], inputs=inputs, outputs=_all([call.outputs for call in calls], raw.outputs, number))


def _all(slots: Sequence[Sequence[Slot]], partners: Sequence[Slot], number: Number) -> tuple[Slot, ...]:
    if len({len(own) for own in slots}) != 1:
        return ()
    named = {slot.name: slot for slot in partners}
    found: list[Slot] = []
    for place, parts in enumerate(zip(*slots, strict=True)):
        same = len(slots[0]) == len(partners)
        partner = named.get(parts[0].name) or (partners[place] if same else None)
        if len({part.tensor for part in parts}) == 1:  # given to all of them
            found.append(parts[0])
            continue
        if partner is None:
            continue
        shapes = [part.value.shape for part in parts]
        axis = axis_of(partner.value.shape, shapes)
        if axis is None:
            continue
        join = axis, len(shapes[0]) < len(partner.value.shape)
        made = _put([part.value for part in parts], join)
        tensors = tuple(part.tensor for part in parts)
        found.append(Slot(parts[0].name, number(tensors, join), made, all(part.tracked for part in parts)))
    return tuple(found)


def _put(values: Sequence[Value], join: Join) -> Value:
    axis, new = join
    return Stacked(values, axis) if new else Joined(values, axis=axis)


def together(tensors: Sequence[int], join: Join, values: Mapping[int, Value]) -> Value | None:
    held = [values[tensor] for tensor in tensors if tensor in values]
    return _put(held, join) if len(held) == len(tensors) else None
