"""Values made of others: several outputs joined to stand beside a fused one, or a stretch of a fused one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from padiff.records import Array, Value


class Joined:
    """Values one after the other along their last axis."""

    def __init__(self, values: Sequence[Value]) -> None:
        self._values = tuple(values)
        self.shape = (*values[0].shape[:-1], sum(value.shape[-1] for value in values))
        self.dtype = values[0].dtype

    @property
    def overwritten(self) -> bool:
        return any(value.overwritten for value in self._values)

    def numpy(self) -> Array:
        return np.concatenate([value.numpy() for value in self._values], axis=-1)

    def release(self) -> None:
        """The values belong to others."""


class Cut:
    """A stretch of a value's last axis."""

    def __init__(self, value: Value, start: int, stop: int) -> None:
        self._value, self._start, self._stop = value, start, stop
        self.shape = (*value.shape[:-1], stop - start)
        self.dtype = value.dtype

    @property
    def overwritten(self) -> bool:
        return self._value.overwritten

    def numpy(self) -> Array:
        return self._value.numpy()[..., self._start : self._stop]

    def release(self) -> None:
        """The value belongs to another."""
