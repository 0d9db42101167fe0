"""A module whose own code goes wrong runs again on base's tensors, its ops watched: which op it is, and which line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from padiff.align import ACTIVATIONS, FREE_LAYOUT, MOVING, OWN_LAYOUT, PASSIVE, pair_slots, same_thing
from padiff.compare.layouts import agree_in_any_layout
from padiff.diagnose import divergences_of
from padiff.diagnose.causes import causes_of_op, merged
from padiff.diagnose.divergence import source_lines
from padiff.diagnose.likes import Event, Inside, Likes, unknown
from padiff.diagnose.own_backward import first_op_in_backward
from padiff.diagnose.own_code import LAYERS, Culprit, first_op
from padiff.engine.explaining.given_masks import given_wrongly, kept_back, left_without
from padiff.engine.explaining.merely_reshaped import given_to_reshape
from padiff.engine.explaining.returned_besides import returned_wrong
from padiff.engine.explaining.scenes import Scenes
from padiff.engine.explaining.watched_again import (
    OpNoise,
    Place,
    Seen,
    Watched,
    has_own_code,
    looking_into_borders,
    ops_of,
    own_calls,
    place_of,
    with_a_partner,
    with_code,
)
from padiff.engine.fed.calls_met import outward
from padiff.engine.fed.silent import stops
from padiff.engine.free.partners import alters
from padiff.records import (
    FIRST_OP,
    Array,
    Call,
    Cause,
    Divergence,
    Fault,
    ModuleTree,
    OpPair,
    Slot,
    SourceLine,
    Tolerance,
)

SURE = 0.93
"""From this confidence on, a cause needs no second opinion."""

Lines = tuple[SourceLine, ...]
Key = tuple[int, int, int]
"""What orders ops and calls: how many calls had begun; 0 for an op, 1 for the call itself; number of the op."""


def with_op(
    divergence: Divergence,
    fault: Fault,
    scenes: Scenes,
    watched: Watched,
    further: Sequence[Fault] = (),
    instead: Callable[[Fault], Divergence] | None = None,
) -> Divergence:
    """The divergence with the op it starts with, where the module has code of its own that tells; and with the causes
    that the op tells, where nothing sure is known yet. Where one of ``further`` faults is why the op goes wrong,
    ``instead`` tells of that."""
    reshaped = given_to_reshape(fault, scenes)
    if reshaped is not None and instead is not None:
        return instead(reshaped)
    called, fault = fault.raw, with_a_partner(fault, scenes)
    giver = kept_back(fault, scenes, called)
    if giver is not None and giver.after is not None:
        return _given_by(giver, divergence, f"{giver.after.path} takes a mask and is given none, base's is")
    scenes = looking_into_borders(scenes, fault)
    partner = scenes.pairs.get(fault.raw.index)
    if partner is not None and any(slot.tensor < 0 for slot in partner.inputs):
        return divergence  # a part of what base's code did at once: none of its tensors is one of raw's
    culprit = _culprit(fault, scenes, watched)
    if culprit is None or not culprit.found:
        return divergence
    wrong = returned_wrong(culprit, further, fault) if fault.phase == "forward" else None
    if wrong is not None and instead is not None:
        return instead(wrong)
    named = _named(divergence, culprit, _coded(culprit, fault, scenes))
    if fault.phase == "backward" and called.index not in scenes.pairs and stops(called):
        pass  # that it stops gradients is its own doing, whatever op goes on from there
    elif culprit.raw is not None and culprit.raw.call.is_op:
        if not (
            _goes_on_for(culprit.raw.call, culprit.base, scenes) or _is_given_too_little(culprit, divergence, scenes)
        ):
            named = _at(named, culprit.raw.call.parent, scenes)
    elif fault.phase == "forward" and culprit.raw is not None:
        call = culprit.raw.call
        if _passes_on(call, scenes) if culprit.base is None else _stands_for(call, culprit.base, scenes):
            named = _at(named, call.index, scenes)  # it does wrong what base's own code does rightly, or does not do
    elif fault.phase == "forward" and _goes_on_alone(culprit):
        assert culprit.raw_next is not None
        named = _at(named, culprit.raw_next.call.parent, scenes)
    if fault.phase == "forward" and named.raw_call == divergence.raw_call and _comes_before(culprit, named, scenes):
        named = _at_caller(named, scenes)
    sure = not culprit.stopped and any(cause.confidence >= SURE for cause in divergence.causes)
    told = named if sure else replace(named, causes=merged((*divergence.causes, *causes_of_op(culprit))))
    text = f"{divergence.raw_path} is given a mask that leaves out other places than the one that base's makes itself"
    giver = given_wrongly(culprit, fault, scenes)
    if giver is None:
        text = f"{divergence.raw_path} takes a mask and is given none, base's is"
        giver = left_without(culprit, fault, scenes, called)
    return told if giver is None else _given_by(giver, told, text)


def _given_by(giver: Fault, told: Divergence, text: str) -> Divergence:
    """The divergence at who gives a module a wrong mask, or none."""
    ((other, _),) = divergences_of([giver], (), [(giver.base, giver.raw)])
    masks = tuple(cause for cause in told.causes if cause.name.startswith("mask"))
    return replace(other, comparison=told.comparison, causes=masks or (Cause("mask", text, SURE),))


def _coded(culprit: Culprit, fault: Fault, scenes: Scenes) -> tuple[bool, bool]:
    """Which side's module has code of its own, or one inside it in whose code the op is: a framework's own module may
    be around the user's (``torch.compile``)."""
    found = list(with_code(fault, scenes))
    sides = (scenes.job.base, scenes.reference.trace, culprit.base), (scenes.job.raw, scenes.found, culprit.raw)
    for side, (live, trace, event) in enumerate(sides):
        nodes = (call.node for call in trace.calls if event is not None and call.index == event.call.parent)
        found[side] = found[side] or any(has_own_code(live, node) for node in nodes)
    return found[0], found[1]


def _passes_on(call: Call, scenes: Scenes) -> bool:
    """Whether a module of raw's should return what it is given, as it is set now: calling it is nobody's mistake."""
    live = scenes.job.raw
    node, module = live.tree.nodes[call.node], live.modules[call.node]
    return node.layer == "identity" or (node.layer in PASSIVE and not live.adapter.is_training(module))


def _stands_for(call: Call, base: Event, scenes: Scenes) -> bool:
    """Whether a module of raw's may be meant to do what an op of base's does: an activation does not normalise, and a
    dropout that does nothing does nothing wrong. Where they are called in its place, the code around leaves it out."""
    if not base.call.is_op or (_has_weights(base) and _without_weights(call, scenes)):
        return False
    return alters(call) or not _passes_on(call, scenes)


def _goes_on_for(op: Call, base: Event | None, scenes: Scenes) -> bool:
    """Whether an op is all that a layer does which cannot be meant to do what base's op does."""
    owner = next((call for call in scenes.found.calls if call.index == op.parent), None)
    if owner is None or base is None or owner.index in scenes.pairs:
        return False
    return _has_weights(base) and _without_weights(owner, scenes)


def _is_given_too_little(culprit: Culprit, divergence: Divergence, scenes: Scenes) -> bool:
    """Whether an op does what base's does, to something that base's is not given and that raw makes nowhere: in the
    code around a place that base has none for, which returned it; or in a module inside, which was given it."""
    base, raw, likes, place = culprit.base, culprit.raw, culprit.likes, divergence.raw_call
    if base is None or raw is None or likes is None or base.thing != raw.thing or not base.call.is_op:
        return False
    if any(likes.like(0, slot.tensor) for slot in base.call.inputs[:1]):
        return False
    parents = {call.index: call.parent for call in scenes.found.calls}
    if raw.call.parent in _around(place, parents):
        return place not in scenes.pairs
    beside = (event.call for event in likes.sides[1].inside.events if event.call.parent == raw.call.parent)
    own = {slot.tensor for call in beside for slot in call.outputs}
    return place in _around(raw.call.parent, parents) and own.isdisjoint(slot.tensor for slot in raw.call.inputs[:1])


def _around(index: int, parents: Mapping[int, int]) -> set[int]:
    """The calls around one."""
    return outward(parents[index], parents) if index in parents else set()


def _without_weights(call: Call, scenes: Scenes) -> bool:
    """Whether a module of raw's is an activation, or another layer of the framework's that holds nothing: a pooling."""
    live = scenes.job.raw
    node = live.tree.nodes[call.node]
    bare = not (node.children or node.parameters or has_own_code(live, call.node))
    return bare or node.layer in ACTIVATIONS


def _has_weights(event: Event) -> bool:
    return event.thing in LAYERS or event.thing.endswith("_norm")


def _is_called_on_its_own(call: Call, scenes: Scenes) -> bool:
    """Whether a module is given what it has just returned, in this call or in the next: that is its caller's doing."""
    calls = [one for one in scenes.found.calls if (one.node, one.parent) == (call.node, call.parent)]
    made = {slot.origin: one.index for one in calls for slot in one.outputs}
    pairs = {(made[slot.origin], one.index) for one in calls for slot in one.inputs if slot.origin in made}
    return any(first < second and call.index in (first, second) for first, second in pairs)


def _goes_on_alone(culprit: Culprit) -> bool:
    """Whether raw leaves out an op, and goes on inside of a call with nothing but what it has made there: of what a
    call was given, its caller may have left it out, and from what base has as well, its caller may go on wrongly."""
    after = culprit.raw_next
    if culprit.raw is not None or after is None or not after.call.is_op or culprit.likes is None:
        return False
    if _has_like(culprit.likes, 1, after):
        return False
    inside = culprit.likes.sides[1].inside
    own, others = set[int](), {slot.tensor for slot in inside.given}
    for event in inside.events:
        made = own if event.call.parent == after.call.parent else others
        made.update(slot.tensor for slot in event.call.outputs)
    given = {slot.tensor for slot in after.call.inputs}
    return bool(given & own) and not given & others


def _comes_before(culprit: Culprit, divergence: Divergence, scenes: Scenes) -> bool:
    """Whether the place is a layer of the framework's that base has none for, and something is missing before it, or
    too much: it does what it always does."""
    place = divergence.raw_call
    own = [call for call in scenes.found.calls if place in (call.index, call.parent)]
    if len(own) != 1 or place in scenes.pairs or has_own_code(scenes.job.raw, own[0].node):
        return False
    if culprit.raw is None:
        after = culprit.raw_next
        return after is not None and place == (after.call.parent if after.call.is_op else after.call.index)
    return culprit.base is None and not culprit.raw.call.is_op and culprit.raw.call.index < place


def _at_caller(divergence: Divergence, scenes: Scenes) -> Divergence:
    calls = {call.index: call for call in scenes.found.calls}
    caller = calls.get(calls[divergence.raw_call].parent)
    if caller is None:
        return divergence
    return replace(divergence, raw_path=caller.path, raw_kind=caller.kind, raw_call=caller.index)


def _at(divergence: Divergence, index: int, scenes: Scenes) -> Divergence:
    """At the module in whose code raw's op is, where that is one inside without a partner, or around such a one. One
    that has a partner and is called once more is none: who calls it is to blame."""
    calls = {call.index: call for call in scenes.found.calls}
    known = _known(scenes)[1]
    above = index
    while above in calls and above not in scenes.pairs and above != divergence.raw_call:
        index = calls[above].parent if calls[above].node in known else index
        above = calls[above].parent
    while index in calls and index not in scenes.pairs and _is_called_on_its_own(calls[index], scenes):
        index = calls[index].parent
    call = calls.get(index)
    if call is None or index == divergence.raw_call or (index in scenes.pairs and divergence.raw_call in scenes.pairs):
        return divergence
    note = divergence.note.replace("the module's own code", f"the code of {divergence.raw_path or 'the model itself'}")
    return replace(divergence, raw_path=call.path, raw_kind=call.kind, raw_call=call.index, note=note)


def _culprit(fault: Fault, scenes: Scenes, watched: Watched) -> Culprit | None:
    place = place_of(fault, scenes)
    if place is None:
        return None
    culprit = _culprit_at(place, fault, scenes, watched)
    if place.backward and (culprit is None or not culprit.found) and watched.forget(place):
        return _culprit_at(place, fault, scenes, watched)
    return culprit


def _culprit_at(place: Place, fault: Fault, scenes: Scenes, watched: Watched) -> Culprit | None:
    backward, wanted, coded = place.backward, place.inside, with_code(fault, scenes)
    base, raw = watched.at(place)
    if backward and scenes.recorded is not None and not (base.gradients and raw.gradients):
        return None
    if base.call is None or raw.call is None:
        return None
    suspects = _accused(fault, scenes, base, raw)
    if not suspects:
        return None
    told = _telling(fault, scenes, base, raw)
    across = scenes.job.base.adapter.name != scenes.job.raw.adapter.name
    free = FREE_LAYOUT | OWN_LAYOUT if across else FREE_LAYOUT
    sides = [
        _events(seen, inside, tree, _alone(scenes, side), None if call is None or backward else _end(seen, call), free)
        for side, (seen, inside, tree, call) in enumerate(
            zip((base, raw), wanted, (scenes.job.base.tree, scenes.job.raw.tree), told, strict=True)
        )
    ]
    if not any(not event.child for events in sides for event in events):
        return None
    if not all(code or any(not one.child for one in events) for code, events in zip(coded, sides, strict=True)):
        return None  # a layer of the framework's that was not seen into: what the other side does first says nothing
    noise = (
        OpNoise(partial(watched.noise_at, place), ops_of(base)).of
        if scenes.recorded is None
        else scenes.recorded.noise.get
    )
    narrow = scenes.job.tolerance.narrow
    for accused in suspects:
        insides = [
            Inside(
                tuple(events),
                tensor,
                seen.call.inputs,
                seen.gradients,
                noise if side == 0 else unknown,
                seen.call.path,
                narrow,
            )
            for side, (events, tensor, seen) in enumerate(zip(sides, accused, (base, raw), strict=True))
            if seen.call is not None
        ]
        if backward:
            sent = fault.comparison.role == "input" and not fault.between
            return first_op_in_backward(insides[0], insides[1], partial(_gradients_agree, narrow), sent=sent)
        culprit = first_op(insides[0], insides[1])
        if culprit.found:
            return _of_a_child(culprit, (base, raw), _known(scenes))
    return culprit


def _known(scenes: Scenes) -> tuple[set[int], set[int]]:
    """Modules of both sides that were called as the partner of another."""
    base = {call.node for call in scenes.pairs.values()}
    return base, {call.node for call in scenes.found.calls if call.index in scenes.pairs}


def _of_a_child(culprit: Culprit, seen: tuple[Seen, Seen], known: tuple[set[int], set[int]]) -> Culprit:
    """An op that one side lacks, in the code of a child that it does not call at all, or not once more: the child is
    what it lacks."""
    side = 0 if culprit.raw is None else 1
    event = (culprit.base, culprit.raw)[side]
    if event is None or culprit.likes is None or (culprit.base is not None and culprit.raw is not None):
        return culprit
    calls = {call.index: call for call in seen[side].children}
    around: list[Call] = []
    index = event.call.parent if event.call.is_op else event.call.index
    while index in calls:
        around.append(calls[index])
        index = calls[index].parent
    if not around:
        return culprit
    again = [call for call in around if call.node in known[side]]
    child = (again or around)[-1]
    events = culprit.likes.sides[side].inside.events
    inside = [one for one in events if not one.moving and _lies_in(one.call, child.index, calls)]
    if not again and any(one.child or _has_like(culprit.likes, side, one) for one in inside):
        return culprit  # the other side does a part of it
    whole = replace(event, call=child, thing=child.kind.lower(), part="")
    return replace(culprit, base=whole) if side == 0 else replace(culprit, raw=whole)


def _has_like(likes: Likes, side: int, event: Event) -> bool:
    return any(likes.like(side, slot.tensor) for slot in event.call.outputs)


def _lies_in(call: Call, index: int, calls: Mapping[int, Call]) -> bool:
    own = call.parent if call.is_op else call.index
    while own != index and own in calls:
        own = calls[own].parent
    return own == index


def _gradients_agree(narrow: float, base: Array, raw: Array) -> bool:
    return agree_in_any_layout(base, raw, Tolerance(mode="auto", sums=True, narrow=narrow), gradients=True)


def _alone(scenes: Scenes, side: int) -> set[int]:
    """Calls of a side that have a partner."""
    return {one.index for one in scenes.pairs.values()} if side == 0 else set(scenes.pairs)


def _events(
    seen: Seen, inside: frozenset[int], tree: ModuleTree, alone: set[int], end: Key | None, free: frozenset[str]
) -> list[Event]:
    """Ops and children in the order in which they came, up to where the accused tensor is told on; ``free`` are the
    ops that order axes as they like."""
    found: list[tuple[Key, Event]] = []
    for op in ops_of(seen):
        thing = same_thing(op.kind)
        found.append(((op.begun, 0, op.index), Event(op, thing, thing in MOVING, thing in free)))
    around = {call.parent for call in seen.children}
    for call in seen.children:
        if call.index in inside and (call.ops or call.index in around):
            continue  # what happens in it stands for it
        node = tree.nodes[call.node]
        event = Event(call, node.layer or node.kind.lower(), child=call.index in alone)
        found.append(((call.index, 1, 0), event))
    return [event for key, event in sorted(found, key=lambda one: one[0]) if end is None or key < end]


def _telling(fault: Fault, scenes: Scenes, base: Seen, raw: Seen) -> tuple[Call | None, Call | None]:
    """The tag or the child that is given the accused tensor, on each side; None where the module returns it."""
    if "@" in fault.comparison.raw_path:
        wrong = fault.comparison
        ours, theirs = scenes.reference.trace.calls, scenes.found.calls
        return _tag(base, ours, wrong.base_path, wrong.base_call), _tag(raw, theirs, wrong.raw_path, wrong.raw_call)
    given = fault.phase == "forward" and fault.comparison.role == "input"
    if given or (fault.between and fault.after is not None and fault.after.index != fault.raw.index):
        child = next((call for call in raw.children if call.index == _direct(fault, scenes)), None)
        partner = None if child is None else scenes.pairs.get(child.index)
        other = None if partner is None else next((c for c in base.children if c.index == partner.index), None)
        return other, child
    return None, None


def _end(seen: Seen, call: Call) -> Key:
    """The place of a tag or a child among ops and children."""
    if not call.tag:
        return (call.index, 1, 0)
    owner = next(one for one in (*seen.children, seen.call) if one is not None and call in one.ops)
    later = owner.ops[owner.ops.index(call) + 1 :]
    following = next((op.index for op in later if not op.tag), 2 * FIRST_OP)
    return (call.begun, 0, following)


def _accused(fault: Fault, scenes: Scenes, base: Seen, raw: Seen) -> list[tuple[int, int]]:
    """Two tensors that differ, by their numbers in these runs, the one that was accused first: a mask in another form
    may stand before what is really another."""
    assert base.call is not None and raw.call is not None
    told = _telling(fault, scenes, base, raw)
    given = fault.phase == "forward" and (told[1] is None or not told[1].tag)
    if told == (None, None):
        left, right = base.call.outputs, raw.call.outputs
    elif told[0] is None or told[1] is None:
        return []
    else:
        left, right = (call.inputs if given else call.outputs for call in (told[0], told[1]))
    pairs, _, _ = pair_slots(left, right, loosely=False)
    name = fault.comparison.name
    told_on = [pair for pair in pairs if (pair[1].name or pair[0].name) == name]
    narrow = scenes.job.tolerance.narrow
    found = [pair for pair in pairs if pair not in told_on and _differs(*pair, narrow)]
    if found and told_on and not _differs(*told_on[0], narrow):
        found, told_on = [*found, *told_on], []
    return [(one.tensor, other.tensor) for one, other in [*told_on, *found] or pairs[:1]]


def _differs(one: Slot, other: Slot, narrow: float) -> bool:
    if one.value.overwritten or other.value.overwritten:
        return False
    return not agree_in_any_layout(one.value.numpy(), other.value.numpy(), Tolerance(mode="auto", narrow=narrow))


def _direct(fault: Fault, scenes: Scenes) -> int:
    """The child of the module, or of those inside without partner, in which the call lies that told."""
    parents = {call.index: call.parent for call in scenes.found.calls}
    own = own_calls(scenes.found.calls, fault.raw.index, set(scenes.pairs))
    after = -1 if fault.after is None else fault.after.index
    index = fault.comparison.raw_call if fault.comparison.raw_call in parents else after
    while index in parents and parents[index] not in own:
        index = parents[index]
    return index


def _tag(seen: Seen, calls: Sequence[Call], path: str, index: int) -> Call | None:
    """The tag that a comparison is about, as it was seen: one name may be given many times."""
    name = path.rpartition("@")[2]
    told = next((op.occurrence for call in calls for op in call.ops if op.tag and op.index == index), None)
    inside = [*seen.children, *([seen.call] if seen.call is not None else [])]
    tags = [op for call in inside for op in call.ops if op.tag and op.path.rpartition("@")[2] == name]
    return next((tag for tag in tags if tag.occurrence == told), tags[0] if tags else None)


def _named(divergence: Divergence, culprit: Culprit, coded: tuple[bool, bool]) -> Divergence:
    """With the lines of both sides; of a framework's own layer, with the one that calls it."""
    stacks: list[Lines] = []
    for side, (event, following) in enumerate(((culprit.base, culprit.base_next), (culprit.raw, culprit.raw_next))):
        place = event or following
        told = place is not None and (coded[side] or not divergence.source[side])
        stacks.append(source_lines(place.call.stack) if place is not None and told else divergence.source[side])
    pair = OpPair(
        "" if culprit.base is None else culprit.base.call.kind,
        "" if culprit.raw is None else culprit.raw.call.kind,
        stacks[0][-1] if stacks[0] else None,
        stacks[1][-1] if stacks[1] else None,
        "" if culprit.base is None else culprit.base.part,
        "" if culprit.raw is None else culprit.raw.part,
    )
    return replace(divergence, op=pair, source=(stacks[0], stacks[1]))
