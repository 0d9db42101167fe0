"""Pictures of the errors of a step: of the first tensors that differ and of the worst, so many and no more.

What agrees is not drawn and costs nothing, the models' own results excepted.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from padiff.compare.layouts import compare_arranged
from padiff.records import Array, Comparison, Outcome, Phase, Picture, Tolerance
from padiff.report.picture import picture_of
from padiff.report.words import relative

FIRST = 40
"""In each phase, of those nearest to where the difference starts: the first that are met."""
WORST = 20
"""In each phase, of all others, the ones with the largest relative error."""
MOST_ELEMENTS = 1 << 25
"""Looked at in each phase for the first, and as many again for the worst: drawing takes some 15 ns for each."""
SMALL = 1 << 14
"""Elements up to which a copy costs less than a picture."""
CLEARLY = 1.5
"""How much worse a larger one has to be to displace another: errors that grow slowly would all be drawn in turn."""
MOST_AGREEING = 1 << 20
"""The largest result that is drawn although it agrees."""


@dataclass
class _Wall:
    """The pictures of one phase."""

    first: int = 0
    elements: list[int] = field(default_factory=lambda: [0, 0])
    worst: list[tuple[float, int, Outcome]] = field(default_factory=list)
    """A heap: relative error, number, outcome; the least of the worst in front."""


class Gallery:
    """Is shown pairs of arrays while they are at hand, and hangs their pictures beside the comparisons later."""

    def __init__(self) -> None:
        self._pictures: dict[int, tuple[Outcome, Picture]] = {}
        self._kept: dict[int, tuple[Outcome, Array, Array, bool]] = {}
        """By identity of the outcome, small ones among the worst: drawn in the end, unless worse ones displace them."""
        self._walls: dict[Phase, _Wall] = {}
        self._numbers = itertools.count()

    def see(self, phase: Phase, outcome: Outcome, base: Array, raw: Array) -> None:
        """Draw what differs, if there is room for it."""
        if id(outcome) in self._pictures or id(outcome) in self._kept or outcome.reason in ("shape", "structure"):
            return
        gradients = phase != "forward"
        wall = self._walls.setdefault(phase, _Wall())
        if wall.first < FIRST and wall.elements[0] + raw.size <= MOST_ELEMENTS:
            wall.elements[0] += raw.size
            wall.first += self._draw(outcome, base, raw, gradients=gradients)
            return
        rank = relative(outcome) or 0.0
        worth = 1.0 if raw.size <= SMALL else CLEARLY
        full = len(wall.worst) == WORST
        if wall.elements[1] + raw.size > MOST_ELEMENTS or (full and rank <= worth * wall.worst[0][0]):
            return
        wall.elements[1] += raw.size
        if raw.size <= SMALL:
            self._kept[id(outcome)] = (outcome, np.array(base), np.array(raw), gradients)
        elif not self._draw(outcome, base, raw, gradients=gradients):
            return
        heapq.heappush(wall.worst, (rank, next(self._numbers), outcome))
        if len(wall.worst) > WORST:
            displaced = id(heapq.heappop(wall.worst)[2])
            self._pictures.pop(displaced, None)
            self._kept.pop(displaced, None)

    def see_result(self, outcome: Outcome, base: Array, raw: Array) -> None:
        """What a model returned, which is drawn also where it agrees, unless it is large or there is no error."""
        if outcome.agrees and outcome.verdict != "equal" and raw.size <= MOST_AGREEING:
            self._draw(outcome, base, raw)

    def hung(self, comparisons: Iterable[Comparison]) -> list[Comparison]:
        """The comparisons with their pictures."""
        for outcome, base, raw, gradients in self._kept.values():
            self._draw(outcome, base, raw, gradients=gradients)
        self._kept.clear()
        if not self._pictures:
            return list(comparisons)
        found = []
        for one in comparisons:
            known = self._pictures.get(id(one.outcome))
            found.append(one if known is None else replace(one, picture=known[1]))
        return found

    def _draw(self, outcome: Outcome, base: Array, raw: Array, *, gradients: bool = False) -> bool:
        arranged: Array | None = base
        if base.shape != raw.shape:
            arranged = compare_arranged(base, raw, Tolerance(mode="auto"), gradients=gradients, loosely=True)[1]
        picture = picture_of(arranged, raw)
        if picture is not None:
            self._pictures[id(outcome)] = (outcome, picture)
        return picture is not None
