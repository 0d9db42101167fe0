"""Tensors of a dump: their facts at once, their elements from the disk when asked for."""

from __future__ import annotations

from typing import Protocol

from padiff.errors import DumpError
from padiff.records import Array
from padiff.store.checks import digest
from padiff.store.dtypes import as_bytes
from padiff.store.statistics import Stats, statistics


class Shelf(Protocol):
    """Where stored tensors are kept, by number."""

    kind: str

    def described(self, number: int) -> tuple[str, tuple[int, ...]]:
        """(dtype, shape)."""
        ...

    def elements(self, number: int) -> Array: ...

    def digest(self, number: int) -> str: ...

    def statistics(self, number: int) -> Stats: ...

    def release(self, number: int) -> None: ...


class StoredValue:
    """A tensor of a dump, read when its elements are asked for, as often as they are."""

    __slots__ = ("_shelf", "number")

    overwritten = False

    def __init__(self, shelf: Shelf, number: int) -> None:
        self._shelf = shelf
        self.number = number
        """Its number in the dump: equal numbers, one tensor."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shelf.described(self.number)[1]

    @property
    def dtype(self) -> str:
        return self._shelf.described(self.number)[0]

    @property
    def kind(self) -> str:
        """What is kept of it: ``full``, ``stats`` or ``hash``."""
        return self._shelf.kind

    @property
    def whole(self) -> bool:
        """Whether the elements are there, and not only what sums them up."""
        return self._shelf.kind == "full"

    def numpy(self) -> Array:
        """The elements, read-only, in memory that the system fills from the file; checked at the first read."""
        return self._shelf.elements(self.number)

    def digest(self) -> str:
        """BLAKE2b of 128 bits over the elements: equal bit by bit, or not."""
        return digest(as_bytes(self.numpy())).hex() if self.whole else self._shelf.digest(self.number)

    def statistics(self) -> Stats:
        """What ``kind="stats"`` keeps; computed where the elements are there."""
        return statistics(self.numpy()) if self.whole else self._shelf.statistics(self.number)

    def release(self) -> None:
        """Give the memory back; the elements can be read again."""
        self._shelf.release(self.number)

    def __repr__(self) -> str:
        return f"StoredValue({self.dtype}{list(self.shape)})"


class LostValue:
    """A tensor that was seen in the run and is not in the dump."""

    __slots__ = ("dtype", "overwritten", "shape")

    kind = "lost"
    whole = False

    def __init__(self, dtype: str, shape: tuple[int, ...], overwritten: bool) -> None:
        self.dtype, self.shape, self.overwritten = dtype, shape, overwritten

    def numpy(self) -> Array:
        raise self._gone()

    def digest(self) -> str:
        raise self._gone()

    def statistics(self) -> Stats:
        raise self._gone()

    def release(self) -> None:
        pass

    def _gone(self) -> DumpError:
        why = "it was overwritten before it could be copied" if self.overwritten else "it was left out"
        return DumpError(f"the dump does not hold the elements of this {self.dtype}{list(self.shape)}: {why}")

    def __repr__(self) -> str:
        return f"LostValue({self.dtype}{list(self.shape)})"
