"""What the native door hands out."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from padiff.records import (
    Comparison,
    Divergence,
    Interruption,
    ModuleTree,
    PlainData,
    StepComparison,
    Tolerance,
    Unmatched,
    WeightPlan,
)
from padiff.report.frame import to_dataframe
from padiff.report.make import report_of
from padiff.report.record import Report


@dataclass(frozen=True)
class Result(PlainData):
    """The outcome of comparing two models."""

    aligned: bool
    divergences: tuple[Divergence, ...]
    """Every place that goes wrong by itself, in the order of computation."""
    steps: tuple[StepComparison, ...]
    unmatched: tuple[Unmatched, ...]
    base: ModuleTree
    raw: ModuleTree
    tolerance: Tolerance
    plan: WeightPlan | None = None
    notes: tuple[str, ...] = ()
    coverage: dict[str, float] = field(default_factory=dict)
    """Share of raw's calls, outputs and parameters that were compared."""
    replayed: int = 0
    """How many of base's random draws (masks of dropout, noise, samples) raw was given in place of its own."""
    interruption: Interruption | None = None
    """The exception that ended the comparison early: such a result is what ``error.padiff_result`` holds."""

    @property
    def divergence(self) -> Divergence | None:
        """Where it starts; None where nothing does."""
        return self.divergences[0] if self.divergences else None

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """Every pair that was compared, in order."""
        return tuple(comparison for step in self.steps for comparison in step.comparisons)

    def __bool__(self) -> bool:
        return self.aligned

    def __str__(self) -> str:
        from padiff.report.terminal import summary  # renderers are loaded when something is rendered

        return summary(self)

    def __repr__(self) -> str:
        where = "" if self.divergence is None else f", divergence at {self.divergence.raw_path or '(model)'!r}"
        return f"Result(aligned={self.aligned}, comparisons={len(self.comparisons)}{where})"

    def report(self) -> Report:
        """Everything worth telling, as plain data."""
        return report_of(self)

    def to_dict(self) -> dict[str, Any]:
        return self.report().to_dict()

    def show(self) -> None:
        """Print the outcome."""
        from padiff.report.terminal import show

        show(self.report())

    def save(self, path: str | Path) -> None:
        """Write the outcome to a file; the ending says the form: .html, .json, .xml (JUnit), .md or .txt."""
        from padiff.report.saving import form_of, save

        form_of(path)
        save(self.report(), path)

    def to_dataframe(self) -> Any:
        """Every comparison as a row of a pandas DataFrame."""
        return to_dataframe(self.report().comparisons)

    def _repr_html_(self) -> str:
        from padiff.report.html import inline

        return inline(self.report())
