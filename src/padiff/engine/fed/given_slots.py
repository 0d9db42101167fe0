"""Which of the tensors that two calls are given, or return, are each other's, by what they hold."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence

import numpy as np

from padiff.compare.layouts import agree_in_any_layout
from padiff.compare.masks import contradicts, in_another_form, turned_over
from padiff.compare.measure import rms, rms_gap
from padiff.engine.families import floating
from padiff.frameworks.tree import LiveTree
from padiff.records import Array, Call, Slot, Tolerance

NEARLY = 1e-4
"""How far apart, relative to their size, two tensors lie at most of which one is the other's like."""


def leaves_nothing_out(slot: Slot) -> bool:
    """Whether a mask is the same everywhere, and so as good as none."""
    if "mask" not in slot.name or slot.tracked or slot.value.overwritten:
        return False
    values = slot.value.numpy()
    return values.size > 1 and bool((values == values.flat[0]).all())


def parameters_of(live: LiveTree, call: Call) -> Mapping[str, inspect.Parameter] | None:
    """What the code of a call's module takes; None where that cannot be read."""
    try:
        return inspect.signature(live.modules[call.node].forward).parameters
    except (AttributeError, TypeError, ValueError):
        return None


def may_be_given(live: LiveTree, call: Call, name: str) -> bool:
    """Whether the code of a call's module has a parameter of that name, or takes whatever there is."""
    known = parameters_of(live, call)
    if known is None or name.isdigit() or name in known:
        return True
    return any(one.kind is one.VAR_KEYWORD for one in known.values())


def may_be_given_more(live: LiveTree, call: Call) -> bool:
    """Whether the code of a call's module takes something that it can do without, and that it was not given."""
    known = (parameters_of(live, call) or {}).values()
    given = {slot.name.partition(".")[0] for slot in call.inputs}
    return any(one.default is None and given.isdisjoint({one.name, str(n)}) for n, one in enumerate(known))


def counts_up(slot: Slot) -> bool:
    """Whether it holds 0, 1, 2 and so on along its last axis: whoever is given something else of that length knows."""
    if slot.tracked or slot.value.overwritten or not slot.value.shape or slot.value.shape[-1] < 2:
        return False
    values = slot.value.numpy()
    return values.dtype.kind in "iu" and bool((values == np.arange(values.shape[-1])).all())


def nearly_the_same(one: Slot, other: Slot) -> bool:
    """Whether a tensor is the other's like, of several that were returned."""
    if one.value.overwritten or other.value.overwritten or not (floating(one.value) and floating(other.value)):
        return False
    base, raw = one.value.numpy(), other.value.numpy()
    return base.shape == raw.shape and rms_gap(base, raw) <= NEARLY * rms(base)


def hold_the_same(one: Slot, other: Slot) -> bool:
    """Whether two tensors are each other's, in whatever layout."""
    if math.prod(one.value.shape) != math.prod(other.value.shape) or one.value.overwritten or other.value.overwritten:
        return False
    return agree_in_any_layout(one.value.numpy(), other.value.numpy(), Tolerance(mode="auto"))


def as_base_writes(base: Array, raw: Array) -> Array | None:
    """Base's mask, for raw's that may mean the same; None where it cannot."""
    if base.dtype.kind == raw.dtype.kind == "f":
        return in_another_form(base, raw)
    return turned_over(base, raw)


def unlike_masks(left: Sequence[Slot], right: Sequence[Slot]) -> list[tuple[Slot, Slot]]:
    """Masks of different shapes that cannot mean the same."""
    ones, others = (
        [slot for slot in side if not slot.tracked and not slot.value.overwritten] for side in (left, right)
    )
    return [(one, other) for one in ones for other in others if contradicts(one.value.numpy(), other.value.numpy())]
