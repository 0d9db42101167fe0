"""A bug that can be planted, and what should be said about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.localise.stage import Stage

VISIBLE = 1e-3
"""Relative change at its place from which a bug must be seen, whatever its kind."""
FAINT = 3e-6
"""For kinds that are faint by nature, such as another eps: some ten times what float32 rounds."""

Watch = Literal["output", "input", "gradient", "buffer", "nothing"]


@dataclass(frozen=True)
class Bug:
    """One mistake in raw."""

    kind: str
    """What sort of mistake: "weight: one row wrong"."""
    place: str
    """The module of raw that is wrong."""
    expected: tuple[str, ...]
    """Paths in raw that are right answers."""
    plant: Callable[[], AbstractContextManager[Any]]
    watch: Watch = "output"
    """What to look at to see that the bug changes something."""
    watched: str = ""
    """Path of the module to look at; the place, unless told otherwise."""
    phases: tuple[str, ...] = ("forward",)
    causes: tuple[str, ...] = ()
    """Words of which one must stand in the name of a cause; none where no cause is defined."""
    floor: float = VISIBLE
    weights: Literal["copy", "keep"] = "copy"
    options: Callable[[], Mapping[str, Any]] | None = None
    """More for ``padiff.compare``, made anew for each run."""
    anywhere: bool = False
    """Any place will do, the phase is what tells: an optimizer has no place."""
    clean: Callable[[], Mapping[str, Any]] | None = None
    """The same without the mistake, where the mistake is in the options."""
    depth: float = 0.0
    """Where in the model, from 0 to 1."""

    @property
    def group(self) -> str:
        return self.kind.partition(":")[0]


Kind = Callable[[Stage], Iterator[Bug]]
"""All places of a pair where one sort of mistake can be made."""
