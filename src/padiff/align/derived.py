"""Values made of others: several outputs joined to stand beside a fused one, or a stretch of a fused one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from padiff.records import Array, Value


class Joined:
    """Values one after the other along their last axis, as a whole or head by head."""

    def __init__(self, values: Sequence[Value], heads: int = 0) -> None:
        self._values, self._heads = tuple(values), heads
        self.shape = (*values[0].shape[:-1], sum(value.shape[-1] for value in values))
        self.dtype = values[0].dtype

    @property
    def overwritten(self) -> bool:
        return any(value.overwritten for value in self._values)

    def numpy(self) -> Array:
        arrays = [value.numpy() for value in self._values]
        if self._heads:
            cut = [array.reshape(*array.shape[:-1], self._heads, -1) for array in arrays]
            return np.concatenate(cut, axis=-1).reshape(self.shape)
        return np.concatenate(arrays, axis=-1)

    def release(self) -> None:
        """The values belong to others."""


class Cut:
    """A stretch of a value's last axis, or of what each head has of it."""

    def __init__(self, value: Value, start: int, stop: int, heads: int = 0) -> None:
        self._value, self._start, self._stop, self._heads = value, start, stop, heads
        self.shape = (*value.shape[:-1], stop - start)
        self.dtype = value.dtype

    @property
    def overwritten(self) -> bool:
        return self._value.overwritten

    def numpy(self) -> Array:
        array = self._value.numpy()
        if self._heads:
            array = array.reshape(*array.shape[:-1], self._heads, -1)
            start, stop = self._start // self._heads, self._stop // self._heads
            return array[..., start:stop].reshape(self.shape)
        return array[..., self._start : self._stop]

    def release(self) -> None:
        """The value belongs to another."""
