"""How numbers are moved up or down by a rounding step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from padiff.records.values import Array


@dataclass(frozen=True)
class Moves:
    """What the numbers of one tensor are multiplied by, over and over, and which of them are not."""

    factors: Array
    """A period of them, twice, so that one may begin anywhere in the first."""
    lent: dict[Any, Any]
    """The same as frameworks have them, by device; theirs to fill."""
    begin: int
    largest: float
    """Numbers beyond it stay."""
    least: float = 0.0
    """Where exponents end, as far as that is imitated: what is small beside ``coarse`` becomes a multiple of it."""
    coarse: float = 0.0
    exact: bool = False
    """A tensor that holds whole numbers only stays."""

    @property
    def period(self) -> int:
        return len(self.factors) // 2

    @property
    def once(self) -> Array:
        return self.factors[self.begin : self.begin + self.period]
