"""What is going on, for those who wait: a bar on stderr, after a second, where somebody can see it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

DELAY = 1.0
"""Seconds that a run may take without saying so."""


class Stages:
    """Is told what is done now; says nothing where nobody looks."""

    def __init__(self, bar: Progress | None = None, task: TaskID | None = None) -> None:
        self._bar, self._task = bar, task

    def now(self, what: str) -> None:
        """A new stage begins."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=what)

    def done(self, steps: int, of: int) -> None:
        """So many steps are done; the bar knows its length from now on, where there is more than one."""
        if self._bar is not None and self._task is not None and of > 1:
            self._bar.update(self._task, completed=steps, total=of)


@contextmanager
def stages(wanted: bool | None, console: Console | None = None) -> Iterator[Stages]:
    """A bar while the block runs: always, never, or (None) where stderr is a terminal. It leaves nothing behind."""
    target = Console(stderr=True, force_jupyter=False) if console is None else console
    if wanted is False or (wanted is None and not target.is_terminal):
        yield Stages()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    # What the models print goes where it always goes.
    bar = Progress(*columns, console=target, transient=True, redirect_stdout=False, redirect_stderr=False)
    timer = threading.Timer(DELAY, bar.start)
    timer.daemon = True
    task = bar.add_task("starting", total=None)
    timer.start()
    try:
        yield Stages(bar, task)
    finally:
        timer.cancel()
        timer.join()
        bar.stop()
