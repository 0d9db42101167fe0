"""The engine behind both doors: run both models step by step, compare as they run, stop where they part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace

from padiff.capture.ops import WantedOps
from padiff.capture.picks import Picks
from padiff.capture.session import Session
from padiff.engine.captured.dumping import TraceWriter
from padiff.engine.covered_draws import with_covered_draws
from padiff.engine.explaining.after_step import AfterStep
from padiff.engine.filling.assumed import Mistaken, Trial
from padiff.engine.filling.matching import Matching, modules_of
from padiff.engine.interrupted import Told, hand_over, told_of
from padiff.engine.job import Job
from padiff.engine.keeping import Keeper, Keeping
from padiff.engine.matched import Matched
from padiff.engine.projection import Projection
from padiff.engine.randomness import Randomness
from padiff.engine.result import Result
from padiff.engine.step import Step
from padiff.engine.verdict import result_of
from padiff.frameworks.compiled import compiled_note, without_backward
from padiff.records import (
    Divergence,
    Interruption,
    StepComparison,
    WeightPlan,
)
from padiff.weights import apply_plan

Look = Callable[[], tuple[str, int, int] | None]
"""Which side runs now, how many of its calls have ended, and of about how many; None where none runs."""


def run_job(
    job: Job,
    matching: Matching,
    *,
    copied: bool,
    on_step: Callable[[StepComparison], None] | None = None,
    watch: Callable[[Look], None] | None = None,
    dumps: tuple[TraceWriter | None, TraceWriter | None] = (None, None),
) -> tuple[Result, Matching]:
    """Run all steps, or up to the first that diverges, and say on what matching that stands in the end; ``copied``
    says whether raw holds base's weights now, or is filled with them once base has run (see ``Matching.by_base``).

    ``on_step`` is told of every step that is done; ``watch`` is handed what says how far the run has come; ``dumps``
    are told what base and raw do. Raises ``Mistaken`` where what was assumed of raw is so wrong that base runs again.
    """
    first_seen = matching.by_use is not None or matching.by_base is not None
    matched = Matched(matching.plan, modules_of(job, matching), twins=matching.anchors is None and not first_seen)
    base = Session(job.base, "base", matched.modules.recorded(0))
    raw = Session(job.raw, "raw", matched.modules.recorded(1))
    base.repeatable = raw.repeatable = True
    # A dump is compared with whatever there will be.
    base.converts = raw.converts = job.base.adapter.name != job.raw.adapter.name or any(dumps)
    base.ops = raw.ops = None if job.ops is None else WantedOps(layers=job.ops == "all")
    base.loss_outputs, raw.loss_outputs = matching.outputs
    projection = Projection(job) if Projection.possible(job) else None
    if projection is not None:
        base.probe, raw.probe = projection.of_base, projection.of_raw
    if job.tolerance.mode == "auto":
        base.picks = raw.picks = Picks()
    if watch is not None:
        watch(lambda: _under_way(base, raw))
    steps: list[StepComparison] = []
    found: list[Divergence] = []
    notes: list[str] = []
    doubts: list[str] = []
    silent = [side for side, live in (("base", job.base), ("raw", job.raw)) if without_backward(live)]
    if job.backward and silent:
        why = "compiled in eval mode, which gives no gradients: only forward was compared (train() them to change that)"
        notes.append(f"{' and '.join(silent)} {'are' if len(silent) > 1 else 'is'} {why}")
        job = replace(job, backward=False)
    switched = [live.adapter.grad_enabled() for live in (job.base, job.raw)]
    if job.backward and switched == [True, False]:
        notes.append(
            "backward was not run: gradients are switched off for raw here (no_grad); only forward was compared"
        )
        job = replace(job, backward=False)
    after = AfterStep(job, matched.plan, base)
    randomness = Randomness(job, matched, base, raw)
    trial = None
    if first_seen:
        trial = Trial(job, matching, matched, base, raw, fills=copied, projection=projection)
    drift: Mapping[str, float] = {}
    replayed = 0
    keeping = Keeping(Keeper(dumps[0]), Keeper(dumps[1]))

    def outcome(done: list[StepComparison], places: list[Divergence], stopped: Interruption | None = None) -> Result:
        plan = matched.plan
        return result_of(job, plan if copied else None, plan, matched.modules, done, places, notes, doubts, stopped)

    with ExitStack() as stack:
        for session in (base, raw):
            stack.enter_context(session.prepared(training=job.optimizers is not None))
        for step in range(job.steps):
            one = Step(
                job,
                matched,
                base,
                raw,
                step,
                after,
                drift=drift,
                keeping=keeping,
                randomness=randomness,
                trial=trial,
            )
            try:
                done, found = with_covered_draws(*one.run(), randomness.gaps)
            except Mistaken:
                raise
            except Exception as error:
                told = _told_of(one, error)
                if told is not None:
                    hand_over(error, outcome([*steps, told[0]], told[1], told[2]), told[2])
                raise
            job, drift = one.job, one.drift
            replayed += randomness.replayed
            notes += [note for note in (*one.notes, *_compiled(one), *randomness.notes()) if note not in notes]
            doubts += one.doubts
            steps.append(_without_gradients(done))
            if on_step is not None:
                on_step(done)
            if found:
                break
    return replace(outcome(steps, found), replayed=replayed), matching if trial is None else trial.held


def _without_gradients(done: StepComparison) -> StepComparison:
    """A step as a result keeps it: the gradients of two models' parameters are as large as the models."""
    base, raw = (replace(trace, gradients={}, parameter_gradients={}) for trace in (done.base, done.raw))
    return replace(done, base=base, raw=raw)


def _compiled(step: Step) -> list[str]:
    """What was compared of models with compiled parts."""
    sides = ((step.job.base, "base"), (step.job.raw, "raw"))
    found = [compiled_note(live, side, step.seen_into, eager_only=step.eager_only) for live, side in sides]
    return [note for note in found if note is not None]


def _told_of(step: Step, error: Exception) -> Told | None:
    """Whatever goes wrong in telling, the user's own exception must come through."""
    try:
        return told_of(step, error)
    except Exception:
        return None


def _under_way(base: Session, raw: Session) -> tuple[str, int, int] | None:
    for session in (raw, base):
        found = session.progress()
        if found is not None:
            done, before = found
            return session.side, done, max(done, before or len(session.nodes))
    return None


def copy_weights(job: Job, plan: WeightPlan) -> None:
    """Carry the plan out."""
    apply_plan(job.base, job.raw, plan)
