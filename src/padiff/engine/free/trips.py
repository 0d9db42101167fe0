"""Loops that go round unequally often: the first trip that only one model takes is where they part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from padiff.engine.free.partners import alters
from padiff.records import Call, Divergence, StepComparison


def with_trips(found: Sequence[Divergence], done: StepComparison, cut: Collection[int] = ()) -> list[Divergence]:
    """Places in forward whose own code calls a child more often than the other side does say so; not of modules of raw
    that are ``cut``, each of whose calls has a stretch of what base's one has."""
    return [_told(one, done, cut) if one.phase == "forward" and one.raw_call >= 0 else one for one in found]


def of_extra_calls(
    base: Sequence[Call], raw: Sequence[Call], pairs: Sequence[tuple[Call, Call]], wrong: Sequence[tuple[int, int]]
) -> set[str]:
    """Paths of raw's modules that one side calls more often than the other, inside calls that go wrong."""
    partner = {one.node: other.path for one, other in pairs}
    partner_of_raw = {other.node: other.path for _, other in pairs}
    found: set[str] = set()
    for side, (calls, path_of) in enumerate(((base, partner), (raw, partner_of_raw))):
        paired = {pair[side].index for pair in pairs}
        owners = {pair[side] for pair in wrong}
        for call in sorted(calls, key=lambda call: call.index):
            if call.parent in owners and call.index not in paired:
                owners.add(call.index)
                if call.node in path_of:
                    found.add(path_of[call.node])
    return found


def _told(divergence: Divergence, done: StepComparison, cut: Collection[int]) -> Divergence:
    partner = {other.node: one.node for one, other in done.pairs}
    base = _inside(done.base.calls, divergence.base_call, set(partner.values()))
    around = _around(divergence, done)
    raw = _inside(done.raw.calls, around, set(partner))
    times = Counter(call.node for call in base), Counter(call.node for call in raw)
    unequal: list[tuple[int, str]] = []
    taken: dict[int, Call] = {}
    """Trips that raw takes alone."""
    paired = {other.index for _, other in done.pairs}
    for node in dict.fromkeys(call.node for call in raw):
        here, there = times[1][node], times[0][partner.get(node, -1)]
        if here == there or not there or node in cut:
            continue
        theirs = [c for c in raw if c.node == node]
        if here > there and (all(c.index in paired for c in theirs) or _usual(theirs, done)):
            continue
        if not any(map(_changes, theirs)):
            continue  # a dropout that does nothing
        more = [c.index for c in theirs] if here > there else [c.index for c in base if c.node == partner[node]]
        lone = sorted(more)[min(here, there)]
        path = theirs[0].path
        side, trip = "raw" if here > there else "base", min(here, there) + 1
        if side == "raw":
            taken[lone] = next(c for c in theirs if c.index == lone)
        text = (
            f"{path} is called {_times(there)} by base and {_times(here)} by raw: "
            f"trip {trip} is the first that {side} takes alone"
        )
        unequal.append((lone, text))
    lists = _lists(base, raw, done)
    unequal += [(lone.index, text) for lone, text in lists]
    if not unequal:
        return divergence
    lone, text = min(unequal)
    first = next((call for call, told in lists if told == text), None)
    whole = [*raw, *(call for call in done.raw.calls if call.index == around)]
    owner = _who_calls(taken[lone], whole) if lone in taken else None
    if owner is not None and _leads_to(owner, lone, divergence.raw_call, done.raw.calls, paired):
        divergence = replace(divergence, raw_path=owner.path, raw_kind=owner.kind, raw_call=owner.index)
    if first is not None and first in raw and divergence.raw_call in {call.index for call in raw}:
        divergence = replace(divergence, raw_path=first.path, raw_kind=first.kind, raw_call=first.index)
    return replace(divergence, note=f"{divergence.note}; {text}" if divergence.note else text)


def _who_calls(lone: Call, calls: Sequence[Call]) -> Call | None:
    """Whose code takes a trip too many: not a module that is taken along on it as a whole."""
    by_index, times = {call.index: call for call in calls}, Counter(call.node for call in calls)
    owner = by_index.get(lone.parent)
    while owner is not None and times[owner.node] > 1:
        owner = by_index.get(owner.parent)
    return owner


def _changes(call: Call) -> bool:
    """Whether a call may have returned anything else than what it was given."""
    try:
        return alters(call)
    except RuntimeError:  # its elements were let go of
        return True


def _leads_to(owner: Call, lone: int, place: int, calls: Sequence[Call], paired: Collection[int]) -> bool:
    """Whether a trip too many of the owner's is why a place differs: that comes later, inside of the owner or with what
    it returned; or is around the owner; or is what is called, where base has none for it."""
    if lone > place:
        called = place not in paired and place in _above(lone, calls) and owner.index in _above(place, calls)
        return called or place in _above(owner.index, calls)
    made = {slot.tensor for slot in owner.outputs}
    taken = {slot.tensor for call in calls if call.index == place for slot in call.inputs}
    return owner.index in _above(place, calls) or bool(made & taken)


def _above(index: int, calls: Sequence[Call]) -> set[int]:
    """The calls around one."""
    by_index = {call.index: call for call in calls}
    found: set[int] = set()
    while index in by_index:
        index = by_index[index].parent
        found.add(index)
    return found


def _usual(calls: Sequence[Call], done: StepComparison) -> bool:
    """Whether another module of the same class calls its child of that name as often, and returns what base's does, or
    what is around it does: base has several modules for what raw has one."""
    told = {c.raw_call: c.agrees for c in done.comparisons if (c.phase, c.role) == ("forward", "output")}
    by_index = {call.index: call for call in done.raw.calls}
    owner = by_index.get(calls[0].parent)
    if owner is None or any(call.parent != owner.index for call in calls):
        return False

    def right(index: int) -> bool:
        while index in by_index and index not in told:
            index = by_index[index].parent
        return told.get(index, False)

    name = calls[0].path.removeprefix(owner.path)
    likes = {one.index: one.path + name for one in done.raw.calls if one.kind == owner.kind and right(one.index)}
    times = Counter(one.parent for one in done.raw.calls if likes.get(one.parent) == one.path)
    return any(times[index] == len(calls) for index in likes)


def _around(divergence: Divergence, done: StepComparison) -> int:
    """Raw's call beside base's: the place itself, or around it, where that has no partner."""
    calls = {call.index: call for call in done.raw.calls}
    partners = {other.index for one, other in done.pairs if one.index == divergence.base_call}
    index = divergence.raw_call
    while index in calls and index not in partners:
        index = calls[index].parent
    return index if index in partners else divergence.raw_call


def _lists(base: Sequence[Call], raw: Sequence[Call], done: StepComparison) -> list[tuple[Call, str]]:
    """Lists of modules of which one side calls more than the other: where a loop over them ends."""
    paired = {other.index: one for one, other in done.pairs}
    lists = [{}, {}]  # type: list[dict[str, list[Call]]]
    for own, calls in zip(lists, (base, raw), strict=True):
        for call in calls:
            owner, _, last = call.path.rpartition(".")
            if last.isdigit():
                own.setdefault(owner, []).append(call)
    found: list[tuple[Call, str]] = []
    for owner, theirs in lists[1].items():
        partners = [paired[call.index] for call in theirs if call.index in paired]
        ours = next((calls for calls in lists[0].values() if partners and partners[0] in calls), [])
        if not 0 < len(partners) == min(len(ours), len(theirs)) < max(len(ours), len(theirs)):
            continue
        side = "base" if len(ours) > len(theirs) else "raw"
        known = {call.index for call in paired.values()} if side == "base" else paired
        more = ours if side == "base" else theirs
        lone = next((call for call in more if call.index not in known), None)
        if lone is None:  # one side keeps in two lists what the other has in one
            continue
        if lone.node in {call.node for call in more if call.index in known}:
            continue  # the same once more, which is a trip of its caller's and no further member
        if lone.kind not in {call.kind for call in more if call.index in known}:
            continue  # an activation between layers, which the other side's code applies, is no trip
        text = (
            f"of {owner} base calls {len(ours)} and raw {len(theirs)}: {lone.path} is the first that {side} calls alone"
        )
        found.append((lone, text))
    return found


def _inside(calls: Sequence[Call], index: int, known: set[int]) -> list[Call]:
    """Calls in the code of one, and of modules inside that correspond to none: their code counts as its own."""
    found: list[Call] = []
    owners = {index}
    for call in sorted(calls, key=lambda call: call.index):
        if call.parent in owners:
            found.append(call)
            if call.node not in known:
                owners.add(call.index)
    return found


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
