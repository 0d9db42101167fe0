"""A weight that one model keeps whole and the other by size and direction, or behind something that is computed of it:
each is made from the other. Their gradients are of other things, and are not held against each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from padiff.frameworks.layers import Stored
from padiff.records import Array
from padiff.weights.apply import part_of
from padiff.weights.rows import Held, Part, source_of

Make = Callable[[Mapping[str, Array]], Array]

WHOLE, SIZE, DIRECTION, BEHIND = "weight", "weight_g", "weight_v", "weight_orig"
"""Neutral names of the parts; the last is what a parametrisation computes the weight of."""
MADE_OF = {WHOLE: (SIZE, DIRECTION), SIZE: (WHOLE,), DIRECTION: (WHOLE,)}


def stand_in(name: str, parts: Mapping[str, Part]) -> str | None:
    """What fills a part as it is: a weight and what a parametrisation computes it of fill each other, so that what the
    parametrisation changes shows where it is computed."""
    other = {WHOLE: BEHIND, BEHIND: WHOLE}.get(name)
    return other if other in parts else None


def remade(held: Held, raw: Mapping[str, Part], parts: Mapping[str, Part]) -> Make | None:
    """How a tensor of raw is made of base's parts, if it is a whole weight and those are its size and direction, or the
    other way round; ``raw`` are the parts of its own layer."""
    name = held.stored.parts[0] if held.stored is not None and len(held.stored.parts) == 1 else ""
    if held.stored is None or not all(part in parts for part in MADE_OF.get(name, ("",))):
        return None
    if name == WHOLE:
        size, direction = parts[SIZE], parts[DIRECTION]
        return _whole(size, direction, held.stored) if _fits(size, direction) else None
    if SIZE not in raw or DIRECTION not in raw or not _fits(raw[SIZE], raw[DIRECTION]):
        return None
    return _part_of_whole(parts[WHOLE], raw[SIZE], raw[DIRECTION], name)


def _fits(size: Part, direction: Part) -> bool:
    """Not a singular vector, which some call by the name of a direction."""
    return len(direction.held.spec.shape) == len(direction.stored.axes) > 1 and _kept(size, direction) is not None


def _kept(size: Part, direction: Part) -> tuple[int, ...] | None:
    """The shape of a size beside its direction, with the axes of length one over which the norm is taken."""
    shape, whole = size.held.spec.shape, direction.held.spec.shape
    if len(shape) != len(whole):  # one for all, or the axis that is kept, alone
        letters = size.stored.axes.replace("1", "")
        kept = len(shape) == 1 and shape[0] != 1
        shape = tuple(
            n if kept and letter in letters else 1 for n, letter in zip(whole, direction.stored.axes, strict=True)
        )
    right = all(one in (1, n) for one, n in zip(shape, whole, strict=True))
    return shape if right and np.prod(shape) == np.prod(size.held.spec.shape) else None


def _norm(array: Array, shape: tuple[int, ...]) -> Array:
    axes = tuple(axis for axis, n in enumerate(shape) if n == 1)
    norm: Array = np.sqrt(np.square(array.astype(np.float64)).sum(axis=axes, keepdims=True))
    return norm


def _whole(size: Part, direction: Part, target: Stored) -> Make:
    source, _ = source_of(direction, target)
    shape = _kept(size, direction) or ()

    def product_of_size_and_direction(arrays: Mapping[str, Array]) -> Array:
        kept = arrays[direction.held.path]
        made = kept * (arrays[size.held.path].reshape(shape) / _norm(kept, shape))
        return part_of(source, made.astype(kept.dtype))

    return product_of_size_and_direction


def _part_of_whole(whole: Part, size: Part, direction: Part, name: str) -> Make:
    source, _ = source_of(whole, direction.stored)
    shape = _kept(size, direction) or ()

    def direction_of_weight(arrays: Mapping[str, Array]) -> Array:
        return part_of(source, arrays[whole.held.path])

    def size_of_weight(arrays: Mapping[str, Array]) -> Array:
        kept = direction_of_weight(arrays)
        return _norm(kept, shape).astype(kept.dtype).reshape(size.held.spec.shape)

    return direction_of_weight if name == DIRECTION else size_of_weight
