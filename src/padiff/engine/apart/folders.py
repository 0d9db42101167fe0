"""Runs of several processes, or of steps that have a dump each: folder against folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from padiff.compare.arrays import missing
from padiff.diagnose.divergence import divergence_of
from padiff.engine.apart.apart import Apart
from padiff.engine.result import Result
from padiff.errors import DumpError
from padiff.records import Comparison, Divergence
from padiff.report.progress import Stages
from padiff.store import Dump, dumps_below

Key = tuple[int | None, int | None]
"""Step and rank, as far as folders say."""


PHASES = ("forward", "backward", "gradient", "weight", "buffer")
"""In the order of a step."""


def compare_folders(base: str | Path, raw: str | Path, pair: Callable[[Dump, Dump], Apart], shown: Stages) -> Result:
    """Every dump of base against raw's of the same step and rank; the first that diverges is the result.

    Of several ranks it is the one that does so earliest: what one sends to the others makes them differ later."""
    mine, theirs = dumps_below(base), dumps_below(raw)
    if len(mine) == len(theirs) == 1:  # one run of one process, wherever each keeps it
        theirs = dict(zip(mine, theirs.values(), strict=True))
    common = [key for key in mine if key in theirs]
    alone = [(key, "base") for key in mine if key not in theirs] + [(key, "raw") for key in theirs if key not in mine]
    if not common:
        raise DumpError(
            f"{base} and {raw} have no step or rank in common: {_named(next(iter(mine)))} there, "
            f"{_named(next(iter(theirs)))} here"
        )
    results: list[Result] = []
    parted: list[tuple[Key, Result]] = []
    for place, key in enumerate(common):
        if parted and key[0] != parted[0][0][0]:
            break
        with Dump.open(mine[key]) as one, Dump.open(theirs[key]) as other:
            shown.now(f"comparing {_named(key)}" if len(common) > 1 else "comparing")
            found = pair(one, other).run(shown.done if len(common) == 1 else lambda done, of: None)
        shown.done(place + 1, len(common))
        labelled = _labelled(found, key) if len(common) > 1 else found
        results.append(labelled)
        if found.divergences:
            parted.append((key, labelled))
    if parted:
        earliest = min((result for _, result in parted), key=_moment)
        results.remove(earliest)
        results.append(earliest)
    return _with_alone(_joined(results), alone) if alone else _joined(results)


def _moment(result: Result) -> tuple[int, int]:
    """When a run first parts."""
    first = result.divergences[0]
    return first.step, PHASES.index(first.phase)


def _joined(results: list[Result]) -> Result:
    """The last one tells most: it diverges, or all are aligned."""
    last = results[-1]
    notes = dict.fromkeys(note for result in results for note in result.notes)
    return replace(
        last,
        aligned=all(result.aligned for result in results),
        steps=tuple(step for result in results for step in result.steps),
        notes=tuple(notes),
    )


def _labelled(result: Result, key: Key) -> Result:
    where = _named(key)
    divergences = tuple(replace(one, note=f"{where}; {one.note}" if one.note else where) for one in result.divergences)
    return replace(result, divergences=divergences, notes=tuple(f"{where}: {note}" for note in result.notes))


def _with_alone(result: Result, alone: list[tuple[Key, str]]) -> Result:
    notes = [f"only {side} has {_named(key)}" for key, side in alone]
    found: tuple[Divergence, ...] = result.divergences
    if not found:
        key, side = alone[0]
        outcome = missing(f"{_named(key)} is on {side}'s side only")
        kinds = result.base.nodes[0].kind, result.raw.nodes[0].kind
        wrong = Comparison("forward", key[0] or 0, "output", "", "", *kinds, "", outcome)
        found = (divergence_of(wrong, (), (), ""),)
    return replace(result, aligned=False, divergences=found, notes=(*result.notes, *notes))


def _named(key: Key) -> str:
    step, rank = key
    parts = [f"step {step}"] * (step is not None) + [f"rank {rank}"] * (rank is not None)
    return ", ".join(parts) or "one run"
