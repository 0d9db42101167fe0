"""Where it starts: base once more with every contribution seen, base shaken, raw; the last two fed by the first."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from padiff.align import CallPairing
from padiff.capture.feeding import Feeder, Witness
from padiff.capture.jitter import Jitter
from padiff.capture.ops import WantedOps
from padiff.capture.perturb import perturbed
from padiff.capture.replay import Replay
from padiff.capture.session import Session
from padiff.capture.state import spared_collector
from padiff.engine.explaining.scenes import Scenes, WatchedCode, feeder_of, run_again
from padiff.engine.explaining.suspected import Suspected
from padiff.engine.fed.beside import Itself, Other
from padiff.engine.fed.cut_short import Idle, kept_by
from padiff.engine.fed.frames import Frames
from padiff.engine.fed.given_slots import may_be_given, may_be_given_more
from padiff.engine.fed.inherited import (
    not_made_of,
    of_like_borders,
    without_inherited,
    without_taken_inside,
    without_wrong_code,
)
from padiff.engine.fed.local import LocalRun, Reference
from padiff.engine.fed.settle import least_of_parameters, least_of_products, settle, unsettled, without_prediction
from padiff.engine.fed.until_sure import Doubtful, Ran, Sorts, UntilSure
from padiff.engine.free.calibrate import gaps, set_apart, spread
from padiff.engine.free.drift import relative_steps
from padiff.engine.free.where_they_lie import gap, size_of
from padiff.engine.gallery import Gallery
from padiff.engine.job import Job
from padiff.engine.state import State
from padiff.records import (
    Call,
    Comparison,
    Fault,
    ModulePairs,
    Noise,
    Slot,
    StepTrace,
    Tolerance,
    Unmatched,
    Value,
    WeightPlan,
)


@dataclass(frozen=True)
class Located:
    """What each call of raw adds by itself."""

    faults: tuple[Fault, ...]
    """Forward first, then backward, each in the order of computation."""
    comparisons: tuple[Comparison, ...]
    state: tuple[Comparison, ...]
    """The loss and the gradients of parameters, computed from base's tensors."""
    pairs: tuple[tuple[Call, Call], ...]
    unmatched: tuple[Unmatched, ...]
    alike: bool
    scenes: Scenes
    noise: Noise | None = None
    """How far rounding moves the loss, the gradients of base's parameters and, to a narrow dtype, what calls leave in
    buffers; calls' own is the scenes' reference's."""
    lost: bool = False
    """A tensor of another shape could not be replaced: gradients that differ may differ for that alone."""
    buffers: tuple[Mapping[str, Value], ...] = ()
    """What the runs of base and of raw left in them, where that was asked for."""
    unreplaced: frozenset[int] = frozenset()
    """Raw calls that return something wrong which went on as it was."""
    further: tuple[Fault, ...] = ()
    """Calls that return something else besides their first output, whether or not that matters."""


def localise(
    job: Job,
    plan: WeightPlan,
    modules: ModulePairs,
    base: Session,
    raw: Session,
    step: int,
    *,
    twins: bool,
    tolerance: Tolerance,
    gradients_agree: bool = False,
    gradients_differ: bool = False,
    gradients_open: bool = False,
    drift: Mapping[str, float] | None = None,
    backward: bool = True,
    half_way: bool = False,
    earlier: Located | None = None,
    ops: WantedOps | None = None,
    suspects: Suspected | None = None,
    buffers: bool = False,
) -> Located:
    """Run both again, synchronised; everything is afterwards as it was before.

    ``gradients_agree`` says that the parameters' gradients do when raw runs by itself, ``gradients_differ`` that only
    gradients differ then, ``gradients_open`` that nothing is known of them; ``drift`` how far earlier steps have moved
    the parameters, ``half_way`` that raw is known to raise: what it does until then is looked at. ``earlier`` is the
    same with other inputs, whose noise will do; ``ops`` says which ops are recorded, too, ``suspects`` whose code will
    probably be looked into, ``buffers`` that what stays in buffers is copied.
    """
    backward, wanted = backward and job.backward, ops
    if ops is not None or half_way:
        suspects = None
    elif suspects is not None:
        ops, wanted = suspects.wanted(0), suspects.wanted(1)
    left: list[Mapping[str, Value]] = []
    kept = left if buffers or job.tolerance.narrow else None
    reference = reference_of(job, base, step, backward=backward, ops=ops, left=kept)
    noise: Noise | None = None
    shaken = partial(shaken_reference, job, base, step=step, drift=drift or {}, left=left[:1])
    if earlier is not None:
        reference, noise = replace(reference, noise=earlier.scenes.reference.noise), earlier.noise
    elif tolerance.mode == "auto":
        at_once = backward and (gradients_differ or gradients_open)
        reference, noise = shaken(reference, backward=at_once, suspects=suspects)
        if noise is not None and backward and not at_once:
            reference = replace(reference, gradients_later=True)
            noise = replace(noise, parameters=least_of_parameters(base.live, reference, job.tolerance.narrow))
    trace = reference.trace
    pairing = CallPairing(job.base.tree, job.raw.tree, modules, trace.calls, twins=twins)

    def beside(alike: frozenset[Hashable] = frozenset()) -> Other:
        calls = CallPairing(job.base.tree, job.raw.tree, modules, trace.calls, twins=twins)
        return Other(calls, job.base.tree, tolerance, alike, Frames(job.base, job.raw))

    def fed(
        alike: Sorts,
        innocent: frozenset[int] | None,
        doubtful: Doubtful | None,
        *,
        ops: bool = False,
        masks: bool = False,
    ) -> Ran:
        run = LocalRun(
            reference,
            beside(alike),
            tolerance,
            loosely=not pairing.alike,
            backward=backward,
            gallery=Gallery(),
            following=raw.live.adapter.grad_enabled,
            innocent=innocent,
            masks=masks,
            takes=partial(may_be_given, raw.live),
            takes_more=partial(may_be_given_more, raw.live),
        )
        del left[1:]
        if half_way:
            found = _up_to_exception(raw, step, job, run, backward)
            run.finish()
            return Ran(run, found, alike, innocent, whole=True)
        stopped = False

        def stop(trace: StepTrace) -> bool:
            nonlocal stopped
            run.look()
            stopped = doubtful is not None and doubtful(Ran(run, trace, alike, innocent, whole=False))
            return stopped

        found = _fed(
            raw,
            step,
            job,
            1,
            run,
            backward=backward,
            ops=WantedOps() if ops else wanted,
            left=left if buffers else None,
            stop=stop,
        )
        run.finish()
        return Ran(run, found, alike, innocent, whole=not stopped)

    watched = None if half_way else partial(_fed, base, step, job, 0, None, backward=False, ops=WantedOps())
    idle = Idle(job.raw.tree, {two: one for one, two in modules.pairs}, trace)
    ran = UntilSure(fed, watched, partial(kept_by, raw.live), idle).run()
    run, found, alike = ran.run, ran.trace, ran.alike
    drawn = raw.listener.gaps() if isinstance(raw.listener, Replay) else ()

    def state(noise: Noise | None) -> list[Comparison]:
        if half_way:
            return []
        known = State(replace(job, tolerance=tolerance), plan, step, noise)
        judged = known.loss(trace.loss, found.loss, run.compared.comparisons)
        if backward:
            judged += known.tensors("gradient", "parameter", trace.parameter_gradients, found.parameter_gradients)
        return judged

    own = without_inherited(run.faults, run.compared.comparisons, found.calls)
    run.faults[:] = without_wrong_code(own, {call.index for _, call in run.pairs}, found.calls)
    judged = state(noise)
    if reference.gradients_later:
        if unsettled(run.faults, judged, job.tolerance.narrow):
            reference, noise = shaken(reference, backward=True)
            settle(run, reference.noise)
            judged = state(noise)
        reference = replace(reference, gradients_later=False)
        run.compared.comparisons, judged = without_prediction(run.compared.comparisons), without_prediction(judged)
    lost = {one.raw_path for one in judged if one.phase == "gradient" and one.outcome.reason == "structure"}
    faults = [run.silent.in_a_lone_layer(fault, lost) for fault in run.faults]
    if not any(fault.phase == "backward" for fault in faults) and any(not one.agrees for one in judged):
        cut = run.silent.never_reached()
        faults = faults if cut is None else [*faults, cut]
    if not pairing.alike and gradients_agree:
        # Built differently, equal values may be joined to the graph differently (a sum kept, or made anew for each
        # use), and share the same gradient differently. What comes out of it for the parameters agrees.
        faults = [fault for fault in faults if fault.phase == "forward"]
    if run.lost and any(fault.phase == "forward" for fault in faults):
        faults = [fault for fault in faults if fault.phase == "forward"]
    faults = not_made_of(faults, run.unreplaced, found.calls)
    if not pairing.alike:
        faults = without_taken_inside(faults, found.calls)
        faults = of_like_borders(faults, judged, run.compared.comparisons, found.calls)
    feeder = feeder_of(reference, pairing, partial(beside, alike))
    scenes = Scenes(
        job,
        plan,
        reference,
        found,
        {call.index: one for one, call in run.pairs},
        raw,
        base,
        run_again(job, raw, feeder, step),
        drawn,
        feeder,
        reached=frozenset(run.silent.reached),
        unanswered=run.silent.unanswered,
        watched=None
        if suspects is None
        else WatchedCode(suspects.calls, suspects.layers, (trace, found), reference.shaken, suspects.backward),
        wrong=frozenset(fault.raw.index for fault in faults),
    )
    return Located(
        tuple(faults),
        tuple(run.compared.comparisons),
        tuple(judged),
        tuple(run.pairs),
        pairing.unmatched(found.calls),
        pairing.alike,
        scenes,
        noise,
        run.lost,
        tuple(left) if buffers else (),
        run.unreplaced,
        tuple(run.further),
    )


def reference_of(
    job: Job,
    base: Session,
    step: int,
    *,
    backward: bool,
    ops: WantedOps | None = None,
    left: list[Mapping[str, Value]] | None = None,
) -> Reference:
    """Base as it runs by itself, once more; ``left`` is given what that leaves in its buffers."""

    def witnessed(witness: Witness) -> StepTrace:
        if left is not None:
            left.clear()
        return _fed(base, step, job, 0, witness if backward else None, backward=backward, ops=ops, left=left)

    following = base.live.adapter.grad_enabled
    witness = Witness(copies=not getattr(base.live.adapter, "leaves_gradients", False), following=following)
    trace = witnessed(witness)
    if witness.overwritten:  # by a hook of the user's
        witness = Witness(following=following)
        trace = witnessed(witness)
    return Reference(trace, witness.contributions, witness.arrivals, off=frozenset(witness.off))


def shaken_reference(
    job: Job,
    base: Session,
    reference: Reference,
    step: int,
    drift: Mapping[str, float],
    *,
    backward: bool,
    left: Sequence[Mapping[str, Value]] = (),
    suspects: Suspected | None = None,
) -> tuple[Reference, Noise | None]:
    """How far rounding moves what each call adds, and leaves in the buffers of which ``left`` has what base leaves;
    and what becomes of the code of ``suspects``."""
    jitter = Jitter(job.tolerance.narrow)
    run = LocalRun(reference, Itself(reference.trace), Tolerance(mode="auto"), backward=backward, change=jitter)
    try:
        with base.shaking(job.tolerance.narrow):
            moved: list[Mapping[str, Value]] = []
            kept, ops = moved if left else None, None if suspects is None else suspects.wanted(0)
            shaking = perturbed(base.live, jitter, relative_steps(base, drift))
            shaken = _fed(base, step, job, 0, run, backward=backward, ops=ops, left=kept, inside=shaking)
    except Exception:  # the model's own: it ran through on what it was really given
        return reference, None
    trace = reference.trace
    least = least_of_products(base.live, reference, job.tolerance.narrow)
    if job.tolerance.narrow:
        least |= least_of_parameters(base.live, reference, job.tolerance.narrow)
    parameters = {
        path: max(moved, least.get(path, 0.0))
        for path, moved in gaps(trace.parameter_gradients, shaken.parameter_gradients).items()
    }
    loss = None
    if trace.loss is not None:
        loss = spread(trace, reference.arrivals, lambda slot: _moved(jitter, slot))
        loss = max(loss, 0.0 if shaken.loss is None else gap(trace.loss, shaken.loss))
    buffers = gaps(left[0], moved[0]) if left else {}
    if suspects is not None:
        inside = suspects.calls[0]
        seen = tuple(call for call in shaken.calls if call.index in inside or call.parent in inside)
        reference = replace(reference, shaken=replace(shaken, calls=seen))
    return replace(reference, noise=run.compared.gaps), Noise(parameters=parameters, buffers=buffers, loss=loss)


def _moved(jitter: Jitter, slot: Slot) -> float | None:
    """How far shaking moves a tensor."""
    if slot.value.overwritten:
        return None
    return jitter.step_of(np.dtype(slot.value.dtype)) * size_of(slot.value)


def _up_to_exception(raw: Session, step: int, job: Job, run: LocalRun, backward: bool) -> StepTrace:
    try:
        return _fed(raw, step, job, 1, run, backward=backward)
    except Exception as error:
        stopped = raw.stopped_by(error)
        if stopped is None or stopped.trace is None:
            raise
        return stopped.trace


def _fed(
    session: Session,
    step: int,
    job: Job,
    side: int,
    feeder: Feeder | None,
    *,
    backward: bool,
    ops: WantedOps | None = None,
    left: list[Mapping[str, Value]] | None = None,
    stop: Callable[[StepTrace], bool] | None = None,
    inside: AbstractContextManager[None] | None = None,
) -> StepTrace:
    """One of the models again, 0 for base, with what a feeder gives it; it is afterwards as it was before. ``stop`` is
    asked after forward whether that is all. What is to be otherwise ``inside`` is so once buffers are put back."""
    # What earlier steps left is their rounding, and no call's here.
    with session.again(anew=session.gathers_alike), inside or nullcontext():
        with (
            spared_collector(),
            session.begun(
                step,
                job.arguments()[side],
                loss_fn=job.losses[side],
                backward=backward,
                feeder=feeder,
                hooks=ops is not None and (ops.calls is None or ops.functions),
                ops=ops,
            ) as running,
        ):
            trace = running.forward()
            if stop is None or not stop(trace):
                trace = running.backward()
        set_apart(session.live, trace)
        if left is not None:
            left.append(session.buffers_of(trace))
    return trace
