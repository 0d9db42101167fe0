"""The bar that shows how far a run has come."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from padiff.report.progress import Stages


class Bar(Progress):
    """Looks before it is drawn."""

    shown: Stages | None = None

    def get_renderables(self) -> Iterable[RenderableType]:
        if self.shown is not None:
            for task in self.tasks:
                task.description, task.completed, task.total = self.shown.seen()
        yield from super().get_renderables()


def bar_of(shown: Stages, console: Console | None) -> Bar:
    """A bar on stderr, or where it is told, that leaves nothing behind."""
    target = Console(stderr=True, force_jupyter=False) if console is None else console
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    # What the models print goes where it always goes.
    bar = Bar(*columns, console=target, transient=True, redirect_stdout=False, redirect_stderr=False)
    bar.add_task("starting", total=None)
    bar.shown = shown
    return bar
