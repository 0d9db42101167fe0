"""Values seen in a run, held by reference and copied only when somebody is about to overwrite them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from padiff.frameworks import Adapter
from padiff.frameworks.protocol import Measured
from padiff.records import Array, Moves, Value


class Held:
    """A framework's tensor as it was when seen."""

    __slots__ = ("_adapter", "_copied", "_dtype", "_shape", "_tensor", "number", "tracked", "version")

    number: int
    """Of the tensor in its run; set, as the next is, by whoever sees it there."""
    tracked: bool
    """Whether it takes part in backward."""

    def __init__(self, adapter: Adapter, tensor: Any, version: int | None = None) -> None:
        self._adapter = adapter
        self._tensor = tensor
        self._copied = False
        self.version = adapter.version(tensor) if version is None else version
        """How often the tensor had been written when it was seen."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Asked for when needed, as the dtype is: seeing a tensor must cost little."""
        try:
            return self._shape
        except AttributeError:
            self._shape: tuple[int, ...] = self._adapter.shape(self._tensor)
            return self._shape

    @property
    def dtype(self) -> str:
        try:
            return self._dtype
        except AttributeError:
            self._dtype: str = "released" if self._tensor is None else self._adapter.dtype(self._tensor)
            return self._dtype

    def numpy(self) -> Array:
        if self._tensor is None:
            raise RuntimeError("the elements of this value were released")
        return self._adapter.to_numpy(self._tensor)

    @property
    def elsewhere(self) -> bool:
        """Whether it is measured where it lies, and fetched only if need be."""
        ask: Callable[[Any], bool] | None = getattr(self._adapter, "elsewhere", None)
        return ask is not None and self._tensor is not None and ask(self._tensor)

    def measured_beside(self, other: Held, rtol: float | None) -> Measured | None:
        """Sums over this and another tensor, where their framework has them without fetching the elements."""
        if self._adapter is not other._adapter or self._tensor is None or other._tensor is None:
            return None
        measure: Callable[..., Measured | None] | None = getattr(self._adapter, "measure", None)
        return None if measure is None else measure(self._tensor, other._tensor, rtol)

    def native(self) -> Any:
        """A tensor of the framework's with these elements, for who does not write into it."""
        return self._adapter.detach(self._tensor)

    def moved(self, moves: Callable[[], Moves]) -> Held | None:
        """Moved where it lies (see ``Adapter.multiplied``); None where it must be fetched for that."""
        multiplied = getattr(self._adapter, "multiplied", None)
        found = None if multiplied is None else multiplied(self._tensor, moves)
        return None if found is None else Held(self._adapter, found)

    def first(self, count: int) -> Array:
        """Some elements."""
        return self._adapter.to_numpy(self._adapter.detach(self._tensor).reshape((-1,))[:count])

    def live(self) -> Any | None:
        """The framework's tensor, while no copy of it was taken."""
        return None if self._copied else self._tensor

    def storage(self) -> int | None:
        """Whose memory it reads; None when it has its own or none."""
        return None if self._tensor is None or self._copied else self._adapter.storage(self._tensor)

    def secure(self) -> None:
        """Take a copy: the memory is about to be written."""
        if self._tensor is not None and not self._copied:
            self._tensor = self._adapter.clone(self._tensor)
            self._copied = True

    @property
    def overwritten(self) -> bool:
        """Somebody wrote into the memory and was not seen in time."""
        return self._tensor is not None and not self._copied and self._adapter.version(self._tensor) != self.version

    @property
    def written(self) -> bool:
        """Somebody wrote into the memory, seen in time or not."""
        return self._copied or self.overwritten

    @property
    def wanted(self) -> bool:
        """Somebody else has the tensor, too, and may bring it back."""
        return self._tensor is not None and not self._copied and self._owners() > ALONE

    def _owners(self) -> int:
        return sys.getrefcount(self._tensor)

    def detach(self) -> None:
        """Let go of the autograd graph, keep the elements."""
        if self._tensor is not None and not self._copied:
            self._tensor = self._adapter.detach(self._tensor)

    def release(self) -> None:
        if self._tensor is not None:
            self._shape = self.shape
            self._tensor = None

    def __repr__(self) -> str:
        return f"Held({self.dtype}{list(self.shape)})"


def _counted_when_alone() -> int:
    held = object.__new__(Held)
    held._tensor = object()
    return held._owners()


ALONE = _counted_when_alone()
"""What Python counts as owners of a tensor that only a :class:`Held` has: itself, and whoever counts."""


def measured(base: Value, raw: Value, rtol: float | None = None) -> Measured | None:
    """Sums over two values of one framework that lie beside each other, and not on the host; None for all others."""
    if not (isinstance(base, Held) and isinstance(raw, Held)):
        return None
    return base.measured_beside(raw, rtol)


class HostValue:
    """A value that padiff computed itself."""

    __slots__ = ("_array",)

    def __init__(self, array: Array) -> None:
        self._array = array

    @property
    def shape(self) -> tuple[int, ...]:
        return self._array.shape

    @property
    def dtype(self) -> str:
        return str(self._array.dtype)

    @property
    def overwritten(self) -> bool:
        return False

    def numpy(self) -> Array:
        return self._array

    def release(self) -> None:
        self._array = self._array[:0]
