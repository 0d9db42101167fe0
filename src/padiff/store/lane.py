"""A queue bounded in bytes, and one thread that works it off."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

Work = Callable[[], None]
_WORTH_WAKING = 1 << 20
"""Bytes that are worth waking the other thread for: each time costs more than a small tensor."""
_MANY = 256
"""Pieces that are, however small."""


class Lane:
    """Work is done in order, off the calling thread. What waits never holds more than ``limit`` bytes, or one piece."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[tuple[Work, int]] = deque()
        self._bytes = 0
        self._quiet = 0
        """Bytes handed over since the thread was last woken."""
        self._busy = False
        self._ended = False
        self._failure: BaseException | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="padiff-dump", daemon=True)
        self._thread.start()

    def put(self, work: Work, size: int) -> None:
        """Hand over work that holds ``size`` bytes; waits for room, and raises what earlier work raised."""
        with self._changed:
            while self._failure is None and self._bytes and self._bytes + size > self._limit:
                self._changed.notify_all()
                self._changed.wait()
            self._raise()
            self._waiting.append((work, size))
            self._bytes += size
            self._quiet += size
            if self._quiet >= _WORTH_WAKING or len(self._waiting) >= _MANY:
                self._quiet = 0
                self._changed.notify_all()

    def drain(self) -> None:
        """Wait until everything is done; raises what it raised."""
        with self._changed:
            self._changed.notify_all()
            while self._failure is None and (self._waiting or self._busy):
                self._changed.wait()
            self._raise()

    def end(self) -> None:
        """Drop what waits, and return when the thread has ended."""
        with self._changed:
            self._ended = True
            self._waiting.clear()
            self._changed.notify_all()
        self._thread.join()

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._ended:
            raise RuntimeError("the lane has ended")

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                while not self._waiting and not self._ended:
                    self._changed.wait()
                taken, self._waiting = self._waiting, deque()
                self._busy = True
            try:
                self._work_off(taken)
            except BaseException as error:  # raised where the next piece is handed over
                taken.clear()
                with self._changed:
                    self._failure = error
                    self._waiting.clear()
                    self._busy = False
                    self._changed.notify_all()
                return
            if self._ended:
                return

    def _work_off(self, taken: deque[tuple[Work, int]]) -> None:
        done = 0
        while taken and not self._ended:
            work, size = taken.popleft()
            work()
            del work  # and with it the array
            done += size
            if done >= _WORTH_WAKING or not taken:
                with self._changed:
                    self._bytes -= done
                    self._changed.notify_all()
                done = 0
