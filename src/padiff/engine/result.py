"""What the native door hands out."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from padiff.errors import ArgumentError, NotAvailableError
from padiff.records import (
    Comparison,
    Divergence,
    ModuleTree,
    PlainData,
    StepComparison,
    Tolerance,
    Unmatched,
    WeightPlan,
)
from padiff.report.terminal import summary


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
        return summary(self)

    def __repr__(self) -> str:
        where = "" if self.divergence is None else f", divergence at {self.divergence.raw_path or '(model)'!r}"
        return f"Result(aligned={self.aligned}, comparisons={len(self.comparisons)}{where})"

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "aligned": self.aligned,
            "divergence": None if self.divergence is None else self.divergence.to_dict(),
            "divergences": _dicts(self.divergences),
            "base": {"framework": self.base.framework, "name": self.base.name},
            "raw": {"framework": self.raw.framework, "name": self.raw.name},
            "tolerance": self.tolerance.to_dict(),
            "coverage": dict(self.coverage),
            "notes": list(self.notes),
            "unmatched": _dicts(self.unmatched),
            "comparisons": _dicts(self.comparisons),
        }

    def show(self) -> None:
        """Print the outcome."""
        sys.stdout.write(str(self) + "\n")

    def save(self, path: str | Path) -> None:
        """Write the outcome to a file; the ending says the form."""
        target = Path(path)
        if target.suffix == ".json":
            text = json.dumps(self.to_dict(), indent=1, allow_nan=True)
        elif target.suffix == ".html":
            raise NotAvailableError("the page report is not in this version yet", "save to a .json file instead")
        else:
            raise ArgumentError(f"path: {str(path)!r} ends in {target.suffix!r}, expected .json", "name it report.json")
        partial = target.with_name(target.name + ".partial")
        partial.write_text(text, encoding="utf-8")
        partial.replace(target)


def _dicts(records: Sequence[PlainData]) -> list[dict[str, Any]]:
    return [record.to_dict() for record in records]
