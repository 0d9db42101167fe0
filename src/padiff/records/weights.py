"""Records of the weight plan: which tensor of base fills which of raw."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from padiff.records.plain import PlainData, record
from padiff.records.traces import Unmatched
from padiff.records.values import Array


@record
class WeightSource(PlainData):
    """A part of one tensor of base: which, how its axes go, and which stretch of one axis."""

    path: str
    permute: tuple[int, ...] | None = None
    axis: int = 0
    """Axis of base's own tensor that ``start`` and ``stop`` cut."""
    start: int | None = None
    stop: int | None = None
    index: int | None = None
    """Which slice of the first axis, taken before anything else: one expert of a stack."""
    interleaved: tuple[int, int, int] | None = None
    """(heads, start, stop): the axis is laid out head by head, each head with all parts; this stretch of each head."""


@record
class WeightEntry(PlainData):
    """Where one tensor of raw comes from: parts of base's tensors, joined along ``axis``."""

    path: str
    role: Literal["parameter", "buffer"]
    sources: tuple[WeightSource, ...]
    shape: tuple[int, ...]
    axis: int = 0
    stack: int = 0
    """Where not 0: the sources come in that many equal groups; each is joined, then all are stacked."""
    heads: int = 0
    """Where not 0: the joined parts are laid out head by head, each head with all parts."""
    evidence: str = ""
    confidence: float = 1.0
    written: bool = True
    """False for what raw computes itself: it is compared with base's, and stays."""
    alternatives: tuple[str, ...] = ()
    """What else it could have been, where the evidence does not settle it."""
    function: Callable[[Mapping[str, Array]], Array] | None = None
    """A function of the user's that makes it from base's arrays."""

    @property
    def as_it_is(self) -> bool:
        """Whether it is one tensor of base, in the same layout."""
        whole = len(self.sources) == 1 and self.sources[0] == WeightSource(self.sources[0].path)
        return whole and not (self.stack or self.heads or self.function)

    def __str__(self) -> str:
        return f"{self.path} <- {' + '.join(source.path for source in self.sources)}"


Question = tuple[str, tuple[str, str]]
"""What a choice is about, and where."""


@dataclass(frozen=True)
class Choice(PlainData):
    """What the evidence leaves open, declared before anything runs: ways to fill some tensors, the first by default."""

    what: str
    options: tuple[tuple[str, tuple[WeightEntry, ...]], ...]
    chosen: int = 0
    """Which option the plan's entries follow."""
    place: tuple[str, str] = ("", "")
    """Modules of base and raw around the first place where it makes a difference."""

    @property
    def asks(self) -> Question:
        """By this a choice is known again in another plan of the same models."""
        return self.what, self.place


@dataclass(frozen=True)
class WeightProblem(PlainData):
    """Why a plan does not stand, at the first place where it fails."""

    base_path: str
    raw_path: str
    base_text: str
    raw_text: str
    message: str
    hint: str
    base_node: int = -1
    raw_node: int = -1


@dataclass(frozen=True)
class WeightPlan(PlainData):
    """All entries that fill raw, what has no partner, and what stands in the way."""

    entries: tuple[WeightEntry, ...]
    special: tuple[tuple[int, int, Callable[[Any, Any], Any]], ...] = ()
    """(base node, raw node, user's function) where the user fills a module."""
    unmatched: tuple[Unmatched, ...] = ()
    problems: tuple[WeightProblem, ...] = field(default=())
    choices: tuple[Choice, ...] = ()
