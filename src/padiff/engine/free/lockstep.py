"""Two backward passes that run side by side, so that neither's gradients are held until the other is through."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Collection
from typing import TypeVar

B = TypeVar("B")
R = TypeVar("R")

AHEAD = 1 << 20
"""How many bytes of gradients base may make before raw's turn comes: changing over takes its time, too."""


class Lockstep:
    """Base's backward in a thread of its own; it runs while raw's waits for a gradient of it, and only then.

    Which of the two runs is handed over, never shared: nothing here happens at the same time.
    """

    def __init__(self) -> None:
        self._base_may_run, self._raw_may_run = threading.Semaphore(0), threading.Semaphore(0)
        self._missing: set[int] = set()
        self._made = 0
        self._alone = False
        """Only one of the two is left: nobody waits any more."""

    def run(self, base: Callable[[], B], raw: Callable[[], R]) -> tuple[B, R]:
        """Both passes; an exception of either comes out when both have ended."""
        made: list[B] = []
        failed: list[BaseException] = []
        context = contextvars.copy_context()

        def run_base() -> None:
            self._base_may_run.acquire()
            try:
                made.append(context.run(base))
            except BaseException as error:
                failed.append(error)
            self._alone = True
            self._raw_may_run.release()

        thread = threading.Thread(target=run_base, name="padiff: backward of base")
        thread.start()
        try:
            found = raw()
        finally:
            self._alone = True
            self._base_may_run.release()
            thread.join()
        if failed:
            raise failed[0]
        return made[0], found

    def wait_for(self, tensors: Collection[int], made: Collection[int]) -> None:
        """In raw's pass: let base run until it has made the gradients of these tensors, or is through."""
        if self._alone or all(map(made.__contains__, tensors)):
            return
        self._missing = {tensor for tensor in tensors if tensor not in made}
        self._made = 0
        self._base_may_run.release()
        self._raw_may_run.acquire()

    def made(self, tensor: int, size: int) -> None:
        """In base's pass: a gradient is there."""
        self._missing.discard(tensor)
        self._made += size
        if not self._missing and self._made >= AHEAD and not self._alone:
            self._raw_may_run.release()
            self._base_may_run.acquire()
