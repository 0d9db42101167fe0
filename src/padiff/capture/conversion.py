"""One model's draw in the terms of the other: the same numbers in another shape, a mask where numbers are wanted."""

from __future__ import annotations

import math

import numpy as np

from padiff.frameworks.draws import Drawn
from padiff.records import Array, Draw, merged_axes

LOCATED = frozenset({"uniform", "gaussian", "exponential"})
_CLOSE = 1e-6


def converted(base: Draw, drawn: Drawn) -> Array | None:
    """What takes the place of ``drawn``, in its shape and conventions; None where the two are not the same thing."""
    shape, dtype = drawn.value.shape, drawn.value.dtype
    if base.kind == drawn.kind:
        value = fitted(base.value, shape)
        if value is None or not _in_range(value, drawn):
            return None
        if base.kind not in LOCATED or (_same(base.loc, drawn.loc) and _same(base.scale, drawn.scale)):
            return value.astype(dtype)
        return _placed((_plain(value) - base.loc) / base.scale, drawn)
    if base.kind == "mask" and drawn.kind == "uniform":
        mask = fitted(base.value, shape)
        return None if mask is None else _placed(_numbers_behind(mask, base.parameters.get("keep")), drawn)
    if base.kind == "uniform" and drawn.kind == "mask" and base.event is not None:
        event = fitted(base.event, shape)
        return None if event is None else told(event, base.chance, drawn.parameters.get("keep"))
    if {base.kind, drawn.kind} == {"uniform", "exponential"}:  # both ways to Gumbel noise
        value = fitted(base.value, shape)
        if value is None:
            return None
        plain = (_plain(value) - base.loc) / base.scale
        tiny = np.finfo(np.float64).tiny
        return _placed(np.exp(-plain) if base.kind == "exponential" else -np.log(np.maximum(plain, tiny)), drawn)
    return None


def event_of(base: Draw) -> tuple[Array, float | None] | None:
    """What base decided by this draw, true or false, and how likely a true was; None where it is no such draw."""
    if base.kind == "mask":
        return base.value, base.parameters.get("keep")
    return None if base.event is None else (base.event, base.chance)


def told(event: Array, chance: float | None, wanted: float | None) -> Array:
    """The event as somebody asks for it who may mean its opposite: to keep, or to drop."""
    if chance is None or wanted is None or abs(chance - wanted) <= abs(1 - chance - wanted) + _CLOSE:
        return event
    return ~event


def fitted(array: Array, shape: tuple[int, ...]) -> Array | None:
    """The same numbers in another shape: axes of one left out or put in, joined, or in another order."""
    if array.shape == shape:
        return array
    if math.prod(shape) != array.size:
        return None
    mine = [size for size in array.shape if size != 1]
    wanted = [size for size in shape if size != 1]
    if mine == wanted or merged_axes(mine, wanted) == len(mine) or merged_axes(wanted, mine) == len(wanted):
        return array.reshape(shape)
    if sorted(mine) != sorted(wanted) or len(set(mine)) < len(mine):
        return None
    order = [mine.index(size) for size in wanted]
    turned: Array = array.reshape(mine).transpose(order).reshape(shape)
    return turned


def _numbers_behind(mask: Array, keep: float | None) -> Array:
    """Uniform numbers that come out as the mask where ``floor(numbers + keep)`` or ``numbers >= 1 - keep`` is taken."""
    drop = 0.5 if keep is None else 1.0 - keep
    return np.where(mask, (1.0 + drop) / 2, drop / 2)


def _placed(plain: Array, drawn: Drawn) -> Array:
    placed: Array = (drawn.loc + drawn.scale * plain).astype(drawn.value.dtype)
    return placed


def _plain(value: Array) -> Array:
    wide: Array = value.astype(np.float64)
    return wide


def _same(one: float | Array, other: float | Array) -> bool:
    return bool(np.all(np.asarray(one) == np.asarray(other)))


def _in_range(value: Array, drawn: Drawn) -> bool:
    """Whole numbers must be among those that could have been drawn."""
    if drawn.kind not in ("integers", "permutation", "choice") or not value.size:
        return True
    low, high = drawn.parameters.get("low", 0.0), drawn.parameters.get("high")
    return bool(value.min() >= low and (high is None or value.max() < high))
