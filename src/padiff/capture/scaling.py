"""Losses that were scaled for mixed precision: gradients are seen as they would be without."""

from __future__ import annotations

from padiff.capture.held import Held
from padiff.records import Array, Value


class Unscaled:
    """A gradient of a scaled loss, divided by the scale; the framework's own stays scaled, as an optimizer expects."""

    __slots__ = ("_factor", "_value")

    def __init__(self, value: Value, factor: float) -> None:
        self._value, self._factor = value, factor

    @property
    def shape(self) -> tuple[int, ...]:
        return self._value.shape

    @property
    def dtype(self) -> str:
        return self._value.dtype

    @property
    def overwritten(self) -> bool:
        return self._value.overwritten

    def numpy(self) -> Array:
        array = self._value.numpy()
        divided: Array = (array / array.dtype.type(self._factor)).astype(array.dtype)
        return divided

    def secure(self) -> None:
        if isinstance(self._value, Held):
            self._value.secure()

    def detach(self) -> None:
        if isinstance(self._value, Held):
            self._value.detach()

    def release(self) -> None:
        self._value.release()


def unscaled(value: Value, factor: float) -> Value:
    """The value as it would be without a scale."""
    return value if factor == 1.0 else Unscaled(value, factor)
