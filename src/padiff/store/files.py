"""Names inside a dump folder, and opening them without ever leaving it."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from padiff.errors import DumpError

INDEX = "index.json"
_SHARD = re.compile(r"tensors-\d{5,9}\.safetensors\Z", re.ASCII)
_STEP = re.compile(r"step-\d{5,9}\.json\Z", re.ASCII)
MADE_ANEW = "run the capture again, or take the dump from where it was copied from"


def shard_name(number: int) -> str:
    return f"tensors-{number:05d}.safetensors"


def step_name(number: int) -> str:
    return f"step-{number:05d}.json"


def is_shard_name(name: str) -> bool:
    return _SHARD.match(name) is not None


def is_step_name(name: str) -> bool:
    return _STEP.match(name) is not None


def is_ours(name: str) -> bool:
    """Whether a file of that name may be part of a dump."""
    return name == INDEX or is_shard_name(name) or is_step_name(name)


@contextmanager
def explained(what: str, hint: str | None = None) -> Iterator[None]:
    """What the system refuses becomes a DumpError that says what was tried."""
    try:
        yield
    except OSError as error:
        raise DumpError(f"{what}: {error.strerror or error}", hint) from error


def damaged(folder: Path, name: str, why: str) -> DumpError:
    return DumpError(f"the dump {folder} is damaged: {name}: {why}", MADE_ANEW)


def open_file(folder: Path, name: str) -> int:
    """A descriptor of a plain file right in the folder; neither links nor devices are followed."""
    flags = os.O_RDONLY
    for extra in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
        flags |= getattr(os, extra, 0)
    try:
        descriptor = os.open(folder / name, flags)
    except OSError as error:
        _cannot_open(folder, name, error)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise damaged(folder, name, "it is no plain file")
    return descriptor


def _cannot_open(folder: Path, name: str, error: OSError) -> NoReturn:
    if isinstance(error, FileNotFoundError):
        raise damaged(folder, name, "the file is missing") from None
    if (folder / name).is_symlink():
        raise damaged(folder, name, "it is a link, and a dump holds no links") from None
    raise DumpError(f"cannot read {folder / name}: {error.strerror or error}") from error


def check_size(folder: Path, name: str, descriptor: int, size: int) -> None:
    found = os.fstat(descriptor).st_size
    if found != size:
        what = "truncated" if found < size else "too long"
        raise damaged(folder, name, f"it is {what}: {found} bytes, where the index says {size}")


def read_exactly(folder: Path, name: str, descriptor: int, size: int) -> bytes:
    """The next ``size`` bytes, which the file was seen to have."""
    pieces, left = [], size
    with explained(f"cannot read {folder / name}"):
        while left:
            piece = os.read(descriptor, min(left, 1 << 24))
            if not piece:
                raise damaged(folder, name, f"it ends {left} bytes early")
            pieces.append(piece)
            left -= len(piece)
    return b"".join(pieces)


def read_file(folder: Path, name: str, size: int) -> bytes:
    """All bytes of a file that must have ``size`` of them."""
    descriptor = open_file(folder, name)
    try:
        check_size(folder, name, descriptor, size)
        return read_exactly(folder, name, descriptor, size)
    finally:
        os.close(descriptor)
