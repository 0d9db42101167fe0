"""Records of blame: faults, their explanations, and the divergence shown to the user."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from padiff.records.comparisons import Comparison
from padiff.records.plain import PlainData
from padiff.records.traces import Call, SourceLine
from padiff.records.values import Array, Phase, Role, Side


@dataclass(frozen=True)
class Fault:
    """A call that does something else than base's when it is given the same, and what tells so."""

    phase: Phase
    base: Call
    raw: Call
    comparison: Comparison
    between: bool = False
    """The code of the module itself is at fault, between two of its children."""
    before: Call | None = None
    after: Call | None = None
    """The children of raw around it, where known."""
    expected: Array | None = None
    found: Array | None = None
    """Base's tensor as raw arranges it, and raw's."""
    side: Side = "raw"
    """Which model stops following gradients, where that is what is wrong."""

    @property
    def of_loss(self) -> bool:
        """Backward: what arrives at the model's own output differs, and only the loss sends anything there."""
        own = self.after is not None and self.after.index == self.raw.index
        return self.phase == "backward" and self.between and own and self.raw.parent < 0


@dataclass(frozen=True)
class Cause(PlainData):
    """A named explanation with its evidence."""

    name: str
    evidence: str
    confidence: float = 1.0
    """How sure it is, from 0 to 1."""
    tested: bool = True
    """The comparison was tried again under this hypothesis, and held. False: only a pattern that fits."""

    def __str__(self) -> str:
        return f"{self.name}: {self.evidence}"


@dataclass(frozen=True)
class OpPair(PlainData):
    """The op of each side with which a module's own code starts to go wrong; empty where one side has none."""

    base: str
    """The name people know it by: ``torch.nn.functional.softmax``."""
    raw: str
    base_line: SourceLine | None = None
    """The user's line that calls it; of a side that has none, the line before which it is missing."""
    raw_line: SourceLine | None = None
    base_part: str = ""
    """Which step it is, of an op that does at once what the other side does step by step: the scale of an attention."""
    raw_part: str = ""

    @property
    def what(self) -> str:
        """What it is: an op, or a module that only one side calls."""
        return "op" if "." in (self.base or self.raw) else "module"

    def __str__(self) -> str:
        base = f"{self.base} (its {self.base_part})" if self.base_part else self.base
        raw = f"{self.raw} (its {self.raw_part})" if self.raw_part else self.raw
        if not self.raw:
            return f"{base}, which raw does not do"
        if not self.base:
            return f"{raw}, which base does not do"
        return base if base == raw else f"{base} vs {raw}"


@dataclass(frozen=True)
class Interruption(PlainData):
    """An exception of a model's own code that ended the comparison early, and what had been compared by then."""

    side: Literal["base", "raw"]
    """Whose exception it is."""
    where: Literal["forward", "loss", "backward", "optimizer"]
    step: int
    error: str
    """Its type and message."""
    path: str | None = None
    """The innermost module it left; None where no module was running."""
    agreed: int = 0
    """Calls that were compared before and agree."""
    differed: int = 0
    """Those that don't."""
    first: str = ""
    """Where it started to differ, where something did: that may be why."""
    other: str = ""
    """What the other model raised when it ran, where it did, too."""

    def __str__(self) -> str:
        place = self.where if self.path is None else f"{self.path or 'the model itself'}, {self.where}"
        text = f"{self.side} raised {self.error} (in {place} of step {self.step})"
        if self.first:
            calls = f"{self.differed} of {self.agreed + self.differed} calls"
            text = f"raw differs from base from {self.first} on ({calls}), which may be why {text}"
        elif self.agreed:
            before = (
                "1 call compared before agrees" if self.agreed == 1 else f"{self.agreed} calls compared before agree"
            )
            text = f"{text}; the {before}"
        else:
            text = f"{text}; no call had been compared before"
        both = "base" if self.side == "raw" else "raw"
        return f"{text}; {both} raised, too: {self.other}" if self.other else text


@dataclass(frozen=True)
class Divergence(PlainData):
    """The first place whose inputs agree and whose outputs don't."""

    base_path: str
    raw_path: str
    base_kind: str
    raw_kind: str
    phase: Phase
    step: int
    role: Role
    comparison: Comparison
    source: tuple[tuple[SourceLine, ...], tuple[SourceLine, ...]] = ((), ())
    """The user's lines on each side, where known."""
    causes: tuple[Cause, ...] = ()
    settings: tuple[tuple[str, Any, Any], ...] = ()
    """What the two modules were built with and differs: name, base's, raw's."""
    note: str = ""
    base_call: int = -1
    raw_call: int = -1
    op: OpPair | None = None
    """The op with which it starts, where the module's own code is to blame and was looked into; the source lines are
    the op's then."""

    def __str__(self) -> str:
        place = self.base_path or "the model itself"
        if self.raw_path != self.base_path:
            place += f" vs {self.raw_path or 'the model itself'}"
        text = (
            f"{place} ({self.base_kind} vs {self.raw_kind}) differs in {self.phase} at step {self.step}: "
            f"{self.comparison.outcome.message}"
        )
        why = [f"cause: {cause}" for cause in self.causes[:1]]
        lines = [text, *([self.note] if self.note else []), *self._op_lines(), *why]
        return "\n".join(lines)

    def _op_lines(self) -> list[str]:
        if self.op is None:
            return []
        sides = (("base", self.op.base_line), ("raw", self.op.raw_line))
        where = [f"  {side} {line.file}:{line.line}  {line.text}" for side, line in sides if line is not None]
        return [f"it starts with the {self.op.what} {self.op}", *where]
