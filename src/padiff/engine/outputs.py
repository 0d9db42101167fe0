"""Which of the tensors that two models return belong together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

from padiff.align import pair_slots
from padiff.capture.held import HostValue
from padiff.records import Array, Slot, Value

Named = tuple[str, Array]
V = TypeVar("V", bound=Value)
W = TypeVar("W", bound=Value)
Places = frozenset[str] | None
"""Places of outputs in what a model returns; None for all."""


def paired_values(
    base: Sequence[tuple[str, V]], raw: Sequence[tuple[str, W]]
) -> list[tuple[tuple[str, V], tuple[str, W]]]:
    """Outputs of base and raw that correspond, by name where names agree; a value may come under several."""
    pairs, _, _ = pair_slots(_slots(base), _slots(raw))
    ours, theirs = dict(base), dict(raw)
    return [((one.name, ours[one.name]), (other.name, theirs[other.name])) for one, other in pairs]


def _slots(values: Sequence[tuple[str, Value]]) -> list[Slot]:
    numbers = {id(value): place for place, (_, value) in reversed(list(enumerate(values)))}
    return [Slot(name, numbers[id(value)], value) for name, value in values]


def paired_outputs(base: Sequence[Named], raw: Sequence[Named]) -> list[tuple[Named, Named]]:
    """Outputs of base and raw that correspond and hold equally many elements, in whatever layout."""
    ours, theirs = ([(name, HostValue(array)) for name, array in side] for side in (base, raw))
    return [
        ((name, one.numpy()), (own, other.numpy()))
        for (name, one), (own, other) in paired_values(ours, theirs)
        if math.prod(one.shape) == math.prod(other.shape)
    ]


def places_in_common(base: Sequence[Named], raw: Sequence[Named]) -> tuple[Places, Places]:
    """Over which outputs a default loss goes, in base and in raw: those that both models have."""
    pairs = paired_outputs(base, raw)
    if not pairs or len(pairs) == len(base) == len(raw):
        return None, None
    return frozenset(one[0] for one, _ in pairs), frozenset(other[0] for _, other in pairs)
