"""How often the models may run for a step: a place is found whatever it takes, ops and causes with what is left.

Counted in thirds of a plain run, of which forward takes one and backward two; a forward that ends half-way is a whole
one.
"""

from __future__ import annotations

from dataclasses import dataclass

from padiff.capture.session import Session

MOST = (15, 9)
"""Five plain runs of base, three of raw."""
FORWARD, WHOLE = 1, 3


@dataclass(frozen=True)
class Allowance:
    """What is left for a step of both models."""

    base: Session
    raw: Session

    def begin(self) -> None:
        """The step begins here; anew where it turns out that a model must run otherwise (in eager form, judged by a
        narrower dtype), for which nothing is given up."""
        self.base.spent = self.raw.spent = 0

    def covers(self, *, base: int = 0, raw: int = 0) -> bool:
        """Whether so many thirds more of each are within it."""
        return self.base.spent + base <= MOST[0] and self.raw.spent + raw <= MOST[1]
