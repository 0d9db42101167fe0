"""One step in which every call of raw is fed what base's was fed: each layer by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from padiff.diagnose import find_divergence
from padiff.engine.explaining.why import explained_places, explained_state
from padiff.engine.fed.localise import Located, localise
from padiff.engine.free.lone_outputs import lone_outputs_of, with_lone_outputs
from padiff.engine.ops.ops_beside import named_by_ops, ops_of_pairs, with_ops
from padiff.engine.shared import share_a_parameter
from padiff.engine.state import State
from padiff.records import Divergence, StepComparison

if TYPE_CHECKING:
    from padiff.engine.step import Step


def single_step(step: Step, phases: Literal["forward", "backward", "both"]) -> tuple[StepComparison, list[Divergence]]:
    """Every call of raw fed what base's was fed; what the models would have done by themselves is not compared."""
    job, base, raw = step.job, step.base, step.raw
    located = _fed_alone(step, phases)
    if located is None:
        _by_themselves(step)
        located = _fed(step, phases)
    wanted = {"forward": ("forward",), "backward": ("backward", "gradient")}.get(
        phases, ("forward", "backward", "gradient")
    )
    lone, told = lone_outputs_of(located.pairs, job.base.tree, step.step, twins=step.twins, alike=located.alike)
    comparisons = [one for one in (*located.comparisons, *lone, *located.state) if one.phase in wanted]
    if located.buffers:
        ours, theirs = located.buffers
        comparisons += State(job, step.plan, step.step).tensors("buffer", "buffer", ours, theirs)
        step.after.keep_buffers(ours, theirs)
    found = [one for one in explained_places(located) if one.phase in wanted]
    if job.optimizers is not None and not found:
        state = State(job, step.plan, step.step)
        step.after.keep_weights()
        base.optimize(step.step, job.optimizers[0])
        raw.optimize(step.step, job.optimizers[1])
        comparisons += state.tensors("weight", "parameter", base.weights(), raw.weights())
    if job.steps > 1 and located.buffers:  # the next step starts from what this one left itself
        base.buffers()
        raw.buffers()
    step.keeping.base.end(base)
    step.keeping.raw.end(raw)
    for session, optimizer in zip((base, raw), job.optimizers or (None, None), strict=True):
        session.finish_step(optimizer)
    scenes = located.scenes
    ops = ops_of_pairs(located.pairs, scenes.reference.trace, scenes.found, job.tolerance)
    done = StepComparison(
        step.step,
        scenes.reference.trace,
        scenes.found,
        located.pairs,
        tuple(comparisons),
        (*located.unmatched, *told, *ops.unmatched),
        located.alike,
        ops=tuple(one for one in ops.comparisons if one.phase in wanted),
        op_pairs=tuple(ops.pairs),
    )
    trees = (job.base.tree, job.raw.tree)
    found = with_lone_outputs(found, done, trees)
    first = None if found else find_divergence(done, trees)
    if first is not None:
        found = [explained_state(first, done, step.after)]
    done = with_ops(done, comparisons, diverged=bool(found))
    return done, [named_by_ops(one, done) for one in found]


def _fed(step: Step, phases: str) -> Located:
    return localise(
        step.job,
        step.plan,
        step.modules,
        step.base,
        step.raw,
        step.step,
        twins=step.twins,
        tolerance=step.job.tolerance,
        backward=phases != "forward",
        ops=step.base.ops,
        buffers=phases != "backward" and not step.compiled,
    )


def _fed_alone(step: Step, phases: str) -> Located | None:
    """The same where nobody asks what the models do by themselves; None where somebody does: an optimizer, a dump,
    or who is to replay what base draws."""
    keeps = step.keeping.base.writes or step.keeping.raw.writes
    if step.job.optimizers is not None or keeps or step.compiled or not step.randomness.quiet:
        return None
    if share_a_parameter(step.job.base, step.job.raw):
        return None
    for session in (step.base, step.raw):
        session.stand_ready()
        session.drew_ever = False
    located = _fed(step, phases)
    return None if step.base.drew_ever or step.raw.drew_ever else located


def _by_themselves(step: Step) -> None:
    """Both models run once, and what base draws is heard."""
    job = step.job
    trace = step.randomness.run_base(lambda: step.free.run_side(0, job.arguments()[0]), lambda: step.free.forward_of(0))
    step.keeping.base.ran(trace)
    if share_a_parameter(job.base, job.raw):
        step.base.clear_gradients()
    found = step.randomness.run_raw(
        trace.calls, lambda: step.free.run_side(1, job.arguments()[1]), lambda: step.free.forward_of(1)
    )
    step.keeping.raw.ran(found)
