"""One step of both models: side by side, and where something differs, once more with raw fed base's tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace

from padiff.align import CallPairing
from padiff.capture.held import Held
from padiff.capture.one_step import Arguments
from padiff.capture.recorder import Observer
from padiff.capture.scaling import unscaled
from padiff.capture.session import Session
from padiff.diagnose import find_divergence, given_otherwise
from padiff.engine.after_step import AfterStep
from padiff.engine.calibrate import differs_from_itself, predict_noise, set_apart
from padiff.engine.crossings import Crossings
from padiff.engine.drift import UNCERTAIN, Drift
from padiff.engine.job import Job
from padiff.engine.keeping import Keeping
from padiff.engine.kinks import BACKWARD, may_be_kinks, nudged, place_of, places
from padiff.engine.localise import Located, localise
from padiff.engine.lockstep import AHEAD, Lockstep
from padiff.engine.lone_outputs import with_lone_outputs
from padiff.engine.ops_beside import named_by_ops, with_ops
from padiff.engine.randomness import Randomness
from padiff.engine.second_look import explained, on_kinks, wants_second_look
from padiff.engine.shared import share_a_parameter
from padiff.engine.side_by_side import SideBySide
from padiff.engine.single_step import single_step
from padiff.engine.state import State
from padiff.engine.trips import with_trips
from padiff.engine.why import explained_places, explained_state
from padiff.engine.widths import narrowed, product_dtypes
from padiff.frameworks.compiled import OPENS, compiled_parts, sealed
from padiff.records import (
    Divergence,
    ModulePairs,
    Noise,
    StepComparison,
    StepTrace,
    Tolerance,
    Value,
    WeightPlan,
)

LARGE = AHEAD
"""Bytes of a model, or of what flows through it, from which on both backward passes take turns: of what is smaller,
base would have made all gradients before raw's turn came."""


WENT_ON = (
    "some gradients differ where numbers lie on a kink (of a ReLU) and fall to either side by rounding; raw's backward "
    "went on with base's side there"
)


class Step:
    """One step of both models, compared."""

    def __init__(
        self,
        job: Job,
        plan: WeightPlan,
        modules: ModulePairs,
        base: Session,
        raw: Session,
        step: int,
        after: AfterStep,
        *,
        twins: bool,
        drift: Mapping[str, float],
        keeping: Keeping,
        randomness: Randomness,
    ) -> None:
        self.keeping, self.randomness = keeping, randomness
        self.after = after
        self.job, self.plan, self.modules, self.base, self.raw = job, plan, modules, base, raw
        self.step, self.twins = step, twins
        self.compiled = bool(compiled_parts(job.base) or compiled_parts(job.raw))
        """Some part of a model is compiled: what is seen inside is its eager form, and proves nothing about it."""
        self.seen_into = False
        """Whether a second look was taken."""
        self.eager_only = False
        """Whether all that counts ran in eager form, since compiled code would not take base's random draws."""
        self.noise: Noise | None = None
        self.crossings: Crossings | None = None
        self.watcher: SideBySide | None = None
        """Holds raw beside base, from when base has run."""
        self.done: StepComparison | None = None
        """Forward and backward, compared; None until both have run."""
        self.notes: list[str] = []
        self.doubts: list[str] = []
        """What keeps the step from supporting a verdict."""
        self.drift = dict(drift)
        """How far rounding has moved base's parameters by now."""

    def run(self) -> tuple[StepComparison, list[Divergence]]:
        """The step as raw runs by itself; where something differs, once more with raw fed base's tensors."""
        if self.job.single_step is not None:
            return single_step(self, self.job.single_step)
        done = self._as_narrow_as_they_are()
        with ExitStack() as stack:
            if self._draws_apart(done):
                for session in (self.base, self.raw):
                    session.rewind()
                    stack.enter_context(session.eagerly())
                self.compiled, self.eager_only = False, True
                done = self._as_narrow_as_they_are()
            return self._judged(self._without_sealed(done))

    def _draws_apart(self, done: StepComparison) -> bool:
        """Whether compiled code, which draws for itself, has come to something else, and an eager form would draw with
        the other model."""
        return (
            self.compiled
            and self.randomness.unheard
            and wants_second_look(done.comparisons, self.job.tolerance)
            and not (self.keeping.base.writes or self.keeping.raw.writes)
            and all(how in OPENS for live in (self.job.base, self.job.raw) for how in compiled_parts(live).values())
        )

    def _judged(self, done: StepComparison) -> tuple[StepComparison, list[Divergence]]:
        """What both have run, with the place where they part."""
        self.done = done
        job, base, raw = self.job, self.base, self.raw
        located: list[Divergence] = []
        if done.doubtful or wants_second_look(done.comparisons, job.tolerance):
            second = self.second_look(done)
            by_rounding = job.tolerance.mode == "auto" and not self.compiled
            if second is not None and by_rounding and may_be_kinks(second.faults, second.state):
                second = self._without_kinks(done, second)
                if not second.faults and all(one.agrees for one in second.state):
                    done = replace(done, comparisons=tuple(on_kinks(done.comparisons)))
            if second is not None:
                with base.eagerly(), raw.eagerly():  # causes and ops are tried by running modules again
                    located = explained_places(second)
                done = replace(done, local=second.comparisons)
            self.seen_into = second is not None
            if second is not None and job.tolerance.mode == "auto" and not located and not self.compiled:
                done = replace(done, comparisons=tuple(explained(done.comparisons, second.state)))
        trees = (job.base.tree, job.raw.tree)
        located = with_lone_outputs(located, done, trees)
        given = given_otherwise(done, located[0]) if located else None
        located = located if given is None else [given]
        found = list(done.comparisons)
        state = State(job, self.plan, self.step, self.noise)
        if job.optimizers is not None and not located and find_divergence(done, trees) is None:
            self.after.keep_weights()
            drift = None if self.noise is None else Drift(base, self.noise)
            base.optimize(self.step, job.optimizers[0])
            raw.optimize(self.step, job.optimizers[1])
            if drift is not None and self.noise is not None:
                allowed = drift.noise(self.drift, UNCERTAIN)
                state = State(job, self.plan, self.step, replace(self.noise, weights=allowed))
                self.drift = drift.noise(self.drift)
            weights = state.tensors("weight", "parameter", base.weights(), raw.weights())
            found += weights
            if drift is not None and self.noise is not None and all(one.agrees for one in weights):
                found += self.after.moments.compare(self.step, self.noise, drift.gradients, done.comparisons)
        buffers = _buffers(base, raw, self.modules)
        found += state.tensors("buffer", "buffer", *buffers)
        self.after.keep_buffers(*buffers)
        self.keeping.base.end(base, buffers[0])
        self.keeping.raw.end(raw, buffers[1])
        for session, optimizer in zip((base, raw), job.optimizers or (None, None), strict=True):
            session.finish_step(optimizer)
        if job.optimizers is not None and job.steps > 1 and self.step == 0 and not located:
            self._say_what_is_left()
        plain = replace(done, comparisons=tuple(found))
        first = None if located else find_divergence(plain, trees)
        if first is not None:
            located = [self._of_compiled(first) if self.compiled else explained_state(first, plain, self.after)]
        if not self.compiled:
            located = with_trips(located, plain)
        done = with_ops(done, found, diverged=bool(located))
        return done, [named_by_ops(one, done) for one in located]

    def _say_what_is_left(self) -> None:
        """Functions that step should clear, too; both may gather gradients over steps, one alone forgot to."""
        base, raw = self.base.leaves_gradients(), self.raw.leaves_gradients()
        if base != raw:
            side = "base" if base else "raw"
            self.notes.append(
                f"the optimizer's function of {side} leaves gradients behind, to which the next step's are added; the "
                "other clears them"
            )

    def _of_compiled(self, first: Divergence) -> Divergence:
        """What differs as it was compiled, and not in eager form."""
        if not self.seen_into:
            return first
        why = "in their eager form the models agree: look at what the compiler made of them"
        return replace(first, note=f"{first.note}; {why}" if first.note else why)

    def _without_kinks(self, done: StepComparison, second: Located) -> Located:
        """Of gradients that differ, those that still do when the inputs are a little different."""
        job = nudged(self.job)
        again = None if job is None else self.second_look(done, job, earlier=second)
        if again is None:
            return second
        still = places(again.faults, again.state)
        faults = tuple(fault for fault in second.faults if place_of(fault) in still)
        state = tuple(one for one in second.state if one.agrees or (one.raw_path, one.name) in still)
        if len(faults) < len(second.faults) or len(state) < len(second.state):
            self.notes.append(
                "some gradients differ where numbers lie on a kink (of a ReLU, of a maximum) and fall to either side "
                "by rounding; with inputs moved a little they agree"
            )
        return replace(second, faults=faults, state=state)

    def run_side(
        self, side: int, arguments: Arguments, observer: Observer | None = None, *, backward: bool = True
    ) -> StepTrace:
        session, job = (self.base, self.raw)[side], self.job
        follow = job.backward and backward
        return session.run(self.step, arguments, loss_fn=job.losses[side], backward=follow, observer=observer)

    def forward_of(self, side: int) -> StepTrace:
        session, job = (self.base, self.raw)[side], self.job
        return session.run(self.step, job.arguments()[side], loss_fn=job.losses[side], backward=False)

    def second_look(
        self, done: StepComparison, job: Job | None = None, *, half_way: bool = False, earlier: Located | None = None
    ) -> Located | None:
        """Raw fed base's tensors; None where a model cannot stand it (one that checks what it is given).

        ``half_way`` says that raw is known to raise: what it does until then counts. ``earlier`` is a look at the same
        models with other inputs.
        """
        job = job or self.job
        gradients = [one for one in done.comparisons if one.phase == "gradient"]
        differing = {one.phase for one in done.comparisons if not one.agrees}
        try:
            with self.base.eagerly(), self.raw.eagerly():
                return localise(
                    job,
                    self.plan,
                    self.modules,
                    self.base,
                    self.raw,
                    self.step,
                    twins=self.twins,
                    tolerance=job.tolerance if job.tolerance.mode == "auto" else Tolerance(mode="auto"),
                    drift=self.drift,
                    gradients_agree=bool(gradients) and all(one.agrees for one in gradients),
                    gradients_differ=bool(differing & BACKWARD) and "forward" not in differing and not done.doubtful,
                    half_way=half_way,
                    earlier=earlier,
                )
        except Exception as error:  # the models' own code, which ran through once already
            what = f"{type(error).__name__}: {error}".splitlines()[0]
            self.notes.append(
                f"raw could not be run on base's tensors, so the place is the first that differs ({what})"
            )
            return None

    def _without_sealed(self, done: StepComparison) -> StepComparison:
        """What has no partner because that one is inside something compiled is no finding."""
        if not self.compiled:
            return done
        hidden = {
            side: {live.tree.nodes[index].path for index in sealed(live, eager=False)}
            for side, live in (("raw", self.job.base), ("base", self.job.raw))
        }
        kept = [one for one in done.unmatched if _partner(one.why) not in hidden[one.side]]
        return replace(done, unmatched=tuple(kept))

    def _as_narrow_as_they_are(self) -> StepComparison:
        """Side by side; once more where it turns out that a model computes in a narrower dtype than its tensors'."""
        done = self._side_by_side()
        formats = (self.base.autocast, self.raw.autocast, *product_dtypes(self.job, done))
        known, self.job = self.job, narrowed(self.job, formats)
        if self.job is known:
            return done
        with self.base.again(), self.raw.again():
            return self._side_by_side(apart=True)

    def _side_by_side(self, *, apart: bool = False) -> StepComparison:
        job, base = self.job, self.base
        if not apart and self._may_run_in_turns():
            done = self._in_lockstep()
            if done is not None:
                return done
        arguments = job.arguments()[0]
        # Base runs through first: its outputs and gradients are held, its autograd graph is not.
        base_trace = self.randomness.run_base(lambda: self.run_side(0, arguments), lambda: self.forward_of(0))
        if share_a_parameter(job.base, job.raw):
            base_trace = _set_aside(base, base_trace)
        self.job = job = narrowed(job, (base.autocast,))
        if job.tolerance.mode == "auto":
            set_apart(job.base, base_trace)
            self.noise = predict_noise(
                base,
                base_trace,
                lambda: job.arguments()[0],
                loss_fn=job.losses[0],
                step=job.tolerance.narrow,
                drift=self.drift,
                runs=job.tolerance.runs,
                kinks=self._kinks_matter(base_trace),
            )
            if self.noise is not None and differs_from_itself(
                base, base_trace, lambda: job.arguments()[0], self.noise, job.tolerance.narrow
            ):
                if self.randomness.begins_to_listen():  # it may draw from a generator of its own
                    base.rewind()
                    return self._side_by_side(apart=apart)
                self.doubts.append(
                    "base returns something else when it runs again on the same inputs and random numbers: it is not "
                    "deterministic, and nothing can be held against it"
                )
        self.keeping.base.ran(base_trace)
        raw_trace = self.run_raw(base_trace, backward=job.backward)
        if apart:
            set_apart(job.base, base_trace)
            set_apart(job.raw, raw_trace)
        return self._finished(base_trace, raw_trace)

    def _kinks_matter(self, base: StepTrace) -> bool:
        """Whether numbers that cross zero by rounding are put right: not where raw's gradients must be its own."""
        job = self.job
        rounds = job.tolerance.mode == "auto" and not job.tolerance.narrow
        return rounds and job.optimizers is None and base.ran_backward

    def run_raw(self, base: StepTrace, *, backward: bool) -> StepTrace:
        """Raw beside what base did."""
        arguments = self.job.arguments()[1]
        told = self.keeping.raw.beside(self.step, self._watching(base))
        return self.randomness.run_raw(
            base.calls, lambda: self.run_side(1, arguments, told, backward=backward), lambda: self.forward_of(1)
        )

    def _in_lockstep(self) -> StepComparison | None:
        """Forward of both, then both backward passes in turns: what is held of base is what autograd holds anyway.

        None where base turns out to draw random numbers, which raw is to be given, or to do more in backward than
        follow gradients; it is then as before the step.
        """
        job, base, raw = self.job, self.base, self.raw
        base_arguments, raw_arguments = job.arguments()
        turns = Lockstep()
        with base.begun(self.step, base_arguments, loss_fn=job.losses[0], backward=True) as first:
            first.recorder.log.made = lambda number, gradient: turns.made(number, 4 * math.prod(gradient.shape))
            seen = first.forward()
            if (base.drew and self.randomness.begins_to_listen()) or not first.recorder.plain_backward:
                base.rewind()
                return None
            self.randomness.run_base(lambda: seen, lambda: seen)
            watcher = self._watching(seen)
            told = self.keeping.raw.beside(self.step, watcher)
            with raw.begun(self.step, raw_arguments, loss_fn=job.losses[1], backward=True, observer=told) as second:
                second.forward()
                watcher.wait_for = turns.wait_for
                base_trace, raw_trace = turns.run(first.backward, second.backward)
        raw_trace = self.randomness.run_raw(seen.calls, lambda: raw_trace, lambda: self.forward_of(1))
        return self._finished(base_trace, raw_trace)

    def _may_run_in_turns(self) -> bool:
        """Nobody asks for base's tensors before raw runs, and no parameter takes the gradients of both."""
        job = self.job
        return (
            job.backward
            and job.tolerance.mode != "auto"
            and not (job.ops or self.compiled)
            and self.randomness.quiet
            and self._is_large()
            and not self.keeping.base.writes
            and all(live.adapter.may_pause(live.model) for live in (job.base, job.raw))
            and not share_a_parameter(job.base, job.raw)
        )

    def _is_large(self) -> bool:
        """Whether gradients that wait would be worth more than the changing over; a guess, before anything has run."""
        base = self.job.base
        weights = sum(math.prod(base.adapter.shape(one)) for one in base.parameters().values())
        arguments = self.job.arguments()[0]
        given = base.adapter.flatten((arguments.args, dict(arguments.kwargs)))
        inputs = sum(math.prod(base.adapter.shape(tensor)) for _, tensor in given)
        return 4 * max(weights, inputs * len(base.modules)) >= LARGE

    def _watching(self, base: StepTrace) -> SideBySide:
        job = self.job
        pairing = CallPairing(job.base.tree, job.raw.tree, self.modules, base.calls, twins=self.twins)
        self.crossings = Crossings() if self._kinks_matter(base) else None
        self.watcher = SideBySide(base, pairing, job.tolerance, job.base.tree, self.twins, self.noise, self.crossings)
        return self.watcher

    def _finished(self, base_trace: StepTrace, raw_trace: StepTrace) -> StepComparison:
        job = self.job
        assert self.watcher is not None
        self.keeping.raw.ran(raw_trace)
        done = replace(self.watcher.finish(raw_trace), base=base_trace)
        if self.crossings is not None and self.crossings.mended:
            self.notes.append(WENT_ON)
        state = State(job, self.plan, self.step, self.noise)
        outputs = [c for c in done.comparisons if c.raw_path == "" and c.role == "output" and c.phase == "forward"]
        found = [*done.comparisons, *state.loss(base_trace.loss, raw_trace.loss, outputs)]
        if job.backward:
            gradients = (base_trace.parameter_gradients, raw_trace.parameter_gradients)
            found += state.tensors("gradient", "parameter", *gradients)
        return replace(done, comparisons=tuple(found))


def _partner(why: str) -> str | None:
    """The path of a partner that was never called."""
    return why.partition("its partner ")[2].removesuffix(" never") if why.endswith(" never") else None


def _buffers(base: Session, raw: Session, modules: ModulePairs) -> tuple[dict[str, Value], dict[str, Value]]:
    """What the step left in both; a layer inside compiled code was updated as its partner was."""
    ours, theirs = base.updates(), raw.updates()
    of_base = {one: theirs[other] for one, other in modules.pairs if other in theirs}
    of_raw = {other: ours[one] for one, other in modules.pairs if one in ours}
    return base.buffers(of_base), raw.buffers(of_raw)


def _set_aside(base: Session, trace: StepTrace) -> StepTrace:
    """Base's gradients out of the way of raw's, which would be added to them."""
    adapter = base.live.adapter
    kept: dict[str, Value | None] = {}
    for path, parameter in base.live.parameters().items():
        gradient = adapter.gradient(parameter)
        kept[path] = None if gradient is None else unscaled(Held(adapter, adapter.clone(gradient)), base.scale)
        adapter.set_gradient(parameter, None)
    return replace(trace, parameter_gradients=kept)
