"""What was said about a bug, against what should have been."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.localise.bug import Bug

Place = Literal["exact", "near", "far", "missed", "error"]
CauseFound = Literal["right", "wrong", "none", "undefined"]
PLACES: tuple[Place, ...] = ("exact", "near", "far", "missed", "error")
CAUSES: tuple[CauseFound, ...] = ("right", "wrong", "none", "undefined")
FIRST = 3
"""A cause counts when it is among so many first."""


@dataclass(frozen=True)
class Judgement:
    """One bug, judged."""

    pair: str
    kind: str
    planted: str
    """The module of raw that is wrong."""
    watched: str
    expected: tuple[str, ...]
    phases: tuple[str, ...]
    effect: float
    """How much it changes at its place, relative."""
    place: Place
    cause: CauseFound
    path: str
    phase: str
    causes: tuple[str, ...]
    note: str
    seconds: float
    runs: tuple[float, float] = (0.0, 0.0)
    """How often base and raw ran, in plain runs, for each step."""


def judge_place(bug: Bug, path: str, phase: str) -> Place:
    """Exact: a right path in a right phase. Near: its direct parent or child, or the right path in another phase."""
    if bug.anywhere:
        return "exact" if phase in bug.phases else "far"
    if path in bug.expected:
        return "exact" if phase in bug.phases else "near"
    around = {_above(right) for right in bug.expected if right}
    return "near" if path in around or (path and _above(path) in bug.expected) else "far"


def judge_cause(bug: Bug, names: Sequence[str]) -> CauseFound:
    if not bug.causes:
        return "undefined"
    first = [name.lower() for name in names[:FIRST] if name.lower() != "unknown"]
    if not first:
        return "none"
    return "right" if any(word in name for word in bug.causes for name in first) else "wrong"


def judged(
    pair: str, bug: Bug, effect: float, outcome: Any, seconds: float, runs: tuple[float, float] = (0.0, 0.0)
) -> Judgement:
    """``outcome`` is a Result, or the exception that came in its place."""
    path, phase, note = "", "", ""
    names: tuple[str, ...] = ()
    place: Place
    if isinstance(outcome, Exception):
        place, note = "error", f"{type(outcome).__name__}: {outcome}"
    elif outcome.divergence is None:
        place, note = "missed", "" if outcome.aligned else "not aligned, no divergence"
    else:
        found = outcome.divergence
        path, phase, note = found.raw_path, found.phase, found.note
        names = tuple(cause.name for cause in found.causes)
        place = judge_place(bug, path, phase)
    cause = judge_cause(bug, names)
    return Judgement(
        pair,
        bug.kind,
        bug.place,
        bug.watched or bug.place,
        bug.expected,
        bug.phases,
        effect,
        place,
        cause,
        path,
        phase,
        names[:FIRST],
        note.splitlines()[0] if note else "",
        seconds,
        runs,
    )


def _above(path: str) -> str:
    return path.rpartition(".")[0]
