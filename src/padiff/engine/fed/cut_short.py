"""Calls that return something which base goes on from inside of its own, and which nobody goes on from in raw.

A call that returns what base computes as well merely ends elsewhere, if raw's code around it does the rest. One that
leaves out its last step returns such a thing, too: what is missing then could have been done in it, and nobody does it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from padiff.engine.fed.calls_met import outward, parents_of, used_by_others
from padiff.engine.fed.doubts import output_of
from padiff.engine.fed.prints import Prints, told_apart
from padiff.frameworks.tree import LiveTree, join
from padiff.records import Array, Call, Fault, ModuleTree, Slot, StepTrace

Kept = Callable[[Call], Iterable[Array]]
"""The parameters that the module of a raw call keeps itself: at hand, whether or not its code takes them up."""


def kept_by(live: LiveTree, call: Call) -> Iterator[Array]:
    """The parameters that a call's module keeps itself."""
    node, held = live.tree.nodes[call.node], live.parameters()
    for spec in node.parameters:
        if (tensor := held.get(join(node.path, spec.name))) is not None:
            yield live.adapter.to_numpy(tensor)


class Idle:
    """Modules that raw holds and never calls."""

    def __init__(self, tree: ModuleTree, partners: Mapping[int, int], base: StepTrace) -> None:
        """``partners`` are base's modules by raw's."""
        self._tree, self._partners, self._base = tree, partners, base

    def left_out_by(self, doubt: Fault, raw: StepTrace) -> bool:
        """Whether one lies in the module of a call, and base calls its partner in there: that is no end elsewhere."""
        called = {call.node for call in raw.calls}
        around = f"{doubt.raw.path}." if doubt.raw.path else ""
        held = [
            node
            for node in self._tree.nodes[1:]
            if node.path.startswith(around) and node.index not in called and not used_by_others(node, raw)
        ]
        wanted = {self._partners.get(node.index) for node in held if node.parameters or node.children}
        parents = parents_of(self._base.calls)
        inside = (call for call in self._base.calls if call.node in wanted)
        return any(doubt.base.index in outward(call.parent, parents) for call in inside)


def cut_short(
    doubts: Sequence[Fault], base: StepTrace, raw: StepTrace, kept: Kept, likes: Mapping[int, Sequence[Fault]]
) -> frozenset[int]:
    """The first raw call to end among these that ends too early, and whose ``likes`` all do, with others of its two
    classes that do; both ran with their ops watched. Of several around each other that return the very same in both
    models, the innermost: the others' code hands on."""

    def short(one: Fault) -> bool:
        return one.found is not None and _cut_short(one, base, raw, kept)

    for one in doubts:
        beside = likes.get(one.raw.index, ())
        if not short(one) or not all(map(short, beside)):
            continue
        returned = _origins(one)
        inner = next((two for two in doubts if returned is not None and _origins(two) == returned), one)
        others = [two for two in doubts if two is not inner and _kinds(two) == _kinds(inner) and short(two)]
        return frozenset(found.raw.index for found in (inner, *(beside if inner is one else ()), *others))
    return frozenset()


def _origins(doubt: Fault) -> tuple[int, int] | None:
    """Which tensors of base and of raw a doubt is about."""
    base, raw = output_of(doubt) or (None, None)
    return None if base is None or raw is None else (base.origin, raw.origin)


def _kinds(doubt: Fault) -> tuple[str, str]:
    return doubt.base.kind, doubt.raw.kind


def as_a_rule(
    doubts: Iterable[Fault], likes: Callable[[Fault], Sequence[Fault]], ending_elsewhere: frozenset[int]
) -> dict[int, Sequence[Fault]]:
    """Those whose likes all end elsewhere, as far as there are any, with these: where somebody goes on from the likes,
    what is missing after the one was left out by who calls it, as what comes after the others is done there."""
    found = {one.raw.index: likes(one) for one in doubts}
    return {
        index: others
        for index, others in found.items()
        if others and all(like.raw.index in ending_elsewhere for like in others)
    }


def _cut_short(doubt: Fault, base: StepTrace, raw: StepTrace, kept: Kept) -> bool:
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
    for array in kept(doubt.raw):
        at_hand.add(array)
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
