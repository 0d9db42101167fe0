"""One shard: a safetensors file, its header built and read here."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from padiff.store import strict
from padiff.store.dtypes import CODE_SIZES, PLAIN_NAMES, Kept, kept
from padiff.store.strict import Malformed

LENGTH = struct.Struct("<Q")
LARGEST_HEADER = 100_000_000
"""What the safetensors library accepts."""
_MOST_AXES = 64
_MARK = "padiff-dump"


class Piece(NamedTuple):
    """One tensor of a shard."""

    dtype: str
    """Its name in numpy and ml_dtypes, which may be another than the one safetensors is told."""
    shape: tuple[int, ...]
    start: int
    """Where its bytes begin, counted from the start of the file."""
    size: int


class Header(NamedTuple):
    """What the head of a shard says."""

    pieces: Mapping[str, Piece]
    notes: Mapping[str, str]
    """The metadata of the file, without what describes its tensors."""
    crc: str
    """Of all that follows the head."""


Entry = tuple[str, str, tuple[int, ...], int]
"""Name, dtype, shape and bytes of a tensor that a shard is to hold."""


def in_order(dtypes: Sequence[str]) -> Sequence[int]:
    """In which order tensors are to lie in a file: wide elements first, so that each array is aligned.

    Safetensors allows no gaps.
    """
    order = range(len(dtypes))
    sizes = {dtype: CODE_SIZES[_known(dtype).code] for dtype in set(dtypes)}
    return order if len(sizes) < 2 else sorted(order, key=lambda place: -sizes[dtypes[place]])


def build(tensors: Iterable[Entry], crc: str, notes: Mapping[str, str]) -> bytes:
    """The head of a file in which the tensors follow in this order, and all their bytes have this checksum."""
    texts: dict[tuple[str, tuple[int, ...]], tuple[str, bool]] = {}
    entries, logical, offset = [], [], 0
    for name, dtype, shape, size in tensors:
        known = texts.get((dtype, shape))
        if known is None:
            how = _known(dtype)
            known = texts[dtype, shape] = _described_as(how, shape), dtype != PLAIN_NAMES[how.code]
        text, renamed = known
        end = offset + size
        entries.append(f'"{name}":{{{text},"data_offsets":[{offset},{end}]}}')
        if renamed:
            logical.append(f"{name}={dtype}")
        offset = end
    metadata = {"format": _MARK, **notes, "crc32": crc}
    if logical:
        metadata["logical"] = " ".join(logical)
    text = ",".join([f'{{"__metadata__":{strict.encode(metadata).decode("ascii")}', *entries])
    data = f"{text}}}".encode("ascii")
    data += b" " * (-len(data) % 8)
    return LENGTH.pack(len(data)) + data


def _described_as(how: Kept, shape: tuple[int, ...]) -> str:
    """What safetensors is told of a tensor, but for its place."""
    axes = [*shape, how.parts] if how.parts > 1 else [*shape]
    return f'"dtype":"{how.code}","shape":[{",".join(map(str, axes))}]'


def read(head: bytes, size: int) -> Header:
    """What a head says, after holding it against the size of its file; raises Malformed."""
    document = strict.table(strict.decode(head[LENGTH.size :]), "the header")
    metadata = {
        key: strict.text(value, "metadata")
        for key, value in strict.table(document.pop("__metadata__", None), "__metadata__").items()
    }
    if metadata.pop("format", None) != _MARK:
        raise Malformed("the shard belongs to no dump")
    entries = sorted((_entry(entry), name) for name, entry in document.items())
    crc = strict.hexadecimal(metadata.pop("crc32", None), "crc32", 8)
    logical = _logical(metadata.pop("logical", ""), document.keys())
    position = 0
    pieces = {}
    for (start, end, code, shape), name in entries:
        if start != position:
            raise Malformed(f"tensor {name!r} begins at {start}, expected {position}")
        position = end
        dtype, shape = _described(name, code, shape, logical.get(name))
        pieces[name] = Piece(dtype, shape, len(head) + start, end - start)
    if len(head) + position != size:
        raise Malformed(f"the tensors end at {len(head) + position}, the file at {size}")
    return Header(pieces, metadata, crc)


def _entry(entry: Any) -> tuple[int, int, str, tuple[int, ...]]:
    table = strict.table(entry, "a tensor", frozenset({"dtype", "shape", "data_offsets"}))
    code = strict.text(table["dtype"], "dtype")
    if code not in CODE_SIZES:
        raise Malformed(f"dtype {code[:60]!r} is unknown")
    axes = strict.array(table["shape"], "shape")
    if len(axes) > _MOST_AXES + 1:
        raise Malformed(f"a tensor has {len(axes)} axes")
    shape = tuple(strict.integer(axis, "shape") for axis in axes)
    start, end = (strict.integer(offset, "data_offsets") for offset in strict.array(table["data_offsets"], "span", 2))
    if end - start != math.prod(shape) * CODE_SIZES[code]:
        raise Malformed(f"a tensor of shape {list(shape)} and dtype {code} cannot have {end - start} bytes")
    return start, end, code, shape


def _logical(text: str, names: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in text.split():
        name, _, dtype = word.partition("=")
        if name not in names or name in found:
            raise Malformed(f"the logical dtype {word[:60]!r} belongs to no tensor")
        found[name] = dtype
    return found


def _described(name: str, code: str, shape: tuple[int, ...], dtype: str | None) -> tuple[str, tuple[int, ...]]:
    """The dtype and shape that a tensor had before it was made fit for safetensors."""
    if dtype is None:
        return PLAIN_NAMES[code], shape
    how = kept(dtype)
    if how is None or how.code != code:
        raise Malformed(f"tensor {name!r} is said to be {dtype[:60]!r}, kept as {code}")
    if how.parts == 1:
        return dtype, shape
    if not shape or shape[-1] != how.parts:
        raise Malformed(f"tensor {name!r} is said to be {dtype}, its last axis is not {how.parts}")
    return dtype, shape[:-1]


def _known(dtype: str) -> Kept:
    how = kept(dtype)
    assert how is not None
    return how
