"""Calls that return something which base goes on from inside of its own, and which nobody goes on from in raw.

A call that returns what base computes as well merely ends elsewhere, if raw's code around it does the rest. One that
leaves out its last step returns such a thing, too: what is missing then could have been done in it, and nobody does it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from padiff.engine.calls_met import outward, parents_of
from padiff.engine.doubts import output_of
from padiff.engine.prints import Prints, told_apart
from padiff.records import Call, Fault, Slot, StepTrace

Likes = Callable[[Fault], Sequence[Fault]]
"""Other calls of the two classes of one that is in doubt."""


def first_cut_short(doubts: Sequence[Fault], base: StepTrace, raw: StepTrace, likes: Likes | None = None) -> int | None:
    """The first raw call among these that ends too early, and whose ``likes`` all do; both ran with their ops watched.
    Of several around each other that return the very same in both models, the innermost: the others' code hands on."""

    def short(one: Fault) -> bool:
        return one.found is not None and _cut_short(one, base, raw)

    ordered = sorted(doubts, key=lambda one: one.raw.index)
    first = next((one for one in ordered if short(one) and (likes is None or all(map(short, likes(one))))), None)
    if first is None:
        return None
    returned = _origins(first)
    same = (one for one in reversed(ordered) if returned is not None and _origins(one) == returned)
    return next(same, first).raw.index


def _origins(doubt: Fault) -> tuple[int, int] | None:
    """Which tensors of base and of raw a doubt is about."""
    base, raw = output_of(doubt) or (None, None)
    return None if base is None or raw is None else (base.origin, raw.origin)


def not_as_a_rule(doubts: Iterable[Fault], likes: Likes, ending_elsewhere: frozenset[int]) -> list[Fault]:
    """Those of which not all likes end elsewhere, as far as there are any: what is missing after the others was left
    out by who calls them, as what comes after their likes is done there."""
    return [one for one in doubts if not _all_in(likes(one), ending_elsewhere)]


def _all_in(likes: Sequence[Fault], calls: frozenset[int]) -> bool:
    return bool(likes) and all(like.raw.index in calls for like in likes)


def _cut_short(doubt: Fault, base: StepTrace, raw: StepTrace) -> bool:
    assert doubt.found is not None
    returned = Prints()
    returned.add(doubt.found)
    steps = list(_steps(base, doubt.base, inside=True))
    going_on = [one for one in steps if _meet(returned, one.inputs) and not _meet(returned, one.outputs)]
    after = _made(_steps(raw, doubt.raw, inside=False))
    if any(_meet(after, one.outputs) for one in going_on):
        return False
    held = list(_steps(raw, doubt.raw, inside=True))
    at_hand = _prints(slot for one in (doubt.raw, *held) for slot in one.inputs)
    for one in held:
        _add(at_hand, one.outputs)
    _add_what_could_be_made(at_hand, steps)
    return any(_meet(at_hand, one.outputs) for one in going_on)


def _steps(trace: StepTrace, outer: Call, *, inside: bool) -> Iterator[Call]:
    """Ops and calls inside of a call; or all others, but for the calls around it."""
    parents = parents_of(trace.calls)
    around = outward(outer.index, parents)
    for call in trace.calls:
        if (outer.index in outward(call.index, parents)) is inside:
            yield from call.ops
            if call.index not in around:
                yield call


def _made(steps: Iterable[Call]) -> Prints:
    """What steps return that is not what they are given."""
    found = Prints()
    for one in steps:
        given = _prints(one.inputs)
        _add(found, [slot for slot in one.outputs if not _meet(given, [slot])])
    return found


def _add_what_could_be_made(at_hand: Prints, steps: Sequence[Call]) -> None:
    """What base's steps make of things that raw's call holds as well."""
    waiting = list(steps)
    while ready := [one for one in waiting if all(_meet(at_hand, [slot]) for slot in told_apart(one.inputs))]:
        for one in ready:
            _add(at_hand, one.outputs)
        waiting = [one for one in waiting if not any(one is other for other in ready)]


def _prints(slots: Iterable[Slot]) -> Prints:
    found = Prints()
    _add(found, slots)
    return found


def _add(prints: Prints, slots: Iterable[Slot]) -> None:
    for slot in told_apart(slots):
        prints.add(slot.value.numpy())


def _meet(prints: Prints, slots: Iterable[Slot]) -> bool:
    return any(prints.hold(slot.value.numpy()) for slot in told_apart(slots))
