"""The report: the whole outcome as plain data, with nothing of a model or a framework in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from padiff.records import Comparison, Divergence, Interruption, PlainData, SourceLine, Tolerance, Unmatched

SCHEMA = 1
"""Raised whenever an older reader would misunderstand what is written."""


@dataclass(frozen=True, slots=True)
class Module(PlainData):
    """One module of a model."""

    path: str
    kind: str
    text: str = ""
    """How the framework prints it."""
    parent: int = -1
    """Place of the module around it in the list; -1 for the model."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What it was built with, under the names all frameworks share."""
    tensors: Mapping[str, str] = field(default_factory=dict)
    """Its own parameters and buffers: name to dtype and shape."""


@dataclass(frozen=True)
class Side(PlainData):
    """One of the two models."""

    name: str
    framework: str
    version: str = ""
    """Of the framework; empty where not known."""
    modules: tuple[Module, ...] = ()
    """In the order of definition; the model is the first."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Where and how it ran, as its framework says it: device, threads, precision."""


@dataclass(frozen=True, slots=True)
class CallPair(PlainData):
    """Two calls that belong together, in the order in which raw's ended."""

    step: int
    base_call: int
    raw_call: int
    parent: int
    """``raw_call`` of the nearest pair around it; -1 for the model's own."""
    base_path: str
    raw_path: str
    base_kind: str
    raw_kind: str
    occurrence: int = 0
    """How many times raw's module had been called before, in this step."""
    base_stack: tuple[int, ...] = ()
    raw_stack: tuple[int, ...] = ()
    """Places in ``frames``, outermost first."""
    begun: int = -1
    """For an op of a module's own code: how many calls of raw had begun before it."""


@dataclass(frozen=True, slots=True)
class Weight(PlainData):
    """Where one tensor of raw comes from."""

    path: str
    role: Literal["parameter", "buffer"]
    shape: tuple[int, ...]
    sources: str
    """The parts of base's tensors, in words."""
    evidence: str = ""
    confidence: float = 1.0
    written: bool = True
    alternatives: tuple[str, ...] = ()


@dataclass(frozen=True)
class Environment(PlainData):
    """Where it ran."""

    padiff: str = ""
    python: str = ""
    numpy: str = ""
    platform: str = ""


@dataclass(frozen=True)
class Report(PlainData):
    """One comparison of two models, told in full."""

    verdict: Literal["aligned", "diverged", "unsure"]
    base: Side
    raw: Side
    tolerance: Tolerance
    coverage: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    divergences: tuple[Divergence, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    """Every pair of tensors, as raw ran by itself."""
    local: tuple[Comparison, ...] = ()
    """What each call adds when it is fed base's tensors, where a second look was taken."""
    calls: tuple[CallPair, ...] = ()
    unmatched: tuple[Unmatched, ...] = ()
    weights: tuple[Weight, ...] = ()
    frames: tuple[SourceLine, ...] = ()
    """The user's lines that calls point at."""
    code: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """File to line number to text: these lines and two around each."""
    environment: Environment = field(default_factory=Environment)
    interruption: Interruption | None = None
    """The exception that ended the comparison early, where one did."""
    created: str = ""
    """UTC, ISO 8601."""

    @property
    def aligned(self) -> bool:
        return self.verdict == "aligned"

    @property
    def divergence(self) -> Divergence | None:
        """Where it starts; None where nothing does."""
        return self.divergences[0] if self.divergences else None

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps that were compared."""
        return tuple(dict.fromkeys(one.step for one in self.comparisons))

    @property
    def last_step(self) -> tuple[Comparison, ...]:
        """What was compared in the step after which nothing more ran."""
        return tuple(one for one in self.comparisons if one.step == self.comparisons[-1].step)

    def to_dict(self) -> dict[str, Any]:
        plain = {name: value for name, value in PlainData.to_dict(self).items() if name != "verdict"}
        first = plain["divergences"][0] if self.divergences else None
        head = {"format": "padiff-report", "schema": SCHEMA, "verdict": self.verdict, "aligned": self.aligned}
        return {**head, "divergence": first, **plain}
