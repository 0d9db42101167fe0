"""Records of randomness: what a model drew, and where the two sides draw something else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from padiff.records.plain import PlainData
from padiff.records.values import Array, Frame


@dataclass(frozen=True)
class Draw(PlainData):
    """Random numbers that a model drew at once, under names and in conventions that all frameworks share.

    ``mask`` (true or false), ``uniform``, ``gaussian``, ``exponential``, ``integers``, ``permutation``, ``choice``
    (indices by weight); anything else goes by its own name.
    """

    kind: str
    value: Array
    """As they were drawn."""
    parameters: Mapping[str, float] = field(default_factory=dict)
    """``keep`` of a mask, ``low`` and ``high``, ``mean`` and ``std``, ``rate``; of tensors, what they are on average:
    ``mean chance``, ``mean index``, ``mean rate``."""
    loc: float = 0.0
    scale: float = 1.0
    """``(value - loc) / scale`` are plain numbers: from 0 to 1, of mean 0 and deviation 1, of rate 1."""
    op: str = ""
    """What the framework calls it."""
    call: int = -1
    """Index of the call in whose own code it happened; -1 outside of the model, in a loss."""
    path: str = ""
    clock: int = 0
    """How many calls had begun or ended before: draws of one clock have no call between them."""
    event: Array | None = None
    """What the model made of uniform numbers by holding them against a bound: true or false."""
    chance: float | None = None
    """How likely a true is in ``event``, by that bound."""
    stack: tuple[Frame, ...] = ()
    """The user's lines that draw it, while the model runs."""

    @property
    def keep(self) -> float | None:
        """How much a mask keeps, where that is known."""
        return self.parameters.get("keep", self.chance)

    def __str__(self) -> str:
        shape = list(self.value.shape)
        keep = self.keep
        if keep is not None:
            return f"a mask of {shape} that keeps {keep:.6g}"
        told = ", ".join(f"{name} {value:.6g}" for name, value in self.parameters.items())
        what = {"mask": "a mask", "choice": "a choice", "permutation": "a permutation"}.get(
            self.kind, f"{self.kind} numbers"
        )
        return f"{what} of {shape}" + (f" with {told}" if told else "")


@dataclass(frozen=True)
class DrawGap(PlainData):
    """A place where the draws of the two models do not correspond."""

    reason: Literal["base only", "raw only", "parameters", "shape", "kind", "place", "hidden"]
    base_path: str = ""
    raw_path: str = ""
    base: str = ""
    """What base draws there, in words; empty for nothing."""
    raw: str = ""
    masked: bool = False
    """Whether a mask is drawn, as dropout does."""
    keeps: tuple[float | None, float | None] = (None, None)
    """How much base's mask and raw's keep, where known."""
    covered: bool = False
    """Whether raw was given base's numbers as they are, so that nothing but this may tell that it draws otherwise."""
    stacks: tuple[tuple[Frame, ...], tuple[Frame, ...]] = ((), ())
    """The user's lines of both sides, where known."""

    def __str__(self) -> str:
        left, right = self.base_path or "(model)", self.raw_path or "(model)"
        if self.reason == "hidden":
            side, path = ("base", left) if self.base else ("raw", right)
            return f"{side} {path} draws random numbers inside {self.base or self.raw}, where they cannot be seen"
        if self.reason == "base only":
            return f"base {left} draws {self.base}, raw draws nothing there"
        if self.reason == "raw only":
            return f"raw {right} draws {self.raw}, base draws nothing there"
        return f"base {left} draws {self.base}, raw {right} draws {self.raw}"
