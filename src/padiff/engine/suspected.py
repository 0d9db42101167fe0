"""Whose code will probably be looked into, known before a second look is taken, whose runs then watch it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from padiff.capture.ops import WantedOps
from padiff.engine.job import Job
from padiff.engine.watched_again import Place, has_own_code, place_at
from padiff.records import Call, StepComparison

MOST_BESIDE = 8
"""Calls at the side of the first that differs, nearest to it, whose code is watched, too."""


@dataclass(frozen=True)
class Suspected:
    """Calls whose ops are recorded, on each side."""

    calls: tuple[frozenset[int], frozenset[int]]
    layers: tuple[bool, bool]
    """Whether the ops of the framework's own layers are, too."""

    def wanted(self, side: int) -> WantedOps:
        return WantedOps(self.calls[side], stacks=True, options=True, layers=self.layers[side])


def suspected(job: Job, done: StepComparison) -> Suspected | None:
    """The first call that returns something else when raw runs by itself, those around it, since a fault in their own
    code shows first in the child that is given what they made, and those that ended before it at its side: what they
    did may be less than rounding there. None where nothing differs in forward, or no code can be looked into."""
    order = {call.index: place for place, call in enumerate(done.raw.calls)}
    wrong = [one.raw_call for one in done.comparisons if one.phase == "forward" and not one.agrees]
    first = min((index for index in wrong if index in order), key=order.__getitem__, default=None)
    if first is None:
        return None
    places = list(_places_around(job, done, first))
    if not places:
        return None
    layers = places[0].layers
    alike = [place for place in places if place.layers == layers]
    calls = [frozenset[int]().union(*(place.inside[side] for place in alike)) for side in (0, 1)]
    return Suspected((calls[0], calls[1]), (layers[0] or job.ops == "all", layers[1] or job.ops == "all"))


def _places_around(job: Job, done: StepComparison, index: int) -> Iterator[Place]:
    """A call, those at its side that ended before it, and those around it, the innermost first: of these the ones that
    have a partner and code of their own."""
    lives, calls = (job.base, job.raw), (done.base.calls, done.raw.calls)
    partners = {raw.index: base for base, raw in done.pairs}
    paired = {base.index for base in partners.values()}, set(partners)
    by_index = {call.index: call for call in calls[1]}
    around: list[Call] = []
    while index in by_index:
        around.append(by_index[index])
        index = by_index[index].parent
    beside = [call for call in calls[1] if call.parent == around[0].parent and call.index < around[0].index]
    for raw in (around[0], *beside[-MOST_BESIDE:], *around[1:]):
        base = partners.get(raw.index)
        if base is not None and (has_own_code(lives[0], base.node) or has_own_code(lives[1], raw.node)):
            yield place_at((base.index, raw.index), lives, calls, paired, backward=False)
