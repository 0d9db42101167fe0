"""Which of the tensors that two models return belong together."""

from __future__ import annotations

import math
from collections.abc import Sequence

from padiff.align import pair_slots
from padiff.records import Array, Slot

Named = tuple[str, Array]
Places = frozenset[str] | None
"""Places of outputs in what a model returns; None for all."""


class _Seen:
    """An array where a tensor's value is asked for."""

    def __init__(self, array: Array) -> None:
        self._array = array
        self.shape: tuple[int, ...] = array.shape
        self.dtype = str(array.dtype)
        self.overwritten = False

    def numpy(self) -> Array:
        return self._array

    def release(self) -> None:
        """It belongs to another."""


def paired_outputs(base: Sequence[Named], raw: Sequence[Named]) -> list[tuple[Named, Named]]:
    """Outputs of base and raw that correspond and hold equally many elements, in whatever layout."""
    slots = [[Slot(name, place, _Seen(array)) for place, (name, array) in enumerate(side)] for side in (base, raw)]
    pairs, _, _ = pair_slots(*slots)
    return [
        (base[one.tensor], raw[other.tensor])
        for one, other in pairs
        if math.prod(one.value.shape) == math.prod(other.value.shape)
    ]


def places_in_common(base: Sequence[Named], raw: Sequence[Named]) -> tuple[Places, Places]:
    """Over which outputs a default loss goes, in base and in raw: those that both models have."""
    pairs = paired_outputs(base, raw)
    if not pairs or len(pairs) == len(base) == len(raw):
        return None, None
    return frozenset(one[0] for one, _ in pairs), frozenset(other[0] for _, other in pairs)
