"""The folder a dump is written into, beside its final place, and how it gets there: all at once or not at all."""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import sys
import time
from pathlib import Path

from padiff.errors import DumpError
from padiff.store.files import explained, is_ours

if sys.platform != "win32":
    import fcntl

_SWAP = 2  # RENAME_EXCHANGE of Linux's renameat2, RENAME_SWAP of macOS' renamex_np
_HERE = -100  # AT_FDCWD
_YOUNG = 5.0
"""Seconds in which a folder may still be on its way to being locked."""


class PartialFolder:
    """A dump that is being written: ``.<name>.partial-<token>`` beside the place it will have."""

    def __init__(self, final: Path, overwrite: bool) -> None:
        self._overwrite = overwrite
        self._lock: int | None = None
        with explained(f"cannot write a dump to {final}"):
            self._final = final.resolve()
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
            except DumpError as error:
                self._set_aside(error)
            replaced = _move(self.path, self._final)
            _sync_folder(self._final.parent)
        self._unlock()
        if replaced is not None:
            shutil.rmtree(replaced, ignore_errors=True)

    def discard(self) -> None:
        """Leave nothing behind."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._unlock()

    def _set_aside(self, error: DumpError) -> None:
        """Something took the place while the dump was written: the dump is whole, and is kept beside it."""
        aside = self._final.parent / f"{self._final.name}.new-{secrets.token_hex(3)}"
        self.path.rename(aside)
        self._unlock()
        raise DumpError(f"{error.message}; it appeared while this dump was written, which is at {aside}", error.hint)

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


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
    old = final.parent / f"{final.name}.old-{secrets.token_hex(3)}"
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
    return f".{final.name}.partial-"


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
