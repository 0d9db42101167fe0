"""Why two runs part that were made apart: the causes that can be told from what was written down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from padiff.align import pair_slots
from padiff.compare.layouts import compare_arranged
from padiff.diagnose.causes import differing_settings, explain
from padiff.diagnose.scene import Scene
from padiff.engine.apart.replay import Recorded, never, recorded_ops
from padiff.engine.explaining.after_step import moment_of, path_of
from padiff.engine.explaining.inside import with_op
from padiff.engine.explaining.scenes import RecordedOps, Scenes, agreement
from padiff.engine.explaining.watched_again import Watched
from padiff.engine.explaining.why import FORGIVEN, REMEMBERED, drawn, with_causes
from padiff.engine.fed.local import Reference
from padiff.engine.job import Job
from padiff.frameworks.settings import settings_of
from padiff.records import (
    Array,
    Call,
    Comparison,
    Divergence,
    DrawGap,
    Fault,
    Slot,
    StepComparison,
    Tolerance,
    Value,
    WeightEntry,
    WeightPlan,
)
from padiff.store import StepDump
from padiff.weights import build


def explained_apart(
    job: Job,
    plan: WeightPlan,
    divergence: Divergence,
    done: StepComparison,
    base: StepDump,
    raw: StepDump,
    draws: tuple[DrawGap, ...] = (),
    until: Sequence[StepDump] = (),
    earlier: StepDump | None = None,
) -> Divergence:
    """The divergence with what the dumps tell about it; ``until`` are base's steps up to this one, where all are, and
    ``earlier`` is raw's before it."""
    try:
        if divergence.phase == "forward" and divergence.role in ("output", "input"):
            return _at_call(job, plan, divergence, done, draws, recorded_ops(base, raw))
        if divergence.phase == "weight":
            scene = _of_weight(job, plan, divergence, base, raw, until)
            if moment_of(divergence.comparison):
                divergence = replace(divergence, note=REMEMBERED)
            return divergence if scene is None else with_causes(drawn(divergence, scene), scene)
        told = _with_settings(job, divergence)
        scene = _of_gradient(job, plan, divergence, base, raw, earlier) if divergence.phase == "gradient" else None
        return told if scene is None else replace(drawn(told, scene), causes=explain(scene))
    except FORGIVEN:
        return divergence


def _of_gradient(
    job: Job, plan: WeightPlan, divergence: Divergence, base: StepDump, raw: StepDump, earlier: StepDump | None
) -> Scene | None:
    """The gradient of a parameter, as it was when the optimizer was given it."""
    wrong = divergence.comparison
    path = path_of(wrong)
    entry = next((one for one in plan.entries if one.path == path), None)
    found = raw.parameter_gradients.get(path)
    expected = None if entry is None or not entry.sources else _built(entry, base.parameter_gradients)
    if expected is None or found is None:
        return None
    before = None if earlier is None else earlier.parameter_gradients.get(path)
    return Scene(
        phase="gradient",
        role="parameter",
        base_kind=wrong.base_kind,
        raw_kind=wrong.raw_kind,
        layer=None,
        expected=expected,
        found=np.array(found.numpy()),
        agrees=agreement(wrong, job.tolerance.narrow),
        narrow=job.tolerance.narrow,
        tensor=wrong.name,
        before=None if before is None else np.array(before.numpy()),
    )


def _at_call(
    job: Job,
    plan: WeightPlan,
    divergence: Divergence,
    done: StepComparison,
    draws: tuple[DrawGap, ...],
    recorded: RecordedOps | None,
) -> Divergence:
    pair = next((p for p in done.pairs if p[1].index == divergence.raw_call), None)
    fault = None if pair is None else _fault(divergence, *pair, done)
    if fault is None:
        return _with_settings(job, divergence)
    scenes = Scenes(
        job,
        plan,
        Reference(done.base, {}, {}),
        done.raw,
        {call.index: one for one, call in done.pairs},
        Recorded(done.raw),  # type: ignore[arg-type]
        Recorded(done.base),  # type: ignore[arg-type]
        never,
        draws,
        recorded=recorded,
    )
    scene = scenes.of_fault(fault)
    told = _with_settings(job, divergence) if scene is None else with_causes(drawn(divergence, fault), scene)
    try:
        return with_op(told, fault, scenes, Watched(scenes))
    except FORGIVEN:
        return told


def _fault(divergence: Divergence, base: Call, raw: Call, done: StepComparison) -> Fault | None:
    """The call with the two tensors that tell: what it returned, or what its own code handed to a child."""
    wrong = {c.raw_call: c for c in reversed(done.comparisons) if _input(c) and not c.agrees}
    children = sorted((p for p in done.pairs if p[1].parent == raw.index), key=lambda p: p[1].index)
    before: Call | None = None
    for theirs, mine in children:
        comparison = wrong.get(mine.index)
        if comparison is not None:
            arrays = _arrays(theirs.inputs, mine.inputs, comparison)
            return None if arrays is None else Fault("forward", base, raw, comparison, True, before, mine, *arrays)
        before = mine
    arrays = _arrays(base.outputs, raw.outputs, divergence.comparison)
    return None if arrays is None else Fault("forward", base, raw, divergence.comparison, False, None, None, *arrays)


def _input(comparison: Comparison) -> bool:
    return comparison.phase == "forward" and comparison.role == "input"


def _arrays(base: Sequence[Slot], raw: Sequence[Slot], comparison: Comparison) -> tuple[Array, Array] | None:
    """Base's tensor as raw arranges it, and raw's."""
    pairs, _, _ = pair_slots(base, raw)
    for one, other in pairs:
        if other.tensor == comparison.tensor and not (one.value.overwritten or other.value.overwritten):
            found = other.value.numpy()
            arranged = compare_arranged(one.value.numpy(), found, Tolerance(mode="auto"))[1]
            return None if arranged is None else (np.array(arranged), np.array(found))
    return None


def _with_settings(job: Job, divergence: Divergence) -> Divergence:
    """At least what the two modules were built with."""
    found = []
    for live, path in ((job.base, divergence.base_path), (job.raw, divergence.raw_path)):
        node = live.tree.by_path().get(path)
        if node is None:
            return divergence
        found.append(settings_of(live.adapter, live.modules[node.index]))
    return replace(divergence, settings=differing_settings(found[0], found[1]))


def _of_weight(
    job: Job, plan: WeightPlan, divergence: Divergence, base: StepDump, raw: StepDump, until: Sequence[StepDump]
) -> Scene | None:
    """A weight that the optimizers' step left different, or what they remember of it."""
    wrong = divergence.comparison
    moment = moment_of(wrong)
    path = path_of(wrong)
    entry = next((one for one in plan.entries if one.path == path), None)
    found = (raw.moments.get(moment, {}) if moment else raw.weights).get(path)
    if entry is None or found is None or not entry.sources or entry.function is not None:
        return None
    expected = _built(entry, base.moments.get(moment, {}) if moment else base.weights)
    gradient = _built(entry, base.parameter_gradients)
    if expected is None:
        return None
    history = [_built(entry, step.parameter_gradients) for step in until]
    start = _built(entry, until[0].weights_before) if until else None
    whole = start is not None and bool(history) and all(one is not None for one in history)
    before = start if len(until) == 1 else _built(entry, until[-2].weights) if len(until) > 1 else None
    return Scene(
        phase="weight",
        role="parameter",
        base_kind=wrong.base_kind,
        raw_kind=wrong.raw_kind,
        layer=None,
        expected=expected,
        found=np.array(found.numpy()),
        base_settings=dict(base.extra.get("optimizer", {})),
        raw_settings=dict(raw.extra.get("optimizer", {})),
        agrees=agreement(wrong, job.tolerance.narrow),
        narrow=job.tolerance.narrow,
        tensor=wrong.name,
        moment=moment,
        before=None if moment else before,
        gradient=gradient,
        start=start if whole else None,
        history=tuple(one for one in history if one is not None) if whole else (),
    )


def _built(entry: WeightEntry, values: Mapping[str, Value | None]) -> Array | None:
    arrays = {source.path: values.get(source.path) for source in entry.sources}
    if any(value is None for value in arrays.values()):
        return None
    return np.array(build(entry, {path: value.numpy() for path, value in arrays.items() if value is not None}))
