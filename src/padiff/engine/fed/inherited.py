"""What differs only because something else does: no places of their own."""

from __future__ import annotations

import sys
from collections.abc import Container, Iterable
from typing import TYPE_CHECKING

import numpy as np

from padiff.engine.fed.beside import resized
from padiff.engine.fed.calls_met import outward, parents_of
from padiff.engine.free.trips import of_extra_calls
from padiff.records import Call, Comparison, Fault

_AT_THE_END = sys.maxsize
"""After all calls."""

_NEARLY = 1e-3
"""How far two differences may be apart that are the same but for rounding, relative to their size."""

if TYPE_CHECKING:  # it asks for the first two
    from padiff.engine.fed.localise import Located


def without_inherited(faults: Iterable[Fault], comparisons: Iterable[Comparison], calls: Iterable[Call]) -> list[Fault]:
    """Without what calls send back wrong because of a call inside that is wrong in forward, and whose own gradient
    could not be told from that of others: one of three projections that base computes in one."""
    parents = parents_of(calls)
    told = {one.raw_call for one in comparisons if (one.phase, one.role) == ("backward", "input")}
    faults, around = list(faults), set[int]()
    for fault in faults:
        followed = any(slot.tracked for slot in fault.raw.inputs)
        if fault.phase == "forward" and followed and fault.raw.index not in told:
            around |= outward(fault.raw.parent, parents)
    return [fault for fault in faults if fault.phase != "backward" or fault.between or fault.raw.index not in around]


def without_wrong_code(faults: Iterable[Fault], paired: Container[int], calls: Iterable[Call]) -> list[Fault]:
    """Without gradients that come back through code which is wrong in forward already: they are another code's.
    ``paired`` are the raw calls with a partner; the code of others is that of the call around them."""
    parents, faults = parents_of(calls), list(faults)

    def whose(fault: Fault) -> int:
        index = fault.raw.index
        while index not in paired and index in parents:
            index = parents[index]
        return index

    wrong: dict[int, int] = {}
    """Call to the last of those inside that are given something wrong by its code; itself returns it."""
    for fault in faults:
        if fault.phase == "forward":
            owner, last = whose(fault), fault.after.index if fault.between and fault.after is not None else _AT_THE_END
            wrong[owner] = max(last, wrong.get(owner, -1))

    def follows(fault: Fault) -> bool:
        if fault.phase == "forward" or fault.comparison.outcome.reason != "values":
            return False
        last = wrong.get(whose(fault), -1)
        return last == _AT_THE_END or (fault.between and fault.after is not None and fault.after.index < last)

    return [fault for fault in faults if not follows(fault)]


def without_taken_inside(faults: Iterable[Fault], calls: Iterable[Call]) -> list[Fault]:
    """Without gradients that arrive at a call's output in one model and at the same numbers inside of it in the other:
    one author returns a part of what the call computes besides, the other takes it of what it returns. What is missing
    outside is too much inside then."""
    parents, faults = parents_of(calls), list(faults)
    arriving = [fault for fault in faults if (fault.phase, fault.comparison.role) == ("backward", "output")]
    told: set[int] = set()
    for place, outer in enumerate(arriving):
        for inner in arriving[place + 1 :]:
            if outer.comparison.raw_call in outward(inner.comparison.raw_call, parents) and _make_up_for(outer, inner):
                told |= {id(outer), id(inner)}
    return [fault for fault in faults if id(fault) not in told]


def _make_up_for(one: Fault, other: Fault) -> bool:
    if one.expected is None or one.found is None or other.expected is None or other.found is None:
        return False
    if not one.expected.shape == one.found.shape == other.expected.shape == other.found.shape:
        return False
    lacking, surplus = one.expected - one.found, other.found - other.expected
    return bool(np.abs(lacking - surplus).max(initial=0.0) <= _NEARLY * np.abs(lacking).max(initial=0.0))


def not_made_of(faults: list[Fault], unreplaced: frozenset[int], calls: Iterable[Call]) -> list[Fault]:
    """Without gradients in calls that return something wrong which went on as it was, or around them."""
    if not unreplaced:
        return faults
    parents = parents_of(calls)
    outer = set[int]().union(*(outward(index, parents) for index in unreplaced))
    return [
        fault
        for fault in faults
        if fault.phase == "forward" or not (fault.raw.index in outer or outward(fault.raw.index, parents) & unreplaced)
    ]


def of_like_borders(
    faults: list[Fault], state: Iterable[Comparison], comparisons: Iterable[Comparison], calls: Iterable[Call]
) -> list[Fault]:
    """Without what is sent back by calls that return more or less than their partners, or around them, where something
    else is wrong: what arrives at such outputs cannot be told to be base's, and is shared out differently."""
    sized = {
        one.raw_call
        for one in comparisons
        if (one.phase, one.role) == ("forward", "output") and one.outcome.reason == "shape"
    }
    if not sized:
        return faults
    parents = parents_of(calls)
    unlike = set[int]().union(*(outward(index, parents) for index in sized))
    kept = [
        fault
        for fault in faults
        if fault.phase == "forward" or fault.comparison.role != "input" or fault.raw.index not in unlike
    ]
    return kept if kept or any(not one.agrees for one in state) else faults


def without_extra_calls(located: Located) -> tuple[Comparison, ...]:
    """Without gradients of parameters that only differ because their module is called once more, or once less, by code
    that was found to go wrong."""
    raw, base = located.scenes.found.calls, located.scenes.reference.trace.calls
    wrong = [(fault.base.index, fault.raw.index) for fault in located.faults if fault.phase == "forward"]
    extra = of_extra_calls(base, raw, located.pairs, wrong)
    return tuple(one for one in located.state if one.agrees or one.role != "parameter" or one.raw_path not in extra)


def without_followers(located: Located, state: tuple[Comparison, ...]) -> tuple[Comparison, ...]:
    """Without gradients of parameters that were made of what a faulty call returned, or in it, where nothing of base's
    was put in its place; nor can it be put in the place of what is larger, or smaller."""
    wrong = any(fault.phase == "forward" for fault in located.faults)
    if not wrong or all(one.agrees for one in state):
        return state
    calls = {call.index: call for call in located.scenes.found.calls}
    fed = {raw.index for _, raw in located.pairs}
    resizing = set() if located.alike else {raw.index for base, raw in located.pairs if resized(base, raw)}
    parents = parents_of(calls.values())
    around = resizing.union(*(outward(index, parents) for index in located.unreplaced))
    first = min(located.unreplaced, default=len(calls))
    follow: dict[str, bool] = {}
    for call in calls.values():
        follows = call.index in around or (call.index > first and call.index not in fed)
        follow[call.path] = follow.get(call.path, True) and follows
    return tuple(one for one in state if one.agrees or one.role != "parameter" or not follow.get(one.raw_path, False))
