"""What a page can do without, step by step, so that it stays short enough to be mailed and opened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from padiff.records import Comparison
from padiff.report.record import Report

MOST_WEIGHTS = 2000
WHOLE = "the JSON report has everything"


def slimmer(report: Report) -> Iterator[Report]:
    """The report, then with less and less of what agrees, each saying so in a note; what differs stays."""
    yield report
    report = _noted(
        replace(report, comparisons=_without_inputs(report.comparisons), local=_without_inputs(report.local)),
        "inputs that agree are left out of this page",
    )
    yield report
    last = report.last_step[0].step if report.comparisons else 0
    if report.steps != (last,):
        report = _noted(
            replace(
                report,
                comparisons=tuple(one for one in report.comparisons if one.step == last or not one.agrees),
                local=tuple(one for one in report.local if one.step == last),
                calls=tuple(one for one in report.calls if one.step == last),
            ),
            "earlier steps are left out of this page",
        )
        yield report
    few = tuple(one for one in report.weights if one.confidence < 1)[:MOST_WEIGHTS]
    report = _noted(
        replace(report, weights=few or report.weights[:MOST_WEIGHTS], local=_differing(report.local)),
        "what agrees when it is fed base's tensors is left out of this page, and so are all but "
        f"{MOST_WEIGHTS} weights",
    )
    yield report
    yield _noted(
        replace(report, comparisons=_differing(report.comparisons)), "everything that agrees is left out of this page"
    )


def _without_inputs(rows: Sequence[Comparison]) -> tuple[Comparison, ...]:
    """An input that agrees is some other call's output."""
    return tuple(one for one in rows if one.role != "input" or not one.agrees)


def _differing(rows: Sequence[Comparison]) -> tuple[Comparison, ...]:
    return tuple(one for one in rows if not one.agrees)


def _noted(report: Report, note: str) -> Report:
    return replace(report, notes=(*report.notes, f"{note}; {WHOLE}"))
