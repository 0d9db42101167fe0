"""How far rounding may bring two tensors apart: what it really does to base is asked for only where that decides."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from padiff.compare.kinds import kind_of
from padiff.compare.measure import rms
from padiff.records import Array, Tolerance

COARSE = 3e-4
"""Of a tensor's size; rounding does not move it so far within one module, and ten times that is another tensor."""
FEW_DIGITS = 8.0
"""The same in the spacing of its dtype, or of the narrower one, where that is more."""


@dataclass(frozen=True)
class Bounds:
    """Those of one tensor of base's."""

    least: Tolerance
    """What is within it agrees, whatever rounding does."""
    noise: Callable[[], float | None]
    """How far rounding moves the tensor; may take a run."""

    def gap(self, base: Array, measure: Callable[[Tolerance], float]) -> float:
        """What a measure says, infinite where a tolerance does not allow it; ``base`` gives the scale."""
        most = max(COARSE, FEW_DIGITS * max(kind_of(base.dtype).eps, self.least.narrow)) * rms(base)
        if math.isfinite(most) and not math.isfinite(measure(replace(self.least, predicted=most))):
            return math.inf
        found = measure(replace(self.least, predicted=0.0))
        return found if math.isfinite(found) else measure(replace(self.least, predicted=self._known()))

    def agree(self, base: Array, agrees: Callable[[Tolerance], bool]) -> bool:
        return math.isfinite(self.gap(base, lambda tolerance: 0.0 if agrees(tolerance) else math.inf))

    def _known(self) -> float | None:
        known = self.noise()
        return self.least.predicted if known is None else known
