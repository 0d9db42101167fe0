"""A module runs again, on base's tensors or its own, its ops watched; and how far rounding moves what they return."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from padiff.capture.feeding import Feed, Feeder
from padiff.capture.ops import WantedOps
from padiff.capture.perturb import Jitter, perturbed
from padiff.capture.session import Session
from padiff.compare.measure import rms_gap
from padiff.engine.beside import Itself
from padiff.engine.local import LocalRun
from padiff.engine.scenes import Reached, Scenes
from padiff.frameworks.lookup import has_code
from padiff.frameworks.tree import LiveTree
from padiff.records import Call, StepTrace, Tolerance, Value


@dataclass
class Seen:
    """What one side's run of the module showed."""

    call: Call | None = None
    children: list[Call] = field(default_factory=list)
    """Calls inside, of those whose parents' code was watched."""
    gradients: Mapping[int, Value] = field(default_factory=dict)


class _Watching:
    """Feeds as another feeder does, keeps the calls inside one, and ends the run where nothing more is needed."""

    def __init__(self, feeder: Feeder | None, index: int, inside: frozenset[int], *, stop: bool) -> None:
        self.seen = Seen()
        self._feeder, self._index, self._inside, self._stop = feeder, index, inside, stop

    def feed(self, call: Call) -> Mapping[int, Feed]:
        return {} if self._feeder is None else self._feeder.feed(call)

    def hand_on(self, call: Call) -> Mapping[int, Feed]:
        if call.parent in self._inside:
            self.seen.children.append(call)
        if call.index == self._index:
            self.seen.call = call
            if self._stop:
                raise Reached
        return {} if self._feeder is None else self._feeder.hand_on(call)

    def tagged(self, call: Call) -> Mapping[int, Feed]:
        return {} if self._feeder is None else self._feeder.tagged(call)


def run_watched(
    scenes: Scenes,
    side: int,
    feeder: Feeder | None,
    index: int,
    inside: frozenset[int],
    *,
    backward: bool,
    layers: bool,
) -> Seen:
    """One side runs again, up to the end of a call where backward is not asked for; ``inside`` are the calls whose ops
    are watched, ``layers`` whether those of the framework's own layers are, too."""
    session: Session = (scenes.base, scenes.raw)[side]
    job, step = scenes.job, scenes.reference.trace.step
    watching = _Watching(feeder, index, inside, stop=not backward)
    with session.again(), suppress(Reached):
        trace = session.run(
            step,
            job.arguments()[side],
            loss_fn=job.losses[side],
            backward=backward,
            feeder=watching,
            hooks=backward,
            ops=WantedOps(inside, stacks=True, options=True, layers=layers or job.ops == "all", functions=backward),
        )
        watching.seen.gradients = trace.gradients
    return watching.seen


def seen_in(trace: StepTrace, index: int, inside: frozenset[int]) -> Seen:
    """What a run showed that is over."""
    call = next((call for call in trace.calls if call.index == index), None)
    return Seen(call, [one for one in trace.calls if one.parent in inside], trace.gradients)


def noise_inside(scenes: Scenes, index: int, inside: frozenset[int], base: Seen, *, layers: bool) -> dict[int, float]:
    """How far rounding moves what base's ops return: they run again, in the same order, on shaken tensors."""
    jitter = Jitter(scenes.job.tolerance.narrow)
    feeder = LocalRun(
        scenes.reference, Itself(scenes.reference.trace), Tolerance(mode="auto"), backward=False, change=jitter
    )
    try:
        with perturbed(scenes.base.live, jitter, {}):
            shaken = run_watched(scenes, 0, feeder, index, inside, backward=False, layers=layers)
    except Exception:  # the model's own: it ran through on what it was really given
        return {}
    found: dict[int, float] = {}
    for one, other in zip(ops_of(base), ops_of(shaken), strict=False):
        for mine, moved in zip(one.outputs, other.outputs, strict=False):
            if one.kind == other.kind and mine.value.shape == moved.value.shape and not mine.value.overwritten:
                found[mine.tensor] = rms_gap(mine.value.numpy(), moved.value.numpy())
    return found


class Noise:
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
