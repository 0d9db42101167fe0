"""The engine behind both doors: run both models step by step, compare as they run, stop where they part."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from padiff.align import CallPairing, pair_modules
from padiff.capture.held import Held
from padiff.capture.session import Session
from padiff.diagnose import find_divergence
from padiff.engine.job import Job
from padiff.engine.matching import Matching, alike
from padiff.engine.result import Result
from padiff.engine.side_by_side import SideBySide
from padiff.engine.state import State
from padiff.engine.verdict import result_of
from padiff.frameworks.tree import LiveTree
from padiff.records import (
    Divergence,
    ModulePairs,
    StepComparison,
    StepTrace,
    Value,
    WeightPlan,
)
from padiff.weights import apply_plan


def run_job(
    job: Job, matching: Matching, *, copied: bool, on_step: Callable[[StepComparison], None] | None = None
) -> Result:
    """Run all steps, or up to the first that diverges; ``copied`` says whether raw holds base's weights now."""
    plan = matching.plan
    rules = replace(job.rules, alike=alike(job))
    modules = pair_modules(job.base.tree, job.raw.tree, rules, anchors=matching.anchors)
    base = Session(job.base, "base", _watched(job, modules, "base"))
    raw = Session(job.raw, "raw", _watched(job, modules, "raw"))
    base.loss_outputs, raw.loss_outputs = matching.outputs
    steps: list[StepComparison] = []
    divergence: Divergence | None = None
    with ExitStack() as stack:
        for session in (base, raw):
            stack.enter_context(session.prepared(training=job.optimizers is not None))
        for step in range(job.steps):
            done = _step(job, plan, modules, base, raw, step, twins=matching.anchors is None)
            divergence = find_divergence(done, (job.base.tree, job.raw.tree))
            steps.append(done)
            if on_step is not None:
                on_step(done)
            if divergence is not None:
                break
    return result_of(job, plan if copied else None, plan, modules, steps, divergence)


def _step(
    job: Job, plan: WeightPlan, modules: ModulePairs, base: Session, raw: Session, step: int, *, twins: bool
) -> StepComparison:
    base_arguments, raw_arguments = job.arguments()
    # Base runs through first: its outputs and gradients are held, its autograd graph is not.
    base_trace = base.run(step, base_arguments, loss_fn=job.losses[0], backward=job.backward)
    if _shared(job.base, job.raw):
        base_trace = _set_aside(job.base, base_trace)
    pairing = CallPairing(job.base.tree, job.raw.tree, modules, base_trace.calls, twins=twins)
    watcher = SideBySide(base_trace, pairing, job.tolerance, job.base.tree, twins)
    raw_trace = raw.run(step, raw_arguments, loss_fn=job.losses[1], backward=job.backward, observer=watcher)
    done = watcher.finish(raw_trace)
    state = State(job, plan, step)
    outputs = [c for c in done.comparisons if c.raw_path == "" and c.role == "output" and c.phase == "forward"]
    found = [*done.comparisons, *state.loss(base_trace.loss, raw_trace.loss, outputs)]
    if job.backward:
        found += state.tensors("gradient", "parameter", base_trace.parameter_gradients, raw_trace.parameter_gradients)
    if job.optimizers is not None and all(comparison.agrees for comparison in found):
        base.optimize(step, job.optimizers[0])
        raw.optimize(step, job.optimizers[1])
        found += state.tensors("weight", "parameter", base.weights(), raw.weights())
    found += state.tensors("buffer", "buffer", base.buffers(), raw.buffers())
    base.clear_gradients()
    raw.clear_gradients()
    return replace(done, comparisons=tuple(found))


def _shared(base: LiveTree, raw: LiveTree) -> bool:
    """The two models hold a parameter in common, or are one."""
    ours = {id(parameter) for parameter in base.parameters().values()}
    return any(id(parameter) in ours for parameter in raw.parameters().values())


def _set_aside(live: LiveTree, trace: StepTrace) -> StepTrace:
    """Base's gradients out of the way of raw's, which would be added to them."""
    adapter = live.adapter
    kept: dict[str, Value | None] = {}
    for path, parameter in live.parameters().items():
        gradient = adapter.gradient(parameter)
        kept[path] = None if gradient is None else Held(adapter, adapter.clone(gradient))
        adapter.set_gradient(parameter, None)
    return replace(trace, parameter_gradients=kept)


def _watched(job: Job, modules: ModulePairs, side: str) -> frozenset[int]:
    """Nodes whose calls are recorded: all that may pair, and those that stay alone, so that they are listed."""
    paired = {pair[0 if side == "base" else 1] for pair in modules.pairs}
    alone = set(modules.base_alone if side == "base" else modules.raw_alone)
    return frozenset(paired | alone | {0})


def copy_weights(job: Job, plan: WeightPlan) -> None:
    """Carry the plan out."""
    apply_plan(job.base, job.raw, plan)
