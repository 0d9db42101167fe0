"""Records of comparing: what was allowed, what was found, and how it looks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from padiff.records.plain import PlainData, record
from padiff.records.traces import Call, StepTrace, Unmatched
from padiff.records.values import Phase, Reason, Role, Verdict

SMALLEST = {2.0**-10: 2.0**-24}
"""Of dtypes of few exponents, by their spacing: the smallest number that they hold."""


@record
class Tolerance(PlainData):
    """What deviation is allowed, and by which measure.

    ``mean``: the mean absolute error against ``atol + rtol * mean(abs(base))``.
    ``strict``: every element against ``atol + rtol * abs(base)``.
    ``auto``: the error's norm against what the dtype's rounding explains.
    """

    rtol: float = 1e-7
    atol: float = 0.0
    mode: Literal["mean", "strict", "auto"] = "mean"
    predicted: float | None = None
    """For ``auto``: the root mean square deviation that rounding brings about here, where base's was measured."""
    narrow: float = 0.0
    """For ``auto``: where one of the models computes in a narrower dtype on purpose, the spacing of that; then
    floating dtypes may differ."""
    factor: float = 10.0
    """For ``auto``: how many times the predicted deviation is still rounding."""
    runs: int = 1
    """For ``auto``: how many shaken runs of base the prediction is made from."""
    sums: bool = False
    """Whether the tensor holds long sums (gradients of parameters, a loss, running statistics)."""

    def __str__(self) -> str:
        if self.mode == "auto":
            return "auto"
        return f"{self.mode}, rtol={self.rtol:g}, atol={self.atol:g}"


@record
class Calibration(PlainData):
    """How ``tolerance="auto"`` is calibrated: base runs ``runs`` times more with its last digits shaken, and what moves
    less than ``factor`` times as far as it did there is rounding."""

    runs: int = 1
    factor: float = 10.0


@record
class Numbers(PlainData):
    """How far two tensors of one shape are apart."""

    size: int
    max_abs: float
    mean_abs: float
    base_mean_abs: float
    rmse: float
    base_rms: float
    cosine: float
    mismatched: int | None = None
    """Elements over the bound; None where the quick look already settled the matter."""
    max_rel: float | None = None
    max_ulp: int | None = None
    worst: tuple[int, ...] | None = None
    """Index of the largest difference."""
    base_worst: Any = None
    raw_worst: Any = None


@record
class Outcome(PlainData):
    """What comparing two tensors gave, wherever they came from."""

    verdict: Verdict
    reason: Reason | None
    message: str
    numbers: Numbers | None = None
    allowed: float | None = None
    """The bound the verdict was taken against, in the unit of the mode."""
    predicted: float | None = None
    """The root mean square error that rounding explains, as measured on base; None where that was not done."""
    suggestion: Tolerance | None = None
    """A tolerance that would hold, where the difference looks like rounding."""
    layout: str = ""
    """What was done to bring the two into one shape, where they come in different layouts."""

    @property
    def agrees(self) -> bool:
        return self.verdict != "different"

    @property
    def ratio(self) -> float | None:
        """The error over what was predicted; None where nothing was."""
        if self.predicted is None or self.numbers is None:
            return None
        return self.numbers.rmse / self.predicted if self.predicted > 0 else math.inf if self.numbers.rmse else 0.0


@record
class Mismatch(PlainData):
    """One element that differs."""

    index: tuple[int, ...]
    base: Any
    raw: Any


@record
class Picture(PlainData):
    """How an error lies in its tensor: how large, where, and the first elements that differ. Small, always."""

    size: int
    equal: int
    """Elements without any error."""
    nonfinite: int
    """Elements whose error is no number: NaN or Inf on one side."""
    low: float
    high: float
    """The histogram's ends: decimal logarithms of the absolute error."""
    counts: tuple[int, ...]
    """The histogram: elements in bins of equal width between the two."""
    axes: tuple[int, ...]
    """The axes along which the map is drawn, rows first; the largest error over all others is shown."""
    extent: tuple[int, ...]
    """The lengths of these axes."""
    cells: tuple[tuple[float, ...], ...]
    """The map: the largest absolute error in each cell; inf where it is no number."""
    first: tuple[Mismatch, ...]


@record
class Comparison(PlainData):
    """Numbers and verdict of one pair of tensors, and where they were found."""

    phase: Phase
    step: int
    role: Role
    base_path: str
    raw_path: str
    base_kind: str
    raw_kind: str
    name: str
    """Which tensor of the module: a slot's name, a parameter's name."""
    outcome: Outcome
    base_call: int = -1
    raw_call: int = -1
    tensor: int = -1
    """Number of the tensor in raw's trace, where it is one of a call's."""
    forms: tuple[str, str] = ("", "")
    """Dtype and shape of base's and raw's tensor, where known: ``float32[4, 9]``."""
    picture: Picture | None = None
    sources: tuple[str, ...] = ()
    """For a parameter or buffer: paths of base's tensors that it was held against, where that is not one of its own
    path."""

    @property
    def agrees(self) -> bool:
        return self.outcome.agrees

    def __str__(self) -> str:
        place = self.base_path or "(model)"
        if self.raw_path != self.base_path:
            place += f" vs {self.raw_path or '(model)'}"
        tensor = f" {self.name}" if self.name else ""
        return f"{place} ({self.base_kind} vs {self.raw_kind}) {self.phase} {self.role}{tensor}: {self.outcome.message}"


@dataclass(frozen=True)
class StepComparison(PlainData):
    """Both traces of one step with everything that was compared between them."""

    step: int
    base: StepTrace
    raw: StepTrace
    pairs: tuple[tuple[Call, Call], ...]
    """Calls of base and raw that belong together, in the order in which raw's ended."""
    comparisons: tuple[Comparison, ...]
    unmatched: tuple[Unmatched, ...] = ()
    alike: bool = True
    """Both models call the same leaves under the same modules."""
    doubtful: bool = False
    """Outputs were left out because their modules seem to end elsewhere in base."""
    ops: tuple[Comparison, ...] = ()
    """What ops of modules' own code returned, and its gradients, where ops were watched."""
    op_pairs: tuple[tuple[Call, Call], ...] = ()
    local: tuple[Comparison, ...] = ()
    """What each call adds when it is fed base's tensors, where a second look was taken."""
