"""Everything a comparison needs to know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from padiff.engine.inputs import Fresh
from padiff.frameworks.tree import LiveTree
from padiff.records import (
    Rules,
    Tolerance,
    Usage,
)
from padiff.weights import FindSpecial
from padiff.weights.rules import Rule
from padiff.weights.special import find_special_init

Loss = Callable[[Any], Any] | None


@dataclass(frozen=True)
class Job:
    """Everything a comparison needs to know, checked and in base/raw order."""

    base: LiveTree
    raw: LiveTree
    arguments: Fresh
    losses: tuple[Loss, Loss] = (None, None)
    projected: bool = False
    """Whether the loss, where none is given, is a projection of the outputs; otherwise it is their mean."""
    optimizers: tuple[Any, Any] | None = None
    steps: int = 1
    backward: bool = True
    tolerance: Tolerance = field(default_factory=Tolerance)
    rules: Rules = field(default_factory=Rules)
    weight_rules: Mapping[str, Rule] = field(default_factory=dict)
    """Raw tensor (``*`` stands for one component) to where it comes from."""
    special: FindSpecial = find_special_init
    randomness: Literal["replay", "own"] = "replay"
    """Whether raw is given what base drew, or both draw for themselves."""
    ops: Literal["own", "all"] | None = None
    """Whether the ops of modules' own code are compared, too, and those of the framework's own layers."""
    uses: tuple[Usage, Usage] | None = None
    """In which order the models use their tensors, where that was seen already: nothing is run to find out then."""
    single_step: Literal["forward", "backward", "both"] | None = None
    """Whether every call of raw is fed what base's was fed, and which phases are compared then."""
