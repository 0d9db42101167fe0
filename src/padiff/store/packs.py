"""Tensors gathered into shards of bounded size, whole or as a summary, and written when a shard is full."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from padiff.records import Array
from padiff.store import shards
from padiff.store.checks import crc32, digest
from padiff.store.disk import Files
from padiff.store.dtypes import as_bytes, name_of
from padiff.store.files import explained, shard_name
from padiff.store.slabs import Handle, Slab, Slabs
from padiff.store.statistics import statistics

MOST_TENSORS = 16384
"""In one shard, so that no header grows long."""
MOST_SUMMARIES = 4096
"""In one shard, so that few wait in memory."""


class Pack(Protocol):
    """Takes tensors, numbers them in order, and puts them into shards."""

    listing: list[dict[str, Any]]
    """What the index says about each shard."""

    def add(self, slab: Slab, handles: Sequence[Handle]) -> None:
        """Number tensors of a slab. One whose elements its key stood for last time has the number it had then."""
        ...

    def end(self, slab: Slab) -> None:
        """A slab is full: let it be used again as soon as it may."""
        ...

    def flush(self) -> None: ...


class TensorPack:
    """Whole tensors: ``kind="full"``. A slab is a shard, or several."""

    def __init__(self, files: Files, slabs: Slabs) -> None:
        self.listing: list[dict[str, Any]] = []
        self._files = files
        self._slabs = slabs
        self._first = 0
        self._slab: Slab | None = None
        self._pending: list[Handle] = []
        self._last: dict[str, _Kept] = {}

    def add(self, slab: Slab, handles: Sequence[Handle]) -> None:
        self._slab = slab
        for handle in handles:
            if handle.key is None:
                self._number(handle)
                continue
            crc, known = crc32([slab.bytes(handle)]), self._last.get(handle.key)
            if known is not None and known.same(handle, crc, slab, self._files):
                handle.number = known.number
            else:
                self._number(handle)
                self._last[handle.key] = _Kept(handle, crc, slab)

    def _number(self, handle: Handle) -> None:
        if len(self._pending) >= MOST_TENSORS:
            self.flush()
        handle.number = self._first + len(self._pending)
        self._pending.append(handle)

    def end(self, slab: Slab) -> None:
        self._write(functools.partial(self._slabs.give, slab))

    def flush(self) -> None:
        self._write(None)

    def _write(self, after: Callable[[], None] | None) -> None:
        if not self._pending:
            if after is not None:
                self._files.then(after)
            return
        assert self._slab is not None
        name = shard_name(len(self.listing))
        ordered = [self._pending[place] for place in shards.in_order([one.dtype for one in self._pending])]
        runs = self._slab.runs(ordered)
        entries = [(str(one.number), one.dtype, one.shape, one.size) for one in ordered]
        head = shards.build(entries, crc32(runs), {})
        size = self._files.write(name, [head, *runs], after)
        self.listing.append(_listed(name, size, head, self._first, len(self._pending)))
        position = len(head)
        for handle in ordered:
            kept = None if handle.key is None else self._last[handle.key]
            if kept is not None and kept.number == handle.number:
                kept.moved_to(self._files.folder / name, position)
            position += handle.size
        self._first += len(self._pending)
        self._pending.clear()


class _Kept:
    """Where the tensor lies that a key last stood for: in memory, or in a file."""

    def __init__(self, handle: Handle, crc: str, slab: Slab) -> None:
        self.number = handle.number
        self._described = (crc, handle.dtype, handle.shape)
        self._bytes: memoryview | None = slab.bytes(handle)
        self._place: tuple[Path, int] | None = None

    def moved_to(self, file: Path, start: int) -> None:
        self._bytes, self._place = None, (file, start)

    def same(self, handle: Handle, crc: str, slab: Slab, files: Files) -> bool:
        """Equal byte by byte: equal checksums of 32 bits prove nothing."""
        if (crc, handle.dtype, handle.shape) != self._described:
            return False
        mine = slab.bytes(handle)
        if self._bytes is not None:
            return _equal(self._bytes, mine)
        assert self._place is not None
        files.written()
        path, start = self._place
        with explained(f"cannot read {path}"), path.open("rb") as file:
            file.seek(start)
            for begin in range(0, len(mine), 1 << 22):
                part = mine[begin : begin + (1 << 22)]
                if not _equal(file.read(len(part)), part):
                    return False
        return True


def _equal(one: bytes | memoryview, other: bytes | memoryview) -> bool:
    return bool(np.array_equal(np.frombuffer(one, np.uint8), np.frombuffer(other, np.uint8)))


class SummaryPack:
    """A digest of each tensor and, for ``kind="stats"``, its statistics."""

    def __init__(self, files: Files, slabs: Slabs, with_statistics: bool) -> None:
        self.listing: list[dict[str, Any]] = []
        self._files = files
        self._slabs = slabs
        self._with_statistics = with_statistics
        self._first = 0
        self._described: list[str] = []
        self._digests: list[bytes] = []
        self._stats: list[tuple[Array, Array]] = []
        self._last: dict[str, tuple[int, str, bytes]] = {}

    def add(self, slab: Slab, handles: Sequence[Handle]) -> None:
        for handle in handles:
            handle.number = self._number(slab, handle)

    def end(self, slab: Slab) -> None:
        self._slabs.give(slab)

    def _number(self, slab: Slab, handle: Handle) -> int:
        described = describe(handle.dtype, handle.shape)
        stats = statistics(slab.array(handle)) if self._with_statistics else None
        mark = digest(slab.bytes(handle)) if stats is None else bytes.fromhex(stats.digest)
        if handle.key is not None:
            known = self._last.get(handle.key)
            if known is not None and known[1:] == (described, mark):
                return known[0]
        if len(self._described) >= MOST_SUMMARIES:
            self.flush()
        number = self._first + len(self._described)
        self._described.append(described)
        self._digests.append(mark)
        if stats is not None:
            self._stats.append((np.array(stats.row()), np.array(stats.sample)))
        if handle.key is not None:
            self._last[handle.key] = number, described, mark
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
        entries = [(table, name_of(array.dtype), array.shape, array.nbytes) for table, array in tables.items()]
        ordered = [entries[place] for place in shards.in_order([dtype for _, dtype, _, _ in entries])]
        pieces = [as_bytes(tables[table]) for table, _, _, _ in ordered]
        head = shards.build(ordered, crc32(pieces), {"tensors": " ".join(self._described)})
        size = self._files.write(name, [head, *pieces])
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
