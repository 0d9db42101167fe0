"""A queue of bounded length, and one thread that works it off."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

Work = Callable[[], None]


class Lane:
    """Work is done in order, off the calling thread; at most ``limit`` pieces wait."""

    def __init__(self, limit: int, failed: Callable[[], None] = lambda: None) -> None:
        self._limit = limit
        self._failed = failed
        """Called on the lane's thread when it ends because work raised: nothing more will be done."""
        self._waiting: deque[Work] = deque()
        self._busy = False
        self._ended = False
        self._failure: BaseException | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="padiff-dump", daemon=True)
        self._thread.start()

    def put(self, work: Work) -> None:
        """Hand work over; waits for room, and raises what earlier work raised."""
        with self._changed:
            while self._failure is None and len(self._waiting) >= self._limit:
                self._changed.wait()
            self.check()
            self._waiting.append(work)
            self._changed.notify_all()

    def check(self) -> None:
        """Raise what work raised."""
        if self._failure is not None:
            raise self._failure
        if self._ended:
            raise RuntimeError("the lane has ended")

    def drain(self) -> None:
        """Wait until everything is done; raises what it raised."""
        with self._changed:
            while self._failure is None and (self._waiting or self._busy):
                self._changed.wait()
            self.check()

    def end(self) -> None:
        """Drop what waits, and return when the thread has ended."""
        with self._changed:
            self._ended = True
            self._waiting.clear()
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                while not self._waiting and not self._ended:
                    self._changed.wait()
                if self._ended:
                    return
                work = self._waiting.popleft()
                self._busy = True
            try:
                work()
            except BaseException as error:  # raised where the next piece is handed over
                with self._changed:
                    self._failure = error
                    self._waiting.clear()
                    self._busy = False
                    self._changed.notify_all()
                self._failed()
                return
            del work  # and with it what it holds
