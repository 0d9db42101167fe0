"""Records of one run: calls with the tensors at their borders, and where in the source they stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from padiff.records.draws import Draw
from padiff.records.plain import PlainData, record
from padiff.records.values import Frame, Value

FIRST_OP = 1 << 24
"""Calls of ops are numbered from here on, those of modules from 0: how many ops are seen changes no number of these."""

UNORDERED = "?"
"""Names of slots begin so where a compiler has left nothing of their places: only their values tell what they are."""


@record
class SourceLine(PlainData):
    """A line of the user's code."""

    file: str
    line: int
    function: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}\n    {self.text}"


@record
class Slot(PlainData):
    """One tensor among the inputs or outputs of a call."""

    name: str
    """Its place in the container: "" for a lone tensor, else "0", "logits", "cache.0.1"."""
    tensor: int
    """Number of the tensor in its trace: two slots with one number hold one tensor."""
    value: Value
    tracked: bool = False
    """Whether it takes part in backward."""
    stands_for: int = -1
    """Number of the tensor in whose place it was put, in a run that is fed; -1 where it is the model's own."""

    @property
    def origin(self) -> int:
        """Number of the tensor that the model itself would have here."""
        return self.tensor if self.stands_for < 0 else self.stands_for


@record
class Call(PlainData):
    """One execution of a module, or of an op in a module's own code."""

    index: int
    """Order of entering; ops are counted by themselves, from ``FIRST_OP`` on."""
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
    ops: Sequence[Call] = ()
    """What the module's own code called, in order, where ops were watched. An op's path is the module's with the op's
    short name after a slash, its kind the name people know it by."""
    begun: int = -1
    """For an op or a tag: how many calls had begun before it, which tells what it stands between."""
    options: tuple[tuple[str, Any], ...] = ()
    """For an op that was looked into: what it was given besides tensors, by name."""
    tag: bool = False
    """A tensor that the user marked, as the only output; its path is the module's with the tag's name after an @."""

    @property
    def is_op(self) -> bool:
        return self.index >= FIRST_OP


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
    draws: tuple[Draw, ...] = ()
    """Random numbers in the order in which they were drawn, where somebody listened."""
    copies: Mapping[int, int] = field(default_factory=dict)
    """In a run that is fed and whose ops are watched: tensors that were put in the place of others with the same
    numbers in them, to those."""

    @property
    def root(self) -> Call | None:
        """The model's own call, where it came to its end."""
        return next((call for call in self.calls if call.parent < 0), None)


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
    cancelled: bool = False
    """Whether something is left of larger numbers, and moved by what those lose."""


@record
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
