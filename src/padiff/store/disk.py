"""Writes the files of a dump: one thread hands them to the system, another waits until they are on the disk."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from padiff.store.files import explained

_BUFFER = 1 << 18
"""Gathers small pieces; larger ones go past it."""
_AT_ONCE = 1 << 20
"""Bytes written at once. For more the system looks for as much memory in one piece, and may have to make room for it
first, which takes many times as long as the writing."""
_UNWRITTEN = 3
"""Files that may wait to be written while the next is filled."""
_UNSYNCED = 4
"""Files that may be on their way to the disk while the next is written."""


class Files:
    """Writes files one after the other, off the calling thread; few wait at one time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="padiff-dump-file")
        self._syncer = ThreadPoolExecutor(1, thread_name_prefix="padiff-dump-sync")
        self._unwritten: deque[Future[None]] = deque()
        self._unsynced: deque[Future[None]] = deque()
        """Touched by the writing thread only."""

    def write(self, name: str, pieces: Sequence[Any], after: Callable[[], None] | None = None) -> int:
        """Have a file written from byte buffers; returns its size. Raises what an earlier one failed with.

        ``after`` is called when the pieces are not needed any more, also where they could not be written.
        """
        self._submit(lambda: self._write(self.folder / name, pieces, after))
        return sum(len(piece) for piece in pieces)

    def then(self, after: Callable[[], None]) -> None:
        """Have something done once everything so far was written."""
        self._submit(after)

    def written(self) -> None:
        """Return when everything can be read back."""
        while self._unwritten:
            self._unwritten.popleft().result()

    def settle(self) -> None:
        """Return when everything is on the disk."""
        self._submit(self._sync_all)
        self.written()

    def end(self) -> None:
        self._writer.shutdown(wait=True, cancel_futures=True)
        self._syncer.shutdown(wait=True)
        self._unwritten.clear()
        self._unsynced.clear()

    def _submit(self, work: Callable[[], None]) -> None:
        while self._unwritten and (len(self._unwritten) >= _UNWRITTEN or self._unwritten[0].done()):
            self._unwritten.popleft().result()
        self._unwritten.append(self._writer.submit(work))

    def _write(self, path: Path, pieces: Sequence[Any], after: Callable[[], None] | None) -> None:
        try:
            while len(self._unsynced) >= _UNSYNCED:
                self._unsynced.popleft().result()
            file = _written(path, pieces)
        finally:
            if after is not None:
                after()
        self._unsynced.append(self._syncer.submit(_sync, path, file))

    def _sync_all(self) -> None:
        while self._unsynced:
            self._unsynced.popleft().result()


def _failing(path: Path) -> contextlib.AbstractContextManager[None]:
    return explained(f"cannot write {path}", "the dump is given up; what was there before is as it was")


def _written(path: Path, pieces: Sequence[Any]) -> IO[bytes]:
    """A new file, in the hands of the system."""
    with _failing(path):
        file = path.open("xb", buffering=_BUFFER)
        try:
            for piece in pieces:
                for start in range(0, len(piece), _AT_ONCE):
                    file.write(piece[start : start + _AT_ONCE])
            file.flush()
        except BaseException:
            with contextlib.suppress(OSError):  # what could not be written cannot be flushed either
                file.close()
            raise
        return file


def _sync(path: Path, file: IO[bytes]) -> None:
    """Until it is on the disk."""
    with _failing(path), file:
        os.fsync(file.fileno())
