"""The frozen records handed from one stage to the next. They know nobody, and hold no framework."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Phase = Literal["forward", "backward", "gradient", "weight", "buffer"]
Verdict = Literal["equal", "rounding", "precision", "different"]
Reason = Literal["structure", "shape", "dtype", "nonfinite", "values"]
Role = Literal["output", "input", "loss", "parameter", "buffer"]


class Value(Protocol):
    """A tensor that lives somewhere: its facts now, its elements on demand."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> str: ...

    @property
    def overwritten(self) -> bool:
        """The elements are no longer those that were seen."""
        ...

    def numpy(self) -> Array:
        """The elements on the host, sharing memory where the framework allows."""
        ...

    def release(self) -> None:
        """Forget the elements; shape and dtype stay."""
        ...


class PlainData:
    """Gives a record ``to_dict``: the record as dicts, lists, strings and numbers."""

    def to_dict(self) -> dict[str, Any]:
        return {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}  # type: ignore[arg-type]


def _plain(value: Any) -> Any:
    if isinstance(value, PlainData):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


# ------------------------------------------------------------------ the model at rest


@dataclass(frozen=True, slots=True)
class TensorSpec(PlainData):
    """A parameter or buffer as its owner names it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    identity: int
    """Two specs with one identity are one tensor: tied weights."""
    computed: bool = False
    """A buffer that its module makes itself (a mask, a table of angles): compared, never written."""


@dataclass(frozen=True, slots=True)
class ModuleNode(PlainData):
    """One module of a model, under one of its paths."""

    index: int
    path: str
    kind: str
    """The class name."""
    layer: str | None
    """The framework-neutral name of a known layer (``linear``, ``conv2d``), else None."""
    parent: int
    """Index of the parent node; -1 for the model itself."""
    children: tuple[int, ...]
    parameters: tuple[TensorSpec, ...]
    buffers: tuple[TensorSpec, ...]
    identity: int
    """Two nodes with one identity are one module under two paths."""
    text: str | Callable[[], str]
    """How the framework prints it, in one line, or what says so when somebody asks."""
    atomic: bool = False
    """A layer that is matched as one thing although it has children (attention, LSTM)."""

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def line(self) -> str:
        return self.text if isinstance(self.text, str) else self.text()


@dataclass(frozen=True)
class ModuleTree(PlainData):
    """All modules of a model in definition order; node 0 is the model."""

    framework: str
    name: str
    nodes: tuple[ModuleNode, ...]

    def by_path(self) -> dict[str, ModuleNode]:
        return {node.path: node for node in self.nodes}

    def subtree(self, index: int) -> list[int]:
        """The node and everything below it, in definition order."""
        found, pending = [], [index]
        while pending:
            current = pending.pop()
            found.append(current)
            pending.extend(reversed(self.nodes[current].children))
        return found


@dataclass(frozen=True)
class Rules(PlainData):
    """What the user says about matching, as paths."""

    pairs: tuple[tuple[str, str], ...] = ()
    """(base path, raw path) of modules that belong together; what is below them is left alone."""
    base_skip: frozenset[str] = frozenset()
    raw_skip: frozenset[str] = frozenset()
    """Paths of modules that are neither matched nor compared."""
    base_only: frozenset[str] | None = None
    raw_only: frozenset[str] | None = None
    """Where given: paths of the only modules that are matched and compared."""
    alike: frozenset[tuple[str, str]] = frozenset()
    """Classes of base and raw whose instances belong together, in order."""
    skip_parameterless: bool = False
    """Leave out modules that have no parameter, neither themselves nor below."""


@dataclass(frozen=True, slots=True)
class Group(PlainData):
    """Modules of which several on one side do what one does on the other: query, key, value and a fused one."""

    base: tuple[int, ...]
    raw: tuple[int, ...]
    sizes: tuple[int, ...]
    """How much of the fused output each of the several makes up, in order."""
    heads: int = 0
    """Where not 0: the fused output is laid out head by head, each head with all parts."""


@dataclass(frozen=True)
class Usage(PlainData):
    """When a running model first used each tensor, by path, and first called each module, by node; empty if not run."""

    tensors: Mapping[str, int] = field(default_factory=dict)
    calls: Mapping[int, int] = field(default_factory=dict)
    made: Mapping[int, int] = field(default_factory=dict)
    """Node to the number of elements its first call returned, where that was one tensor."""
    ready: Mapping[int, int] = field(default_factory=dict)
    """Node to when the last of what its first call was given had first been seen, on the clock of ``calls``: what
    was there before another module was called does not depend on that module."""
    times: Mapping[int, int] = field(default_factory=dict)
    """Node to how often it was called."""
    outputs: tuple[tuple[str, Array], ...] = ()
    """The floating tensors that the model returned, with their places in what it returned."""


@dataclass(frozen=True)
class Anchors(PlainData):
    """What is known of the modules from their tensors and from a first run, before they are paired."""

    pairs: tuple[tuple[int, int], ...] = ()
    groups: tuple[Group, ...] = ()
    base_holds: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    raw_holds: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Node to numbers of the parts it holds; equal numbers on both sides are filled one from the other."""
    base_order: Mapping[int, int] = field(default_factory=dict)
    raw_order: Mapping[int, int] = field(default_factory=dict)
    """Node to the rank of its first call."""


@dataclass(frozen=True)
class ModulePairs(PlainData):
    """Which node of base belongs to which node of raw."""

    pairs: tuple[tuple[int, int], ...]
    base_alone: tuple[int, ...]
    raw_alone: tuple[int, ...]
    groups: tuple[Group, ...] = ()

    def base_of(self) -> dict[int, int]:
        return {raw: base for base, raw in self.pairs}


# ------------------------------------------------------------------ the model running


class Frame(NamedTuple):
    """A place in the user's code, cheap to take while a model runs; its text is read when somebody asks."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class SourceLine(PlainData):
    """A line of the user's code."""

    file: str
    line: int
    function: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}\n    {self.text}"


@dataclass(frozen=True, slots=True)
class Slot(PlainData):
    """One tensor among the inputs or outputs of a call."""

    name: str
    """Its place in the container: "" for a lone tensor, else "0", "logits", "cache.0.1"."""
    tensor: int
    """Number of the tensor in its trace: two slots with one number hold one tensor."""
    value: Value
    tracked: bool = False
    """Whether it takes part in backward."""


@dataclass(frozen=True, slots=True)
class Call(PlainData):
    """One execution of a module."""

    index: int
    """Order of entering."""
    parent: int
    """Index of the call it happened in; -1 for the call of the model."""
    node: int
    """Index of the module's node in the tree."""
    path: str
    kind: str
    occurrence: int
    """How many times the same module had been called before, in this step."""
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    tensors: tuple[int, int] = (0, 0)
    """Numbers from the first up to the second were first seen inside the call."""
    stack: tuple[Frame, ...] = ()
    """The user's own lines that led to the call, outermost first."""


@dataclass(frozen=True)
class StepTrace(PlainData):
    """Everything seen of one model in one step."""

    step: int
    calls: tuple[Call, ...]
    """In the order in which they ended."""
    gradients: Mapping[int, Value]
    """Tensor number to gradient, in the order in which backward made them."""
    loss: Value | None
    parameter_gradients: Mapping[str, Value | None]
    """Parameter path to gradient; None where backward reached the parameter not at all."""
    ran_backward: bool = False


@dataclass(frozen=True)
class Noise(PlainData):
    """The root mean square deviation that rounding brings about in base, tensor by tensor."""

    tensors: Mapping[int, float] = field(default_factory=dict)
    """By the tensor's number in base's trace."""
    gradients: Mapping[int, float] = field(default_factory=dict)
    parameters: Mapping[str, float] = field(default_factory=dict)
    """Of the gradients of parameters, by path."""
    buffers: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    """Of the parameters after a step."""
    loss: float | None = None


# ------------------------------------------------------------------ two models side by side


@dataclass(frozen=True, slots=True)
class Unmatched(PlainData):
    """A module, call or tensor that has no partner, and why."""

    side: Literal["base", "raw"]
    path: str
    kind: str
    why: str
    inside: str = ""
    """Path of the layer around it that is compared as one, where that is the reason."""
    idle: bool = False
    """A tensor that its model never uses, or that is no parameter: nothing is lost without a partner."""

    def __str__(self) -> str:
        return f"{self.side} {self.path or '(model)'} ({self.kind}): {self.why}"


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class Calibration(PlainData):
    """How ``tolerance="auto"`` is calibrated: base runs ``runs`` times more with its last digits shaken, and what moves
    less than ``factor`` times as far as it did there is rounding."""

    runs: int = 1
    factor: float = 10.0


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class Mismatch(PlainData):
    """One element that differs."""

    index: tuple[int, ...]
    base: Any
    raw: Any


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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
    local: tuple[Comparison, ...] = ()
    """What each call adds when it is fed base's tensors, where a second look was taken."""


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

    def __str__(self) -> str:
        place = self.base_path or "the model itself"
        if self.raw_path != self.base_path:
            place += f" vs {self.raw_path or 'the model itself'}"
        text = (
            f"{place} ({self.base_kind} vs {self.raw_kind}) differs in {self.phase} at step {self.step}: "
            f"{self.comparison.outcome.message}"
        )
        return f"{text}\n{self.note}" if self.note else text


# ------------------------------------------------------------------ filling raw with base's weights


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True)
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

    def __str__(self) -> str:
        return f"{self.path} <- {' + '.join(source.path for source in self.sources)}"


@dataclass(frozen=True)
class Choice(PlainData):
    """What the evidence leaves open, declared before anything runs: ways to fill some tensors, the first by default."""

    what: str
    options: tuple[tuple[str, tuple[WeightEntry, ...]], ...]
    chosen: int = 0
    """Which option the plan's entries follow."""
    place: tuple[str, str] = ("", "")
    """Modules of base and raw around the first place where it makes a difference."""


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
