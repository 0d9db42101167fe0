"""The index of a dump: sealed with a checksum when it is written, and opened only when that holds."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from padiff.errors import DumpError
from padiff.store import strict
from padiff.store.checks import DIGEST_BYTES, digest
from padiff.store.files import INDEX, damaged, explained, is_ours, open_file, read_exactly
from padiff.store.strict import Malformed

FORMAT = "padiff-dump"
SCHEMA = 1
_CHECKSUM = b',"checksum":"'
_END = b'"}\n'
_TAIL = len(_CHECKSUM) + 2 * DIGEST_BYTES + len(_END)
_START = re.compile(rb'\{"format":"' + FORMAT.encode() + rb'","schema":(\d{1,9}),')
_LARGEST = 1 << 30
_MEMBERS = frozenset({"format", "schema", "kind", "facts", "tree", "shards", "steps", "sources", "extra", "checksum"})


def sealed(members: Mapping[str, Any]) -> bytes:
    """An index with its checksum as the last member: over everything before it."""
    body = strict.encode({"format": FORMAT, "schema": SCHEMA, **members})[:-1]
    return body + _CHECKSUM + digest(body).hex().encode("ascii") + _END


def read_index(folder: Path) -> dict[str, Any]:
    """The index of the dump in a folder; raises DumpError, or Malformed for what lies deeper."""
    return _opened(_read_index(folder), folder)


def _read_index(folder: Path) -> bytes:
    with explained(f"cannot read the dump {folder}"):
        if not folder.exists():
            raise DumpError(f"there is no dump at {folder}", _whereabouts(folder))
        if not folder.is_dir():
            raise DumpError(f"{folder} is a file; a dump is a folder that holds {INDEX}")
        names = sorted(entry.name for entry in os.scandir(folder))
    if INDEX not in names:
        if not names:
            raise DumpError(f"{folder} is empty and holds no dump")
        if any(is_ours(name) for name in names):
            raise DumpError(f"the dump {folder} is half-written or torn apart: {INDEX} is missing")
        raise DumpError(f"{folder} is no dump: it holds {names[0]!r}, and no {INDEX}", _deeper(folder, names))
    descriptor = open_file(folder, INDEX)
    try:
        size = os.fstat(descriptor).st_size
        if size > _LARGEST:
            raise damaged(folder, INDEX, f"it has {size} bytes, which no index has")
        return read_exactly(folder, INDEX, descriptor, size)
    finally:
        os.close(descriptor)


def _whereabouts(folder: Path) -> str | None:
    """A kill in the moment of replacing a dump can leave the old one under another name, on some file systems."""
    try:
        names = sorted(entry.name for entry in os.scandir(folder.parent))
    except OSError:
        return None
    old = [name for name in names if name.startswith(f"{folder.name}.old-")]
    return f"the dump that was there before is at {folder.parent / old[0]}" if old else None


def _deeper(folder: Path, names: Sequence[str]) -> str | None:
    steps = [name for name in names if name.startswith(("step_", "rank_"))]
    return f"dumps lie deeper, for example in {folder / steps[0]}" if steps else None


def _opened(data: bytes, folder: Path) -> dict[str, Any]:
    """The index, after its checksum was found right."""
    if not data:
        raise Malformed("it is empty")
    start = _START.match(data)
    if start is None:
        raise DumpError(f"{folder} is no dump of padiff, or its {INDEX} is damaged at the beginning")
    schema = int(start[1])
    if schema > SCHEMA:
        raise DumpError(
            f"the dump {folder} has schema {schema}; this version of padiff reads schema {SCHEMA}",
            "install a newer padiff",
        )
    body, tail = data[:-_TAIL], data[-_TAIL:]
    if not (tail.startswith(_CHECKSUM) and tail.endswith(_END)):
        raise Malformed("it is truncated, or its end is damaged")
    if tail[len(_CHECKSUM) : -len(_END)] != digest(body).hex().encode("ascii"):
        raise Malformed("it does not have the checksum it was written with")
    document = strict.table(strict.decode(data), "the index", _MEMBERS)
    strict.integer(document["schema"], "schema", SCHEMA, SCHEMA)
    return document
