"""Tensors gathered into shards of bounded size, whole or as a summary, and written when a shard is full."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from padiff.records import Array
from padiff.store import shards
from padiff.store.checks import digest
from padiff.store.dtypes import as_bytes, name_of
from padiff.store.files import explained, shard_name
from padiff.store.shards import crc_of
from padiff.store.statistics import statistics

MOST_TENSORS = 16384
"""In one shard, so that no header grows long."""
MOST_SUMMARIES = 4096
"""In one shard, so that few wait in memory."""
_BUFFER = 1 << 18
_UNWRITTEN = 3
"""Files that may be on their way to the disk while the next is filled."""


class Files:
    """Writes the files of a dump, one after the other, on a thread of its own; few wait at one time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="padiff-dump-file")
        self._unwritten: deque[Future[None]] = deque()

    def write(self, name: str, pieces: Sequence[Any]) -> int:
        """Have a file written from byte buffers; returns its size. Raises what an earlier one failed with."""
        while len(self._unwritten) >= _UNWRITTEN:
            self._unwritten.popleft().result()
        self._unwritten.append(self._thread.submit(_write, self.folder / name, pieces))
        return sum(len(piece) for piece in pieces)

    def settle(self) -> None:
        """Return when everything written is on the disk."""
        while self._unwritten:
            self._unwritten.popleft().result()

    def end(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._unwritten.clear()


class Pack(Protocol):
    """Takes tensors, numbers them in order, and puts them into shards."""

    listing: list[dict[str, Any]]
    """What the index says about each shard."""

    def add(self, array: Array, key: str | None) -> int:
        """Keep a tensor; returns its number. One whose elements its ``key`` stood for last time is not kept again."""
        ...

    def flush(self) -> None: ...


class TensorPack:
    """Whole tensors: ``kind="full"``."""

    def __init__(self, files: Files, shard_bytes: int) -> None:
        self.listing: list[dict[str, Any]] = []
        self._files = files
        self._shard_bytes = shard_bytes
        self._first = 0
        self._pending: list[tuple[str, Array, str]] = []
        self._bytes = 0
        self._last: dict[str, _Kept] = {}

    def add(self, array: Array, key: str | None) -> int:
        crc = crc_of(array)
        known = None if key is None else self._last.get(key)
        if known is not None and known.crc == crc and known.same(array, self._files):
            return known.number
        full = self._bytes + array.nbytes > self._shard_bytes or len(self._pending) >= MOST_TENSORS
        if full and self._pending:
            self.flush()
        number = self._first + len(self._pending)
        self._pending.append((str(number), array, crc))
        self._bytes += array.nbytes
        if key is not None:
            self._last[key] = _Kept(number, crc, array)
        return number

    def flush(self) -> None:
        if not self._pending:
            return
        name = shard_name(len(self.listing))
        head, order = shards.build(self._pending, {})
        size = self._files.write(name, [head, *(as_bytes(self._pending[place][1]) for place in order)])
        self.listing.append(_listed(name, size, head, self._first, len(self._pending)))
        starts, position = {}, len(head)
        for place in order:
            starts[self._first + place] = position
            position += self._pending[place][1].nbytes
        for kept in self._last.values():
            if kept.number in starts:
                kept.moved_to(self._files.folder / name, starts[kept.number])
        self._first += len(self._pending)
        self._pending, self._bytes = [], 0


class _Kept:
    """Where the tensor lies that a key last stood for: in memory, or in a file."""

    def __init__(self, number: int, crc: str, array: Array) -> None:
        self.number, self.crc = number, crc
        self._described = (array.dtype, array.shape)
        self._array: Array | None = array
        self._place: tuple[Path, int] | None = None

    def moved_to(self, file: Path, start: int) -> None:
        self._array, self._place = None, (file, start)

    def same(self, array: Array, files: Files) -> bool:
        """Equal byte by byte: equal checksums of 32 bits prove nothing."""
        if (array.dtype, array.shape) != self._described:
            return False
        if self._array is not None:
            return bool(np.array_equal(as_bytes(self._array), as_bytes(array)))
        assert self._place is not None
        files.settle()
        path, start = self._place
        mine = as_bytes(array)
        with explained(f"cannot read {path}"), path.open("rb") as file:
            file.seek(start)
            for begin in range(0, mine.size, 1 << 22):
                part = mine[begin : begin + (1 << 22)]
                if not np.array_equal(np.frombuffer(file.read(part.size), np.uint8), part):
                    return False
        return True


class SummaryPack:
    """A digest of each tensor and, for ``kind="stats"``, its statistics."""

    def __init__(self, files: Files, with_statistics: bool) -> None:
        self.listing: list[dict[str, Any]] = []
        self._files = files
        self._with_statistics = with_statistics
        self._first = 0
        self._described: list[str] = []
        self._digests: list[bytes] = []
        self._stats: list[tuple[Array, Array]] = []
        self._last: dict[str, tuple[int, str, bytes]] = {}

    def add(self, array: Array, key: str | None) -> int:
        described = describe(name_of(array.dtype), array.shape)
        stats = statistics(array) if self._with_statistics else None
        mark = digest(as_bytes(array)) if stats is None else bytes.fromhex(stats.digest)
        if key is not None:
            known = self._last.get(key)
            if known is not None and known[1:] == (described, mark):
                return known[0]
        if len(self._described) >= MOST_SUMMARIES:
            self.flush()
        number = self._first + len(self._described)
        self._described.append(described)
        self._digests.append(mark)
        if stats is not None:
            self._stats.append((np.array(stats.row()), np.array(stats.sample)))
        if key is not None:
            self._last[key] = number, described, mark
        return number

    def flush(self) -> None:
        if not self._described:
            return
        tables: dict[str, Array] = {"digest": np.frombuffer(b"".join(self._digests), np.uint8).reshape(-1, 16)}
        if self._with_statistics:
            tables["statistics"] = np.array([row for row, _ in self._stats])
            tables["sample"] = np.concatenate([sample for _, sample in self._stats])
            tables["sample_size"] = np.array([sample.size for _, sample in self._stats], np.uint8)
        name = shard_name(len(self.listing))
        pieces = [(table, array, crc_of(array)) for table, array in tables.items()]
        head, order = shards.build(pieces, {"tensors": " ".join(self._described)})
        size = self._files.write(name, [head, *(as_bytes(pieces[place][1]) for place in order)])
        self.listing.append(_listed(name, size, head, self._first, len(self._described)))
        self._first += len(self._described)
        self._described, self._digests, self._stats = [], [], []


def describe(dtype: str, shape: tuple[int, ...]) -> str:
    """``float32[2,3]``."""
    return f"{dtype}[{','.join(map(str, shape))}]"


def _listed(name: str, size: int, head: bytes, first: int, count: int) -> dict[str, Any]:
    return {"file": name, "size": size, "header": digest(head).hex(), "first": first, "count": count}


def listed_document(name: str, data: bytes, members: Mapping[str, Any]) -> dict[str, Any]:
    """What the index says about a JSON file."""
    return {"file": name, "size": len(data), "digest": digest(data).hex(), **members}


def _write(path: Path, pieces: Sequence[Any]) -> None:
    """Write a new file, until it is on the disk."""
    with explained(f"cannot write {path}", "the dump is given up; what was there before is as it was"):
        file = path.open("xb", buffering=_BUFFER)
        try:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            with contextlib.suppress(OSError):  # what could not be written cannot be flushed either
                file.close()
            raise
        file.close()
