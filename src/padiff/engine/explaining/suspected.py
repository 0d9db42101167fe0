"""Whose code will probably be looked into, known before a second look is taken, whose runs then watch it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from padiff.capture.ops import WantedOps
from padiff.engine.explaining.scenes import Scenes
from padiff.engine.explaining.watched_again import (
    Place,
    has_own_code,
    looking_into_borders,
    place_at,
    place_of,
    shows,
    with_a_partner,
)
from padiff.engine.job import Job
from padiff.records import Call, Comparison, Fault, StepComparison

MOST_BESIDE = 8
"""Calls at the side of the first that differs, nearest to it, whose code is watched, too."""
MOST_AFTER = 2
"""Calls that follow one at its side, and each around it at theirs, that may send back something wrong."""
MOST_IN_BACKWARD = 3
"""Places in backward whose code is watched: of more, causes are not looked for."""


@dataclass(frozen=True)
class Suspected:
    """Calls whose ops are recorded, on each side."""

    calls: tuple[frozenset[int], frozenset[int]]
    layers: tuple[bool, bool]
    """Whether the ops of the framework's own layers are, too."""
    backward: bool = False
    """Whether their gradients are, too."""

    def wanted(self, side: int) -> WantedOps:
        return WantedOps(self.calls[side], stacks=True, options=True, layers=self.layers[side], functions=self.backward)


def suspected(job: Job, done: StepComparison, levelled: Iterable[Comparison] | None = None) -> Suspected | None:
    """The first call that returns something else when raw runs by itself, those around it, since a fault in their own
    code shows first in the child that is given what they made, and those that ended before it at its side: what they
    did may be less than rounding there.

    Where forward agrees, the last call whose parameters' gradients don't, or where all of them do, what it sends back,
    those around it and those that follow at its side; by their ``levelled`` gradients, where these are known. None
    where nothing differs, or no code can be looked into."""
    order = {call.index: place for place, call in enumerate(done.raw.calls)}
    wrong = [one.raw_call for one in done.comparisons if one.phase == "forward" and not one.agrees]
    first = min((index for index in wrong if index in order), key=order.__getitem__, default=None)
    if first is not None:
        return _together(job, list(_places_around(job, done, first)))
    if not job.backward:
        return None
    gradients = done.comparisons if levelled is None else levelled
    owners = {one.raw_path for one in gradients if one.phase == "gradient" and not one.agrees}
    sent = {one.raw_call for one in done.comparisons if one.phase == "backward" and not one.agrees}
    wrong = [call.index for call in done.raw.calls if (call.path in owners if owners else call.index in sent)]
    last = max(wrong, key=order.__getitem__, default=None)
    if last is None:
        return None
    found = _together(job, list(_places_around(job, done, last, backward=True)))
    return None if found is None else replace(found, backward=True)


def found_in_backward(
    faults: Iterable[Fault], state: Iterable[Comparison], pairs: Iterable[tuple[Call, Call]], scenes: Scenes
) -> Suspected | None:
    """The first calls that send something else back, and those whose parameters' gradients differ; None where their
    code has been watched."""
    backward = [fault for fault in faults if fault.phase == "backward"][:MOST_IN_BACKWARD]
    wrong = {one.raw_path: one for one in state if one.phase == "gradient" and not one.agrees}
    owners = {pair[1].path: pair for pair in pairs if pair[1].path in wrong}
    holding = [Fault("backward", *pair, wrong[path]) for path, pair in owners.items()][:MOST_IN_BACKWARD]
    places: list[Place] = []
    for fault in (with_a_partner(one, scenes) for one in (*backward, *holding)):
        place = place_of(fault, looking_into_borders(scenes, fault))
        if place is not None and not (scenes.watched is not None and shows(scenes.watched, place)):
            places.append(place)
    found = _together(scenes.job, places)
    return None if found is None else replace(found, backward=True)


def _together(job: Job, places: list[Place]) -> Suspected | None:
    """The first place, and those that one run shows with it."""
    if not places:
        return None
    layers = places[0].layers
    alike = [place for place in places if place.layers == layers]
    calls = [frozenset[int]().union(*(place.inside[side] for place in alike)) for side in (0, 1)]
    return Suspected((calls[0], calls[1]), (layers[0] or job.ops == "all", layers[1] or job.ops == "all"))


def _after(call: Call, calls: Iterable[Call]) -> list[Call]:
    """The next at its side."""
    return [one for one in calls if one.parent == call.parent and one.index > call.index][:MOST_AFTER]


def _places_around(job: Job, done: StepComparison, index: int, *, backward: bool = False) -> Iterator[Place]:
    """A call, those at its side that ran before it, or after it in ``backward``, and those around it, the innermost
    first: of these the ones that have a partner and code of their own."""
    lives, calls = (job.base, job.raw), (done.base.calls, done.raw.calls)
    partners = {raw.index: base for base, raw in done.pairs}
    paired = {base.index for base in partners.values()}, set(partners)
    by_index = {call.index: call for call in calls[1]}
    around: list[Call] = []
    while index in by_index:
        around.append(by_index[index])
        index = by_index[index].parent
    if backward:
        beside = [call for one in around for call in _after(one, calls[1])][:MOST_BESIDE]
    else:
        beside = [call for call in calls[1] if call.parent == around[0].parent and call.index < around[0].index]
    for raw in (around[0], *beside[-MOST_BESIDE:], *around[1:]):
        base = partners.get(raw.index)
        if base is not None and (has_own_code(lives[0], base.node) or has_own_code(lives[1], raw.node)):
            yield place_at((base.index, raw.index), lives, calls, paired, backward=backward)
