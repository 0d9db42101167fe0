"""Values made of others: several outputs joined to stand beside a fused one, or a stretch of a fused one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from padiff.records import Array, Group, Value


class Joined:
    """Values one after the other along an axis, as a whole or head by head."""

    def __init__(self, values: Sequence[Value], heads: int = 0, axis: int = -1) -> None:
        self._values, self._heads, self._axis = tuple(values), heads, axis
        self.shape = resized(values[0].shape, axis, sum(value.shape[axis] for value in values))
        self.dtype = values[0].dtype

    @property
    def overwritten(self) -> bool:
        return any(value.overwritten for value in self._values)

    def numpy(self) -> Array:
        arrays = [value.numpy() for value in self._values]
        if not self._heads:
            return np.concatenate(arrays, axis=self._axis)
        last = [np.moveaxis(array, self._axis, -1) for array in arrays]
        cut = [array.reshape(*array.shape[:-1], self._heads, -1) for array in last]
        return np.moveaxis(np.concatenate(cut, axis=-1).reshape(*last[0].shape[:-1], -1), -1, self._axis)

    def release(self) -> None:
        """The values belong to others."""


class Stacked(Joined):
    """Values one after the other along an axis of their own."""

    def __init__(self, values: Sequence[Value], axis: int) -> None:
        self._values, self._heads, self._axis = tuple(values), 0, axis
        first = values[0].shape
        self.shape = (*first[:axis], len(values), *first[axis:])
        self.dtype = values[0].dtype

    def numpy(self) -> Array:
        return np.stack([value.numpy() for value in self._values], self._axis)


class Cut:
    """A stretch of a value along an axis, or of what each head has of it."""

    def __init__(self, value: Value, start: int, stop: int, heads: int = 0, axis: int = -1) -> None:
        self._value, self._start, self._stop, self._heads, self._axis = value, start, stop, heads, axis
        self.shape = resized(value.shape, axis, stop - start)
        self.dtype = value.dtype

    @property
    def overwritten(self) -> bool:
        return self._value.overwritten

    def numpy(self) -> Array:
        array = np.moveaxis(self._value.numpy(), self._axis, -1)
        if self._heads:
            parted = array.reshape(*array.shape[:-1], self._heads, -1)
            start, stop = self._start // self._heads, self._stop // self._heads
            found = parted[..., start:stop].reshape(*array.shape[:-1], -1)
        else:
            found = array[..., self._start : self._stop]
        return np.moveaxis(found, -1, self._axis)

    def release(self) -> None:
        """The value belongs to another."""


def resized(shape: Sequence[int], axis: int, size: int) -> tuple[int, ...]:
    """A shape with another length along one axis."""
    found = list(shape)
    found[axis] = size
    return tuple(found)


def joined(tensors: Sequence[int], heads: int, axis: int, values: Mapping[int, Value]) -> Value | None:
    held = [values[tensor] for tensor in tensors if tensor in values and _has(values[tensor], axis)]
    # A projection that is applied to some places only can't be joined with its siblings, which are applied to all.
    fit = len({resized(value.shape, axis, 0) for value in held}) == 1
    return Joined(held, heads, axis) if fit and len(held) == len(tensors) else None


def cut(tensor: int, start: int, stop: int, heads: int, axis: int, values: Mapping[int, Value]) -> Value | None:
    known = tensor in values and _has(values[tensor], axis)
    return Cut(values[tensor], start, stop, heads, axis) if known else None


def _has(value: Value, axis: int) -> bool:
    return -len(value.shape) <= axis < len(value.shape)


def stretches_given(
    group: Group, base: Sequence[tuple[int, ...]], raw: tuple[int, ...], place: int
) -> tuple[int, ...] | None:
    """How much of what the one of a group is given each of the several is; None where all are given the same."""
    given = [math.prod(shape) for shape in base]
    if math.prod(raw) == given[0]:
        return None
    if len(base) > 1:
        return group.sizes if math.prod(raw) == sum(given) else None
    total = sum(group.sizes)
    if math.prod(raw) * total != given[0] * group.sizes[place] or not -len(base[0]) <= group.axis < len(base[0]):
        return None
    return tuple(base[0][group.axis] * size // total for size in group.sizes)
