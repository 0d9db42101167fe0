"""Memory that tensors are laid into, one behind the other, and that is used again once they were written.

A copy into memory that is in use already takes a fraction of one into memory that the system has to find first, and
tensors that lie side by side are written together.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from padiff.records import Array
from padiff.store.dtypes import Kept, as_bytes, kept

_SMALL = 1 << 16
"""Bytes that are copied sooner than another thread is let in, which numpy does even for less."""
_MOST_SPARE = 3
"""Slabs that are kept when a writer has ended: all that one with the usual limits takes."""
_PAGE = 4096
"""Bytes that the system finds at once, at the least."""


class Handle:
    """A tensor that was laid down; its number in the dump is known once the writer's thread came to it."""

    __slots__ = ("dtype", "key", "number", "shape", "size", "start")

    def __init__(self, dtype: str, shape: tuple[int, ...], start: int, size: int, key: str | None) -> None:
        self.dtype, self.shape = dtype, shape
        self.start, self.size = start, size
        """Where in its slab the bytes are."""
        self.key = key
        self.number: int | None = None


class Slab:
    """A piece of memory with tensors in it, each aligned for its elements."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0
        self._memory: Array = np.empty(size, np.uint8)
        self._view = self._memory.data

    def find(self) -> None:
        """Have the system find the memory now; Python's lock is not held meanwhile."""
        self._memory[::_PAGE] = 0

    def lay(self, array: Array, how: Kept, key: str | None) -> Handle | None:
        """Copy an array behind the others, in C order and little-endian; None where there is no room."""
        start = self.used + -self.used % array.itemsize
        size = array.nbytes
        end = start + size
        if end > self.size:
            return None
        if size <= _SMALL and array.flags.c_contiguous and array.dtype == how.dtype:
            # the same bytes, in half the time where Python's view will do
            self._view[start:end] = array.data.cast("B") if how.spelled and size else as_bytes(array).data
        else:
            np.ndarray(array.shape, how.dtype, self._memory, start)[...] = array
        self.used = end
        return Handle(how.name, array.shape, start, size, key)

    @property
    def half_full(self) -> bool:
        return 2 * self.used > self.size

    def bytes(self, handle: Handle) -> memoryview:
        return self._view[handle.start : handle.start + handle.size]

    def array(self, handle: Handle) -> Array:
        how = kept(handle.dtype)
        assert how is not None
        array: Array = np.ndarray(handle.shape, how.dtype, self._memory, handle.start)
        return array

    def runs(self, handles: Sequence[Handle]) -> list[memoryview]:
        """The bytes of tensors one after the other; those of neighbours in one piece."""
        spans: list[list[int]] = []
        for handle in handles:
            if spans and spans[-1][1] == handle.start:
                spans[-1][1] += handle.size
            else:
                spans.append([handle.start, handle.start + handle.size])
        return [self._view[start:end] for start, end in spans]


class _Spare:
    """A few slabs of a writer that has ended, for the next one: memory that the system has found already."""

    def __init__(self) -> None:
        self._kept: list[Slab] = []
        self._lock = threading.Lock()

    def take(self, size: int) -> Slab | None:
        with self._lock:
            if not self._kept or self._kept[-1].size != size:
                return None
            return self._kept.pop()

    def keep(self, slabs: Sequence[Slab]) -> None:
        with self._lock:
            self._kept = [*slabs, *self._kept][:_MOST_SPARE]


_spare = _Spare()


class Slabs:
    """The memory of one writer: at most ``limit`` bytes at one time, or one larger tensor alone."""

    def __init__(self, size: int, limit: int) -> None:
        self._size = size
        self._limit = limit
        self._in_use = 0
        self._free: list[Slab] = []
        self._coming = False
        """Whether another one is being made ready."""
        self._stopped = False
        self._changed = threading.Condition()

    def take(self, least: int) -> Slab | None:
        """An empty slab for at least so many bytes; waits until one is free. None after ``stop``."""
        size = max(least, self._size)
        with self._changed:
            while not self._stopped and (self._coming or (self._in_use and self._in_use + size > self._limit)):
                self._changed.wait()
            if self._stopped:
                return None
            self._in_use += size
            if size == self._size and self._free:
                return self._free.pop()
        return _spare.take(size) or Slab(size)

    def look_ahead(self) -> None:
        """Have the next one made ready, where there is none yet, while the last is filled: to find memory takes several
        times as long as to fill it."""
        with self._changed:
            if self._stopped or self._coming or self._free or self._in_use + self._size > self._limit:
                return
            self._coming = True
        threading.Thread(target=self._make_ready, name="padiff-dump-memory", daemon=True).start()

    def _make_ready(self) -> None:
        slab = None
        try:
            slab = _spare.take(self._size)
            if slab is None:
                slab = Slab(self._size)
                slab.find()
        finally:
            with self._changed:
                self._coming = False
                if slab is not None:
                    self._free.append(slab)
                self._changed.notify_all()

    def give(self, slab: Slab) -> None:
        """Nobody needs what is in it any more."""
        with self._changed:
            self._in_use -= slab.size
            slab.used = 0
            if slab.size == self._size:
                self._free.append(slab)
            self._changed.notify_all()

    def stop(self) -> None:
        """Let nobody wait: what was taken will not be given back."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def end(self) -> None:
        """Everything was written, or given up: what is free is the next writer's."""
        with self._changed:
            _spare.keep(self._free)
            self._free = []
