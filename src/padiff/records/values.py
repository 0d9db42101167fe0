"""Tensors as the stages see them, places in code, and the few words that say which tensor it is and what was found."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Protocol

import numpy.typing as npt

from padiff.records.plain import PlainData, record

Array = npt.NDArray[Any]
MASKED = -5000.0
"""What is added to scores to leave them out is below this, however it is written: -1e4, the smallest number, -inf."""
Phase = Literal["forward", "backward", "gradient", "weight", "buffer"]
Verdict = Literal["equal", "rounding", "precision", "different"]
Reason = Literal["structure", "shape", "dtype", "nonfinite", "values"]
Role = Literal["output", "input", "loss", "parameter", "buffer"]
Side = Literal["base", "raw"]


class Frame(NamedTuple):
    """A place in the user's code, cheap to take while a model runs; its text is read when somebody asks."""

    file: str
    line: int
    function: str


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


@record
class TensorSpec(PlainData):
    """A parameter or buffer as its owner names it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    identity: int
    """Two specs with one identity are one tensor: tied weights."""
    computed: bool = False
    """A buffer that its module makes itself (a mask, a table of angles): compared, never written."""
