"""The folder a dump is written into, beside its final place, and how it gets there: all at once or not at all."""

from __future__ import annotations

import ctypes
import hashlib
import os
import secrets
import shutil
import sys
import time
from pathlib import Path
from typing import NoReturn

from padiff.errors import DumpError
from padiff.store.files import explained, is_ours

if sys.platform != "win32":
    import fcntl

_SWAP = 2  # RENAME_EXCHANGE of Linux's renameat2, RENAME_SWAP of macOS' renamex_np
_HERE = -100  # AT_FDCWD
_LONGEST = 200
"""Bytes of a name that something can be added to."""
_YOUNG = 5.0
"""Seconds in which a folder may still be on its way to being locked."""


class PartialFolder:
    """A dump that is being written: ``.<name>.partial-<token>`` beside the place it will have."""

    def __init__(self, final: Path, overwrite: bool) -> None:
        self._overwrite = overwrite
        self._lock: int | None = None
        with explained(f"cannot write a dump to {final}", "name another folder"):
            self._final = _resolved(final)
            _check_movable(self._final)
            check_free(self._final, overwrite)
            self._final.parent.mkdir(parents=True, exist_ok=True)
            _sweep(self._final)
            self.path = self._final.parent / f"{_prefix(self._final)}{secrets.token_hex(6)}"
            self.path.mkdir()
            self._lock = _locked(self.path)

    def commit(self) -> None:
        """Give the folder its final name. What was there before is kept until this moment, and lost in no other."""
        with explained(f"cannot put the dump to {self._final}"):
            _sync_folder(self.path)
            try:
                check_free(self._final, self._overwrite)
                replaced = _move(self.path, self._final)
            except (DumpError, OSError) as error:
                self._set_aside(error)
            _sync_folder(self._final.parent)
        self._unlock()
        if replaced is not None:
            shutil.rmtree(replaced, ignore_errors=True)

    def discard(self) -> None:
        """Leave nothing behind."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._unlock()

    def _set_aside(self, error: DumpError | OSError) -> NoReturn:
        """The place cannot be taken, or was while the dump was written: the dump is whole, and is kept beside it."""
        aside = self._final.parent / f"{_short(self._final)}.new-{secrets.token_hex(3)}"
        self.path.rename(aside)
        self._unlock()
        if isinstance(error, DumpError):
            told = f"{error.message}; it appeared while this dump was written, which is at {aside}"
            raise DumpError(told, error.hint) from None
        raise DumpError(
            f"cannot put the dump to {self._final}: {error.strerror or error}; it is whole, and at {aside}"
        ) from error

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _resolved(final: Path) -> Path:
    try:
        return final.resolve()
    except RuntimeError:  # what Python before 3.13 makes of it
        raise DumpError(
            f"cannot write a dump to {final}: it is a link that leads to itself", "name another folder"
        ) from None


def _check_movable(final: Path) -> None:
    """A dump is renamed to its place when it is whole: there must be no harm in that, and it must be possible."""
    if final.is_mount():
        raise DumpError(f"cannot write a dump to {final}: a file system is mounted there", "name a folder inside it")
    if _is_here(final):
        raise DumpError(f"cannot write a dump to {final}: it is the current directory", "name a folder inside it")


def _is_here(final: Path) -> bool:
    try:
        return final.samefile(os.curdir)
    except OSError:  # one of them is not there
        return False


def check_free(final: Path, overwrite: bool) -> None:
    """Raise unless a dump may take this place: nothing there, an empty folder, or a dump that may be replaced."""
    if not final.exists():
        return
    if not final.is_dir():
        raise DumpError(f"cannot write a dump to {final}: a file is there", "name another folder")
    names = sorted(entry.name for entry in os.scandir(final))
    foreign = [name for name in names if not is_ours(name)]
    if foreign:
        raise DumpError(
            f"cannot write a dump to {final}: the folder holds {foreign[0]!r}, which is no part of a dump",
            "name another folder; padiff replaces dumps, and nothing else",
        )
    if names and not overwrite:
        raise DumpError(f"cannot write a dump to {final}: a dump is there", "overwrite=True replaces it")


def _move(new: Path, final: Path) -> Path | None:
    """Rename ``new`` to ``final``; returns where the dump that was there is now, None where none was."""
    if not final.exists():
        new.rename(final)
        return None
    if not any(final.iterdir()):
        final.rmdir()
        new.rename(final)
        return None
    if _swapped(new, final):
        return new
    # Between these two renames a kill would leave the old dump under its other name, whole.
    old = final.parent / f"{_short(final)}.old-{secrets.token_hex(3)}"
    final.rename(old)
    try:
        new.rename(final)
    except OSError:
        old.rename(final)
        raise
    return old


def _swapped(first: Path, second: Path) -> bool:
    """Exchange two folders in one step, where the system and its file system can."""
    if sys.platform not in ("linux", "darwin"):
        return False
    library = ctypes.CDLL(None, use_errno=True)
    if sys.platform == "linux":
        swap = getattr(library, "renameat2", None)
        arguments: tuple[object, ...] = (_HERE, os.fsencode(first), _HERE, os.fsencode(second), ctypes.c_uint(_SWAP))
    else:
        swap = getattr(library, "renamex_np", None)
        arguments = (os.fsencode(first), os.fsencode(second), ctypes.c_uint(_SWAP))
    return swap is not None and swap(*arguments) == 0


def _prefix(final: Path) -> str:
    return f".{_short(final)}.partial-"


def _short(final: Path) -> str:
    """The name, or the part of it that leaves room for what is added to it; bytes are what file systems count."""
    name = os.fsencode(final.name)
    if len(name) <= _LONGEST:
        return final.name
    digest = hashlib.blake2b(name, digest_size=6).hexdigest()
    return f"{os.fsdecode(name[: _LONGEST - 24])}.{digest}".encode(errors="ignore").decode()


def _locked(folder: Path) -> int | None:
    """A lock that ends with this process, however it ends; None where there is none to have."""
    if sys.platform == "win32":
        return None
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _sweep(final: Path) -> None:
    """Remove what killed writers of the same dump left: nobody holds the lock any more."""
    if sys.platform == "win32":
        return
    for entry in os.scandir(final.parent):
        try:
            if not entry.name.startswith(_prefix(final)) or time.time() - entry.stat().st_mtime < _YOUNG:
                continue
            lock = _locked(Path(entry.path))
            if lock is not None:
                shutil.rmtree(entry.path, ignore_errors=True)
                os.close(lock)
        except OSError:
            continue  # somebody else was quicker, or it is not ours to remove


def _sync_folder(folder: Path) -> None:
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
