"""A module runs again, on base's tensors or its own, its ops watched; and how far rounding moves what they return."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace

from padiff.capture.feeding import Feed, Feeder
from padiff.capture.jitter import Jitter
from padiff.capture.ops import WantedOps
from padiff.capture.perturb import perturbed
from padiff.capture.session import Session
from padiff.compare.measure import rms_gap
from padiff.engine.allowance import FORWARD, WHOLE
from padiff.engine.explaining.scenes import Reached, Scenes, WatchedCode
from padiff.engine.fed.beside import Itself
from padiff.engine.fed.local import LocalRun
from padiff.frameworks.compiled import is_opaque
from padiff.frameworks.lookup import has_code
from padiff.frameworks.tree import LiveTree
from padiff.records import Call, Fault, Slot, StepTrace, Tolerance, Value


@dataclass
class Seen:
    """What one side's run of the module showed."""

    call: Call | None = None
    children: list[Call] = field(default_factory=list)
    """Calls inside, of those whose parents' code was watched."""
    gradients: Mapping[int, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """A call of base and one of raw into whose code one looks."""

    calls: tuple[int, int]
    inside: tuple[frozenset[int], frozenset[int]]
    """The calls whose ops are watched, on each side."""
    layers: tuple[bool, bool]
    """Whether the ops of the framework's own layers are, too."""
    backward: bool


def with_a_partner(fault: Fault, scenes: Scenes) -> Fault:
    """A fault in a call without partner, as one of the call around it that has one: its code counts as that one's."""
    calls = {call.index: call for call in scenes.found.calls}
    raw = fault.raw
    while raw.index not in scenes.pairs and raw.parent in calls:
        raw = calls[raw.parent]
    return fault if raw is fault.raw else replace(fault, raw=raw)


def looking_into_borders(scenes: Scenes, fault: Fault) -> Scenes:
    """Without the pairs inside a call that return more or less than each other of as much: they end at different
    places, and what one of them does the other's caller does."""
    inside = [call for call in scenes.found.calls if call.parent == fault.raw.index and call.index in scenes.pairs]
    elsewhere = {call.index for call in inside if _sizes_differ(scenes.pairs[call.index], call)}
    if not elsewhere:
        return scenes
    return replace(scenes, pairs={index: base for index, base in scenes.pairs.items() if index not in elsewhere})


def _sizes_differ(base: Call, raw: Call) -> bool:
    given, returned = (
        [{math.prod(slot.value.shape) for slot in slots} for slots in pair]
        for pair in ((base.inputs[:1], raw.inputs[:1]), (base.outputs, raw.outputs))
    )
    return given[0] == given[1] and all(returned) and not returned[0] & returned[1]


def place_of(fault: Fault, scenes: Scenes) -> Place | None:
    """Where to look for the op of a fault; None where no code can be looked into."""
    partner = scenes.pairs.get(fault.raw.index)
    if partner is None or (scenes.feeder is None and scenes.recorded is None):
        return None
    lives, nodes = (scenes.job.base, scenes.job.raw), (partner.node, fault.raw.node)
    if not any(with_code(fault, scenes)) or any(map(is_opaque, lives, nodes)):
        return None
    calls = (scenes.reference.trace.calls, scenes.found.calls)
    paired = {one.index for one in scenes.pairs.values()}, set(scenes.pairs)
    return place_at((partner.index, fault.raw.index), lives, calls, paired, backward=fault.phase == "backward")


def place_at(
    indices: tuple[int, int],
    lives: tuple[LiveTree, LiveTree],
    calls: tuple[tuple[Call, ...], tuple[Call, ...]],
    paired: tuple[set[int], set[int]],
    *,
    backward: bool,
) -> Place:
    """The place of two calls of base and raw, of all that they called and of those among it that have a partner."""
    base, raw = (own_calls(calls[side], indices[side], paired[side]) for side in (0, 1))
    layers = hides(lives[0], calls[0], base), hides(lives[1], calls[1], raw)
    return Place(indices, (base, raw), layers, backward)


class Watched:
    """What the code of faulty places does, on base's tensors: both sides run once for all that one run can show."""

    def __init__(self, scenes: Scenes, faults: Iterable[Fault] = ()) -> None:
        """``faults`` are those that will be asked for."""
        self._scenes = scenes
        places = (
            place_of(fault, looking_into_borders(scenes, fault))
            for fault in (with_a_partner(fault, scenes) for fault in faults)
        )
        self._expected = [place for place in places if place is not None]
        self._seen: dict[Place, tuple[Seen, Seen]] = {}
        self._noise: dict[Place, Mapping[int, float]] = {}

    def at(self, place: Place) -> tuple[Seen, Seen]:
        """What was seen of both sides' code there; nothing where that is not worth a run of each."""
        scenes = self._scenes
        if scenes.recorded is not None:
            base, raw = map(seen_in, scenes.recorded.traces, place.calls, place.inside)
            return base, raw
        if place not in self._seen and scenes.watched is not None and shows(scenes.watched, place):
            base, raw = map(seen_in, scenes.watched.traces, place.calls, place.inside)
            self._seen[place] = base, raw
            if scenes.watched.shaken is not None:
                shaken = seen_in(scenes.watched.shaken, place.calls[0], place.inside[0])
                self._noise[place] = _moved(base, shaken)
        if place not in self._seen and not self._may_run(place.backward):
            return Seen(), Seen()
        if place not in self._seen:
            together = [one for one in self._expected if _as_one(one, place)]
            self._expected = [one for one in self._expected if one not in together]
            try:
                self._run([place, *together])
            except Exception:  # the model's own, maybe beyond this place
                self._run([place])
        return self._seen[place]

    def forget(self, place: Place) -> bool:
        """Whether a place was seen in a run that was made for something else: from now on it is seen in one of its
        own. What was copied there to tell calls' shares of a gradient apart may hide whose op sends back what."""
        if self._scenes.watched is None or not shows(self._scenes.watched, place) or not self._may_run(place.backward):
            return False
        self._scenes = replace(self._scenes, watched=None)
        self._seen.pop(place, None)
        return True

    def noise_at(self, place: Place) -> Mapping[int, float]:
        """How far rounding moves what base's ops return there; one run tells it of all places that have been seen."""
        if place not in self._noise and not self._scenes.allowance.covers(base=FORWARD):
            return {}
        if place not in self._noise:
            seen = {one: base for one, (base, _) in self._seen.items() if _as_one(one, place)}
            self._noise |= noise_inside(self._scenes, seen)
        return self._noise[place]

    def _may_run(self, backward: bool) -> bool:
        much = WHOLE if backward else FORWARD
        return self._scenes.allowance.covers(base=much, raw=much)

    def _run(self, places: Sequence[Place]) -> None:
        assert self._scenes.feeder is not None
        base = run_watched(self._scenes, 0, None, places)
        raw = run_watched(self._scenes, 1, self._scenes.feeder(places[0].backward), places)
        self._seen |= {place: (base[place], raw[place]) for place in places}


def shows(watched: WatchedCode, place: Place) -> bool:
    """Whether a run that is over shows all of a place."""
    return (
        (watched.backward or not place.backward)
        and place.layers == watched.layers
        and all(inside <= calls for inside, calls in zip(place.inside, watched.calls, strict=True))
    )


def _as_one(one: Place, other: Place) -> bool:
    """Whether one run shows both."""
    return (one.layers, one.backward) == (other.layers, other.backward)


class _Watching:
    """Feeds as another feeder does, keeps the calls inside some, and ends the run where nothing more is needed."""

    def __init__(self, feeder: Feeder | None, side: int, places: Iterable[Place]) -> None:
        self.seen = {place: Seen() for place in places}
        self._feeder, self._side = feeder, side

    def feed(self, call: Call) -> Mapping[int, Feed]:
        return {} if self._feeder is None else self._feeder.feed(call)

    def hand_on(self, call: Call) -> Mapping[int, Feed]:
        for place, seen in self.seen.items():
            if call.parent in place.inside[self._side]:
                seen.children.append(call)
            if call.index == place.calls[self._side]:
                seen.call = call
        if all(seen.call is not None and not place.backward for place, seen in self.seen.items()):
            raise Reached
        return {} if self._feeder is None else self._feeder.hand_on(call)

    def tagged(self, call: Call) -> Mapping[int, Feed]:
        return {} if self._feeder is None else self._feeder.tagged(call)


def run_watched(
    scenes: Scenes,
    side: int,
    feeder: Feeder | None,
    places: Sequence[Place],
    within: AbstractContextManager[None] | None = None,
) -> dict[Place, Seen]:
    """One side runs again, up to the end of the last of some calls where backward is not asked for. What is to be
    otherwise ``within`` is so once buffers are put back."""
    session: Session = (scenes.base, scenes.raw)[side]
    job, step = scenes.job, scenes.reference.trace.step
    backward, layers = places[0].backward, places[0].layers[side]
    inside = frozenset[int]().union(*(place.inside[side] for place in places))
    watching = _Watching(feeder, side, places)
    with session.again(), within or nullcontext(), suppress(Reached):
        trace = session.run(
            step,
            job.arguments()[side],
            loss_fn=job.losses[side],
            backward=backward,
            feeder=watching,
            hooks=backward,
            ops=WantedOps(inside, stacks=True, options=True, layers=layers or job.ops == "all", functions=backward),
        )
        for seen in watching.seen.values():
            seen.gradients = trace.gradients
    return watching.seen


def seen_in(trace: StepTrace, index: int, inside: frozenset[int]) -> Seen:
    """What a run showed that is over."""
    calls = {one.index: one for one in trace.calls if one.index == index or one.parent in inside}
    if trace.copies:
        calls = {number: _with_originals(call, trace.copies) for number, call in calls.items()}
    children = [calls[one.index] for one in trace.calls if one.parent in inside]
    return Seen(calls.get(index), children, trace.gradients)


def _with_originals(call: Call, copies: Mapping[int, int]) -> Call:
    """With the tensors of which its own were copies, also in its ops: what was made of one is made of the other."""

    def originals(slots: tuple[Slot, ...]) -> tuple[Slot, ...]:
        return tuple(replace(slot, tensor=copies.get(slot.tensor, slot.tensor)) for slot in slots)

    ops = tuple(_with_originals(op, copies) for op in call.ops)
    return replace(call, inputs=originals(call.inputs), outputs=originals(call.outputs), ops=ops)


def noise_inside(scenes: Scenes, seen: Mapping[Place, Seen]) -> dict[Place, dict[int, float]]:
    """How far rounding moves what base's ops return: they run again, in the same order, on shaken tensors."""
    jitter = Jitter(scenes.job.tolerance.narrow)
    feeder = LocalRun(
        scenes.reference, Itself(scenes.reference.trace), Tolerance(mode="auto"), backward=False, change=jitter
    )
    forward = {place: replace(place, backward=False) for place in seen}
    try:
        shaken = run_watched(scenes, 0, feeder, list(forward.values()), perturbed(scenes.base.live, jitter, {}))
    except Exception:  # the model's own: it ran through on what it was really given
        return {place: {} for place in seen}
    return {place: _moved(base, shaken[forward[place]]) for place, base in seen.items()}


def _moved(base: Seen, shaken: Seen) -> dict[int, float]:
    found: dict[int, float] = {}
    for one, other in zip(ops_of(base), ops_of(shaken), strict=False):
        for mine, moved in zip(one.outputs, other.outputs, strict=False):
            if one.kind == other.kind and mine.value.shape == moved.value.shape and not mine.value.overwritten:
                found[mine.tensor] = rms_gap(mine.value.numpy(), moved.value.numpy())
    return found


class OpNoise:
    """How far rounding moves what ops return: found when somebody asks, at the cost of a run."""

    def __init__(self, find: Callable[[], Mapping[int, float]], ops: list[Call]) -> None:
        self._find = find
        self._found: Mapping[int, float] | None = None
        self._tensors = {slot.tensor for op in ops for slot in op.outputs}

    def of(self, tensor: int) -> float | None:
        """None for what no op of base's returned."""
        if tensor not in self._tensors:
            return None
        if self._found is None:
            self._found = self._find()
        return self._found.get(tensor)


def ops_of(seen: Seen) -> list[Call]:
    calls = [*seen.children, *([seen.call] if seen.call is not None else [])]
    return [op for call in sorted(calls, key=lambda call: call.index) for op in call.ops if not op.tag]


def own_calls(calls: tuple[Call, ...], index: int, paired: set[int]) -> frozenset[int]:
    """The call, and those inside that have no partner: their code counts as its own."""
    found = {index}
    for call in sorted(calls, key=lambda call: call.index):
        if call.parent in found and call.index not in paired:
            found.add(call.index)
    return frozenset(found)


def with_code(fault: Fault, scenes: Scenes) -> tuple[bool, bool]:
    """Which side's module has code of its own; the framework's is looked into only beside such a one."""
    partner = scenes.pairs.get(fault.raw.index)
    base = partner is not None and has_own_code(scenes.job.base, partner.node)
    return base, has_own_code(scenes.job.raw, fault.raw.node)


def has_own_code(live: LiveTree, node: int) -> bool:
    """Whether a module's class is not the framework's own."""
    return has_code(live.adapter, live.modules[node])


def hides(live: LiveTree, calls: tuple[Call, ...], inside: frozenset[int]) -> bool:
    """Whether code that counts here is a framework's: that of the module itself, or of a larger one inside that has no
    partner, such as an attention."""
    first = min(inside)
    nodes = {call.node for call in calls if call.index in inside and (call.index == first or _holds(live, call.node))}
    return not all(has_own_code(live, node) for node in nodes)


def _holds(live: LiveTree, node: int) -> bool:
    return bool(live.tree.nodes[node].children)
