"""Why: every place that was found, with its causes. Nothing that goes wrong here may spoil a comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from padiff.diagnose import divergences_of
from padiff.diagnose.causes import differing_settings, explain, not_given, stopped_gradient
from padiff.diagnose.scene import Scene
from padiff.engine.explaining.after_step import AfterStep, moment_of
from padiff.engine.explaining.inside import with_op
from padiff.engine.explaining.layer_not_called import not_called
from padiff.engine.explaining.watched_again import Watched, has_own_code
from padiff.engine.fed.inherited import without_extra_calls, without_followers
from padiff.engine.fed.localise import Located
from padiff.engine.fed.own_gradients import own_gradients
from padiff.records import Cause, Divergence, Fault, StepComparison
from padiff.report.picture import picture_of

MOST_EXPLAINED = 3
"""Places whose causes are looked for; trying them takes runs of the model."""
MOST_DRAWN = 20
"""Places that are given a picture of their error."""

REMEMBERED = (
    "gradients and weights agree and what the optimizer remembers for its next steps doesn't: look at the optimizer"
)

FORGIVEN: tuple[type[Exception], ...] = (Exception,)
"""What may go wrong while a cause is looked for: the place is worth knowing without one."""


def explained_places(located: Located) -> list[Divergence]:
    """All places, the first of them with causes."""
    lost = located.lost and bool(located.faults)
    state = () if lost else own_gradients(located, without_followers(located, without_extra_calls(located)))
    faults = [_of_who_holds_it(located, fault) for fault in located.faults]
    found = [
        (drawn(divergence, fault) if place < MOST_DRAWN else divergence, fault)
        for place, (divergence, fault) in enumerate(divergences_of(faults, state, located.pairs))
    ]
    blamed = [_blamed(located, divergence, fault) for divergence, fault in found[:MOST_EXPLAINED]]
    if found and found[0][0].phase == "forward":  # what backward does beside that is not worth a run of each model
        blamed = [code if code is not None and code.phase == "forward" else None for code in blamed]
    watched = Watched(located.scenes, filter(None, blamed))
    few = [
        _explained(located, divergence, fault, code, watched)
        for (divergence, fault), code in zip(found[:MOST_EXPLAINED], blamed, strict=True)
    ]
    further = _unless_around(few, [divergence for divergence, _ in found[:MOST_EXPLAINED]], found[MOST_EXPLAINED:])
    every = few + further
    first: dict[str, Divergence] = {}
    for divergence in every:  # what was found at one place and turned out to lie in another, where more follows from it
        first.setdefault(divergence.raw_path, divergence)
    return list(first.values())


def _of_who_holds_it(located: Located, fault: Fault) -> Fault:
    """The fault, or that of the module which holds a layer and does not call it."""
    try:
        return not_called(fault, located.scenes) or fault
    except FORGIVEN:
        return fault


def _unless_around(
    told: Sequence[Divergence], found: Sequence[Divergence], rest: Sequence[tuple[Divergence, Fault | None]]
) -> list[Divergence]:
    """The rest, without modules of classes of which one was found, and told to be given something wrong by a module
    around them."""
    around = {
        (one.raw_path, other.raw_kind)
        for one, other in zip(told, found, strict=True)
        if one.raw_path != other.raw_path
        and f"{other.raw_path}.".startswith(f"{one.raw_path}." if one.raw_path else "")
    }
    return [
        divergence
        for divergence, _ in rest
        if not any(divergence.raw_kind == kind and divergence.raw_path.startswith(path) for path, kind in around)
    ]


def _explained(
    located: Located, divergence: Divergence, fault: Fault | None, code: Fault | None, watched: Watched
) -> Divergence:
    """With its causes, and with the op where it starts; ``code`` is the fault whose module's code may tell."""
    told = _forgiving(divergence, _at_place(located, divergence, fault))
    if code is None:
        return told

    def instead(wrong: Fault) -> Divergence:
        ((other, _),) = divergences_of([wrong], (), located.pairs)
        return _explained(replace(located, further=()), drawn(other, wrong), wrong, wrong, watched)

    return _forgiving(told, lambda: with_op(told, code, located.scenes, watched, located.further, instead))


def _blamed(located: Located, divergence: Divergence, fault: Fault | None) -> Fault | None:
    """The fault into whose module's code one looks; None where that would tell nothing."""
    if fault is not None and fault.phase == "forward" and fault.found is None:  # there is no tensor to follow
        return None
    if fault is not None and fault.of_loss:  # no module's code has a part in it
        return None
    if fault is not None and fault.phase == "backward" and not fault.between and _is_a_lone_layer(located, fault):
        return None
    return fault or _own_gradient(located, divergence)


def _is_a_lone_layer(located: Located, fault: Fault) -> bool:
    """Whether it lies in a framework's layer that stands beside none of base's: its code tells nothing."""
    scenes = located.scenes
    return fault.raw.index not in scenes.pairs and not has_own_code(scenes.job.raw, fault.raw.node)


def _own_gradient(located: Located, divergence: Divergence) -> Fault | None:
    """A parameter whose gradient differs, used by the code of the module that holds it."""
    if divergence.phase != "gradient":
        return None
    pair = next((pair for pair in located.pairs if pair[1].path == divergence.raw_path), None)
    return None if pair is None else Fault("backward", *pair, divergence.comparison)


def explained_state(divergence: Divergence, done: StepComparison, after: AfterStep) -> Divergence:
    """What shows in weights or buffers after the step, or in gradients that are not there."""
    if moment_of(divergence.comparison):
        divergence = replace(divergence, note=REMEMBERED)

    def explained() -> Divergence:
        if divergence.phase == "weight":
            scene, path = after.of_weight(divergence, done.comparisons)
            named = (
                divergence if scene is None else with_causes(divergence if path else drawn(divergence, scene), scene)
            )
            if path:  # told of another weight than the one that is named
                causes = tuple(replace(one, evidence=f"at {path}, {one.evidence}") for one in named.causes)
                named = replace(named, causes=causes)
            return named
        if divergence.phase == "forward" and not after.repeats(divergence):
            text = "base returns something else when it runs again on the same inputs"
            return replace(divergence, causes=(Cause("nondeterminism", text),))
        scene = after.of_buffer(divergence) if divergence.phase == "buffer" else None
        return (
            replace(divergence, causes=stopped_gradient(divergence))
            if scene is None
            else with_causes(drawn(divergence, scene), scene)
        )

    return _forgiving(divergence, explained)


def _at_place(located: Located, divergence: Divergence, fault: Fault | None) -> Callable[[], Divergence]:
    def explained() -> Divergence:
        scenes = located.scenes
        scene = scenes.of_state(divergence.comparison) if fault is None else scenes.of_fault(fault)
        if scene is None:
            return replace(divergence, causes=stopped_gradient(divergence) + not_given(divergence))
        if fault is not None and fault.phase == "backward":
            side, paths = scenes.unreached(fault, located.comparisons)
            scene = replace(scene, unreached=paths, unreached_in=side)
        return with_causes(divergence if fault is not None else drawn(divergence, scene), scene)

    return explained


def _forgiving(divergence: Divergence, explained: Callable[[], Divergence]) -> Divergence:
    try:
        return explained()
    except FORGIVEN:
        return divergence


def drawn(divergence: Divergence, seen: Fault | Scene | None) -> Divergence:
    """With a picture of the error, where both tensors are at hand in one layout."""
    if seen is None:
        return divergence
    return replace(divergence, comparison=replace(divergence.comparison, picture=picture_of(seen.expected, seen.found)))


def with_causes(divergence: Divergence, scene: Scene) -> Divergence:
    settings = differing_settings(scene.base_settings, scene.raw_settings)
    return replace(divergence, causes=explain(scene), settings=settings)
