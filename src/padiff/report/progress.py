"""What is going on, for those who wait: a bar on stderr, after a second, where somebody can see it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

DELAY = 1.0
"""Seconds that a run may take without saying so."""


class Stages:
    """Is told what is done now; says nothing where nobody looks.

    What runs is not told of each call: whoever draws asks how far it has come, a few times a second.
    """

    def __init__(self) -> None:
        self._what = "starting"
        self._step, self._steps = 0, 1
        self._look: Callable[[], tuple[str, int, int] | None] = lambda: None

    def now(self, what: str) -> None:
        """A new stage begins."""
        self._what = what

    def done(self, steps: int, of: int) -> None:
        """So many steps are done."""
        self._step, self._steps = steps, of

    def follow(self, look: Callable[[], tuple[str, int, int] | None]) -> None:
        """From now on ``look`` says who runs, how many of its calls have ended, and of about how many."""
        self._look = look

    def seen(self) -> tuple[str, int, int | None]:
        """What to write, and how far the bar goes; of None where nobody knows."""
        parts = [self._what]
        if self._steps > 1:
            parts.append(f"step {min(self._step + 1, self._steps)} of {self._steps}")
        found = self._look()
        if found is None:
            return ", ".join(parts), 0, None
        side, calls, of = found
        parts.append(f"{side}: call {calls:,} of {of:,}")
        return ", ".join(parts), calls, of


@contextmanager
def stages(wanted: bool | None, console: Console | None = None) -> Iterator[Stages]:
    """A bar while the block runs: always, never, or (None) where stderr is a terminal. It leaves nothing behind."""
    shown = Stages()
    if wanted is False or (wanted is None and console is None and not _seen_by_somebody()):
        yield shown
        return
    from padiff.report.bar import bar_of

    bar = bar_of(shown, console)
    if wanted is None and not bar.console.is_terminal:
        yield shown
        return
    timer = threading.Timer(DELAY, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield shown
    finally:
        timer.cancel()
        timer.join()
        bar.stop()


def _seen_by_somebody() -> bool:
    """Whether stderr may be a terminal; the bar, which knows more, is not loaded for nothing."""
    forced = any(os.environ.get(name) for name in ("FORCE_COLOR", "TTY_COMPATIBLE"))
    return forced or bool(getattr(sys.stderr, "isatty", bool)())
