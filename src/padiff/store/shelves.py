"""The shards of a dump, mapped into memory one by one as tensors are asked for."""

from __future__ import annotations

import mmap
import os
import re
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from padiff.errors import DumpError
from padiff.records import Array
from padiff.store import shards, strict
from padiff.store.checks import DIGEST_BYTES, crc32, digest
from padiff.store.dtypes import kept
from padiff.store.files import check_size, damaged, explained, is_shard_name, open_file, read_exactly
from padiff.store.shards import LARGEST_HEADER, LENGTH, Header
from padiff.store.statistics import COLUMNS, LEVELS, SAMPLED, Stats
from padiff.store.strict import Malformed

_MOST_MAPPED = 16
"""Shards open at one time: each takes a file descriptor, and up to its size of memory."""
_WORTH_RELEASING = 1 << 20
_CAN_RELEASE = hasattr(mmap, "MADV_DONTNEED")
_DESCRIBED = re.compile(r"(\w+)\[((?:\d{1,15}(?:,\d{1,15})*)?)\]\Z", re.ASCII)


@dataclass(frozen=True)
class Listed:
    """A shard as the index lists it."""

    file: str
    size: int
    header: str
    first: int
    count: int


def decode_listing(value: Any) -> tuple[Listed, ...]:
    """Shards in order, their tensors numbered without gaps."""
    found, first = [], 0
    for item in strict.array(value, "shards"):
        row = strict.table(item, "a shard", frozenset({"file", "size", "header", "first", "count"}))
        name = strict.text(row["file"], "file")
        if not is_shard_name(name):
            raise strict.wrong(name, "file", "the name of a shard")
        size = strict.integer(row["size"], "size", LENGTH.size)
        count = strict.integer(row["count"], "count", 1, size)
        strict.integer(row["first"], "first", first, first)
        header = strict.hexadecimal(row["header"], "header", 2 * DIGEST_BYTES)
        found.append(Listed(name, size, header, first, count))
        first += count
    if len({shard.file for shard in found}) != len(found):
        raise Malformed("a shard is listed twice")
    return tuple(found)


class Shelves:
    """All tensors of a dump by number. Safe to use from several threads."""

    def __init__(self, folder: Path, kind: str, listing: Sequence[Listed]) -> None:
        self.kind = kind
        self.count = sum(shard.count for shard in listing)
        self._folder = folder
        self._listing = listing
        self._firsts = [shard.first for shard in listing]
        self._checked = bytearray(len(listing))
        self._mapped: OrderedDict[int, _Shard] = OrderedDict()
        self._lock = threading.Lock()

    def described(self, number: int) -> tuple[str, tuple[int, ...]]:
        return self._shard(number).described(number)

    def elements(self, number: int) -> Array:
        if self.kind != "full":
            what = "digests" if self.kind == "hash" else "statistics"
            raise DumpError(
                f"the dump {self._folder} holds {what} of its tensors, not their elements",
                'capture again with kind="full" to have them',
            )
        return self._sound(number).array(str(number))

    def digest(self, number: int) -> str:
        shard = self._sound(number)
        return bytes(shard.table("digest")[number - shard.listed.first]).hex()

    def statistics(self, number: int) -> Stats:
        if self.kind != "stats":
            raise DumpError(
                f"the dump {self._folder} holds digests of its tensors only",
                'capture again with kind="stats" or kind="full"',
            )
        shard = self._sound(number)
        return shard.statistics(number - shard.listed.first)

    def release(self, number: int) -> None:
        with self._lock:
            shard = self._mapped.get(self._place(number))
        if shard is not None and self.kind == "full":
            shard.release(str(number))

    def close(self) -> None:
        """Let go of every file; what is asked for later is opened again."""
        with self._lock:
            self._mapped.clear()

    def check(self) -> None:
        """Read everything, and raise at the first damage."""
        for listed in self._listing:
            shard = self._sound(listed.first)
            if self.kind == "stats":
                for place in range(listed.count):
                    shard.statistics(place)
            elif self.kind == "full":
                for number in range(listed.first, listed.first + listed.count):
                    shard.array(str(number))
                shard.release_all()

    def _place(self, number: int) -> int:
        return bisect_right(self._firsts, number) - 1

    def _sound(self, number: int) -> _Shard:
        """The shard of a tensor, all of it held against its checksum the first time."""
        shard, place = self._shard(number), self._place(number)
        if not self._checked[place]:
            shard.check()
            self._checked[place] = 1
        return shard

    def _shard(self, number: int) -> _Shard:
        place = self._place(number)
        with self._lock:
            shard = self._mapped.get(place)
            if shard is None:
                shard = _Shard(self._folder, self._listing[place], self.kind)
                self._mapped[place] = shard
                if len(self._mapped) > _MOST_MAPPED:
                    self._mapped.popitem(last=False)  # unmapped when the last array of it is gone
            else:
                self._mapped.move_to_end(place)
            return shard


class _Shard:
    """One file, its header read and checked, its data mapped."""

    def __init__(self, folder: Path, listed: Listed, kind: str) -> None:
        self.listed = listed
        self._folder = folder
        self._tables: dict[str, Array] = {}
        self._ends: Any = None
        self._released = 0
        descriptor = open_file(folder, listed.file)
        try:
            check_size(folder, listed.file, descriptor, listed.size)
            head = self._read_head(descriptor)
            self._data = len(head)
            with _guarded(folder, listed.file):
                self.header: Header = shards.read(head, listed.size)
                self._tensors = _check_contents(self.header, listed, kind)
            with explained(f"cannot map {folder / listed.file}"):
                self._map = mmap.mmap(descriptor, listed.size, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)

    def described(self, number: int) -> tuple[str, tuple[int, ...]]:
        return self._tensors[number - self.listed.first]

    def check(self) -> None:
        """Hold everything against its checksum."""
        with memoryview(self._map) as view, view[self._data :] as data:
            found = crc32([data])
        if found != self.header.crc:
            why = "its tensors do not have the checksum they were written with"
            raise damaged(self._folder, self.listed.file, why)

    def array(self, name: str) -> Array:
        """A tensor of the file, sharing its memory."""
        piece = self.header.pieces[name]
        how = kept(piece.dtype)
        assert how is not None
        with _guarded(self._folder, self.listed.file):
            try:
                size, start = (piece.size, piece.start) if piece.size else (0, 0)
                flat = np.frombuffer(self._map, np.uint8, size, start)
                array: Array = flat.view(how.dtype).reshape(piece.shape)
            except ValueError as error:
                raise Malformed(f"tensor {name} of shape {list(piece.shape)}: {error}") from None
        array.flags.writeable = False
        return array

    def table(self, name: str) -> Array:
        """One of the few tensors of a shard of summaries."""
        if name not in self._tables:
            self._tables[name] = self.array(name)
        return self._tables[name]

    def statistics(self, place: int) -> Stats:
        dtype, shape = self._tensors[place]
        row = self.table("statistics")[place]
        ends = self._sample_ends()
        sample = self.table("sample")[ends[place] - self.table("sample_size")[place] : ends[place]]
        if not np.isfinite(row).all() or (row[:4] != np.floor(np.abs(row[:4]))).any():
            raise damaged(
                self._folder, self.listed.file, f"the statistics of tensor {self.listed.first + place} are none"
            )
        numbers = row.tolist()
        counts = dict(zip(COLUMNS[:4], map(int, numbers[:4]), strict=True))
        return Stats(
            dtype=dtype,
            shape=shape,
            **counts,
            **dict(zip(COLUMNS[4:], numbers[4:], strict=False)),
            quantiles=tuple(numbers[len(COLUMNS) :]),
            sample=tuple(sample.tolist()),
            digest=bytes(self.table("digest")[place]).hex(),
        )

    def _sample_ends(self) -> Any:
        if self._ends is None:
            ends = np.cumsum(self.table("sample_size"), dtype=np.int64)
            if ends[-1] != self.table("sample").size or self.table("sample_size").max() > SAMPLED:
                raise damaged(self._folder, self.listed.file, "its samples do not add up")
            self._ends = ends
        return self._ends

    def release(self, name: str) -> None:
        """Tell the system that the pages of a tensor are not needed; whoever still reads them gets them again.

        Small tensors share pages, and asking costs time: what they take together is given back together.
        """
        piece = self.header.pieces[name]
        if piece.size >= _WORTH_RELEASING and _CAN_RELEASE:
            start = piece.start - piece.start % mmap.PAGESIZE
            self._map.madvise(mmap.MADV_DONTNEED, start, piece.start + piece.size - start)
            return
        self._released += piece.size
        if self._released >= _WORTH_RELEASING:
            self.release_all()

    def release_all(self) -> None:
        self._released = 0
        if _CAN_RELEASE:
            self._map.madvise(mmap.MADV_DONTNEED)

    def _read_head(self, descriptor: int) -> bytes:
        name = self.listed.file
        start = read_exactly(self._folder, name, descriptor, LENGTH.size)
        (length,) = LENGTH.unpack(start)
        if length > min(LARGEST_HEADER, self.listed.size - LENGTH.size):
            raise damaged(self._folder, name, f"a header of {length} bytes does not fit into it")
        head = start + read_exactly(self._folder, name, descriptor, length)
        if digest(head).hex() != self.listed.header:
            raise damaged(self._folder, name, "its header does not have the checksum that the index gives")
        return head


@contextmanager
def _guarded(folder: Path, name: str) -> Iterator[None]:
    """What is malformed is said with the name of its file."""
    try:
        yield
    except Malformed as error:
        raise damaged(folder, name, str(error)) from None


def _check_contents(header: Header, listed: Listed, kind: str) -> list[tuple[str, tuple[int, ...]]]:
    """(dtype, shape) of every tensor that a shard stands for, in order."""
    pieces, count = header.pieces, listed.count
    if kind == "full":
        names = [str(number) for number in range(listed.first, listed.first + min(count, len(pieces)))]
        if len(pieces) != count or header.notes or not all(name in pieces for name in names):
            raise Malformed(f"it does not hold the tensors from {listed.first} to {listed.first + count - 1}")
        return [(pieces[name].dtype, pieces[name].shape) for name in names]
    tensors = [_parse(word) for word in header.notes.get("tensors", "").split(" ")]
    tables: dict[str, tuple[str, tuple[int, ...]]] = {"digest": ("uint8", (count, DIGEST_BYTES))}
    if kind == "stats":
        tables["statistics"] = ("float64", (count, len(COLUMNS) + len(LEVELS)))
        tables["sample_size"] = ("uint8", (count,))
        tables["sample"] = ("float64", pieces["sample"].shape if "sample" in pieces else ())
    found = {name: (piece.dtype, piece.shape) for name, piece in pieces.items()}
    if len(tensors) != count or found != tables or header.notes.keys() != {"tensors"}:
        raise Malformed(f"it does not hold the {kind} of {count} tensors")
    return tensors


def _parse(word: str) -> tuple[str, tuple[int, ...]]:
    """``float32[2,3]`` as (dtype, shape)."""
    match = _DESCRIBED.match(word)
    if match is None or kept(match[1]) is None:
        raise Malformed(f"{word[:60]!r} describes no tensor")
    return match[1], tuple(int(axis) for axis in match[2].split(",")) if match[2] else ()
