"""Draws from something else than base's that no number shows, since raw was given what base drew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from padiff.diagnose.divergence import divergence_of, source_lines
from padiff.records import Call, Cause, Comparison, Divergence, DrawGap, Outcome, StepComparison

NOTE = "raw was given what base drew, so its numbers do not show it"


def with_covered_draws(
    done: StepComparison, found: list[Divergence], gaps: Sequence[DrawGap]
) -> tuple[StepComparison, list[Divergence]]:
    """A step in which nothing else differs parts where raw draws with another chance than base."""
    gap = None if found else next((gap for gap in gaps if gap.covered), None)
    if gap is None:
        return done, found
    base, raw = _call_at(done.base.calls, gap.base_path), _call_at(done.raw.calls, gap.raw_path)
    comparison = Comparison(
        phase="forward",
        step=done.step,
        role="output",
        base_path=gap.base_path,
        raw_path=gap.raw_path,
        base_kind="" if base is None else base.kind,
        raw_kind="" if raw is None else raw.kind,
        name="random draws",
        outcome=Outcome("different", "values", str(gap)),
        base_call=-1 if base is None else base.index,
        raw_call=-1 if raw is None else raw.index,
    )
    called = (() if call is None else call.stack for call in (base, raw))
    stacks = [source_lines(drawn or around) for drawn, around in zip(gap.stacks, called, strict=True)]
    place = divergence_of(comparison, stacks[0], stacks[1], NOTE)
    cause = Cause("dropout" if gap.masked else "random draws", _evidence(gap), 0.95, tested=False)
    return replace(done, comparisons=(*done.comparisons, comparison)), [replace(place, causes=(cause,))]


def _call_at(calls: Sequence[Call], path: str) -> Call | None:
    return next((call for call in calls if call.path == path), None)


def _evidence(gap: DrawGap) -> str:
    base, raw = gap.keeps
    if base is None or raw is None:
        return str(gap)
    return f"base drops {1 - base:.6g} of the values and raw {1 - raw:.6g}"
