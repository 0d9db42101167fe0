"""How a framework's own layers store what every framework's layers store: tables, no code per layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor of a layer, as this framework keeps it.

    ``parts`` are the framework-neutral names of what it holds, laid one after the other along the axis
    ``along``: one for an ordinary tensor, three for a fused query/key/value projection. ``axes`` spells the
    order of axes with one letter each ("oi" against "io" is a transpose); "1" is an axis of length one that
    another framework may not have; "" says that every framework keeps the same order.
    """

    parts: tuple[str, ...]
    axes: str = ""
    along: int = 0
    role: Literal["parameter", "buffer"] = "parameter"
    optional: bool = False
    """Bookkeeping that other frameworks don't keep: no partner is no problem."""
    convention: str = ""
    """A numeric convention that differs between frameworks, e.g. ``unbiased`` running variance."""


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer class of a framework."""

    layer: str
    """Framework-neutral name: ``linear``, ``conv2d``, ``attention``."""
    stored: Mapping[str, Stored] = field(default_factory=dict)
    """Own path of a tensor (``weight``, ``out_proj.weight``) to what it holds. ``*`` matches any run of characters,
    and stands for the same text in ``parts``."""
    atomic: bool = False
    """Matched as one thing although it has children or keeps its tensors its own way."""


def same(*names: str) -> dict[str, Stored]:
    """Rows for tensors stored alike everywhere, under their neutral names."""
    return {name: Stored((name,)) for name in names}
