"""One step of both models as they run by themselves: base first and raw beside it, or both backward passes in turns."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from padiff.align import CallPairing, gathered_of, scattered_of, stretches_of
from padiff.capture.held import Held
from padiff.capture.observers import Late, Observer
from padiff.capture.one_step import Arguments
from padiff.capture.one_step import Step as Running
from padiff.capture.scaling import unscaled
from padiff.capture.session import Session
from padiff.engine.allowance import Allowance
from padiff.engine.filling.assumed import Mistaken, Trial
from padiff.engine.free.beyond import Beyond
from padiff.engine.free.calibrate import differs_from_itself, predict_noise, set_apart
from padiff.engine.free.crossings import Crossings
from padiff.engine.free.levelled import LEFT_OUT, NOTE, Leveller, base_levelled
from padiff.engine.free.lockstep import AHEAD, Lockstep
from padiff.engine.free.side_by_side import SideBySide
from padiff.engine.job import Job
from padiff.engine.keeping import Keeping
from padiff.engine.matched import Matched
from padiff.engine.randomness import Randomness
from padiff.engine.shared import share_a_parameter
from padiff.engine.state import State
from padiff.engine.widths import few_digits, may_turn_narrow, narrowed, product_dtypes, under_autocast
from padiff.frameworks.compiled import compiled_parts
from padiff.records import Noise, StepComparison, StepTrace, Value

LARGE = AHEAD
"""Bytes of a model, or of what flows through it, from which on both backward passes take turns: of what is smaller,
base would have made all gradients before raw's turn came."""
WENT_ON = (
    "some gradients differ where numbers lie on a kink (of a ReLU) and fall to either side by rounding; raw's backward "
    "went on with base's side there"
)

PICKED = (
    "some of what raw picks by its size (experts, say) ties with what base picks but for rounding; raw went on with "
    "base's picks there"
)


class Narrower(BaseException):
    """Raw computes in a narrower dtype than its tensors'. Not an Exception, which the model's code may catch."""


class LeftTies(BaseException):
    """Raw's forward was over before it was known that some of its picks are as right as base's."""


class FreeRun:
    """Runs both models through one step, and holds what raw does against what base did."""

    def __init__(
        self,
        job: Job,
        matched: Matched,
        base: Session,
        raw: Session,
        step: int,
        *,
        drift: Mapping[str, float],
        keeping: Keeping,
        randomness: Randomness,
        trial: Trial | None,
    ) -> None:
        self._matched, self._base, self._raw, self._step = matched, base, raw, step
        self._drift, self._keeping, self._randomness, self._trial = drift, keeping, randomness, trial
        self.modules = matched.modules
        self.job = under_autocast(job)
        """With wider tolerances, once a model turns out to compute in a narrower dtype than its tensors'."""
        self._few_digits = few_digits(job) > 0
        self.compiled = bool(compiled_parts(job.base) or compiled_parts(job.raw))
        """Some part of a model is compiled: what is seen inside is its eager form, and proves nothing about it."""
        self.noise: Noise | None = None
        """How far rounding alone moves what base computes, where that is asked for."""
        self.watcher: SideBySide | None = None
        """Holds raw beside base, from when base has run."""
        self.crossings: Crossings | None = None
        """Numbers that fell to either side of a kink, where those are put right."""
        self.levelled: StepTrace | None = None
        """What base's backward makes without those, where raw's went without them, too."""
        self._leveller: Leveller | None = None
        self._beyond: Beyond | None = None
        """Keeps what raw makes in the place of outputs that only base returns."""
        unsure = not self.may_follow_later and self._may_wait
        self._dtype_waits = unsure and any(map(may_turn_narrow, (job.base, job.raw)))
        """Whether it is left open until raw's forward is over how far rounding moves what base computes."""
        self._listens_anew = False
        """Whether that has shown that base draws from a generator that nobody listened to."""
        self.follows = not (self.may_follow_later or self._dtype_waits)
        """Whether both run backward by themselves, too."""
        self.notes: list[str] = []
        self.doubts: list[str] = []
        """What keeps the step from supporting a verdict."""

    @property
    def may_follow_later(self) -> bool:
        """Whether gradients may be left to a second look, which is taken in any case: against a narrower dtype, and
        where both compute in one of few digits."""
        return (self.job.tolerance.narrow > 0 or self._few_digits) and self._may_wait

    @property
    def _may_wait(self) -> bool:
        """Whether nobody asks for what both make in backward by themselves."""
        job, keeping = self.job, self._keeping
        alone = job.optimizers is None and job.ops is None and not (keeping.base.writes or keeping.raw.writes)
        return job.tolerance.mode == "auto" and job.backward and alone and not self.compiled

    @property
    def _backward(self) -> bool:
        return self.job.backward and self.follows

    @property
    def shares_otherwise(self) -> bool:
        """Whether the models hand on what they make as another number of tensors, each of which gets its share of what
        comes back."""
        return self.watcher is not None and self.watcher.uneven

    def run(self) -> StepComparison:
        """Side by side; once more where it turns out that a model computes in a narrower dtype than its tensors'."""
        done = self._side_by_side()
        parts = stretches_of(self.modules, done.base.calls, done.raw.calls)
        orders = () if self.watcher is None else self.watcher.orders(done.raw)
        several = gathered_of(self.modules, done.base.calls, done.raw.calls)
        rows = scattered_of(self.modules, done.base.calls, done.raw.calls)
        self.modules = replace(self.modules, stretches=parts, gathered=several, orders=orders, scattered=rows)
        if orders or not all(part.single for part in parts):  # those wait for a second look, which few models need
            with self._base.again(), self._raw.again():
                done = self._side_by_side(apart=True)
        formats = (self._base.autocast, self._raw.autocast, *product_dtypes(self.job, done))
        known, self.job = self.job, narrowed(self.job, formats)
        if self.job is known:
            return done
        with self._base.again(), self._raw.again():
            return self._side_by_side(apart=True)

    def run_side(
        self,
        side: int,
        arguments: Arguments,
        observer: Observer | None = None,
        *,
        backward: bool = True,
        between: Callable[[Running], None] | None = None,
    ) -> StepTrace:
        """One of the models, 0 for base; ``between`` happens when its forward is over."""
        session, job = (self._base, self._raw)[side], self.job
        follow = self._backward and backward
        return session.run(
            self._step, arguments, loss_fn=job.losses[side], backward=follow, observer=observer, between=between
        )

    def forward_of(self, side: int) -> StepTrace:
        """The same without backward, and nobody is told."""
        session, job = (self._base, self._raw)[side], self.job
        return session.run(self._step, job.arguments()[side], loss_fn=job.losses[side], backward=False)

    def _side_by_side(self, *, apart: bool = False) -> StepComparison:
        job, base = self.job, self._base
        Allowance(base, self._raw).begin()
        if not apart and self._may_run_in_turns():
            done = self._in_lockstep()
            if done is not None:
                return done
        arguments = job.arguments()[0]
        # Base runs through first: its outputs and gradients are held, its autograd graph is not.
        base_trace = self._randomness.run_base(lambda: self._runs_base(arguments), lambda: self.forward_of(0))
        if share_a_parameter(job.base, job.raw):
            base_trace = _set_aside(base, base_trace)
        known, self.job = job, narrowed(job, (base.autocast,))
        job = self.job
        base_trace = base_trace if job is known else self._without_backward(base_trace)
        if job.tolerance.mode == "auto":
            set_apart(job.base, base_trace, stepped=job.optimizers is not None)
        if job.tolerance.mode == "auto" and not self._dtype_waits:
            self._predict(base_trace)
            if self._must_listen(base_trace):
                base.rewind()
                return self._side_by_side(apart=apart)
        self._keeping.base.ran(base_trace)
        base_trace, raw_trace = self._raw_in_its_dtype(base_trace)
        if self._listens_anew:
            self._listens_anew = False
            base.rewind()
            self._raw.rewind()
            return self._side_by_side(apart=apart)
        if apart:
            for live, trace in ((job.base, base_trace), (job.raw, raw_trace)):
                set_apart(live, trace, stepped=job.optimizers is not None)
        return self._finished(base_trace, raw_trace)

    def _must_listen(self, base: StepTrace) -> bool:
        """Whether base may draw from a generator of its own, and runs again for it; where it returns something else for
        no such reason, that is said."""
        job = self.job
        if self.noise is None or not differs_from_itself(
            self._base, base, lambda: job.arguments()[0], self.noise, job.tolerance.narrow
        ):
            return False
        if self._randomness.begins_to_listen():
            return True
        self.doubts.append(
            "base returns something else when it runs again on the same inputs and random numbers: it is not "
            "deterministic, and nothing can be held against it"
        )
        return False

    def _predict(self, base: StepTrace) -> None:
        """How far rounding moves what base computes, as far as the tolerance knows of dtypes by now."""
        job = self.job
        self.noise = predict_noise(
            self._base,
            base,
            lambda: job.arguments()[0],
            loss_fn=job.losses[0],
            step=job.tolerance.narrow,
            drift=self._drift,
            runs=job.tolerance.runs,
            kinks=self._kinks_matter(base),
        )

    def _raw_in_its_dtype(self, base: StepTrace) -> tuple[StepTrace, StepTrace]:
        """Raw beside what base did, which comes with it. Where it turns out to compute in a narrower dtype while all of
        base is still held, it ends there, and begins anew beside what rounding to that dtype explains."""
        job, raw, trial = self.job, self._raw, self._trial

        def narrower(dtype: str, ended: int) -> None:
            held_back = trial is not None and trial.found is None
            if (held_back or not ended) and narrowed(self.job, (dtype,)) is not self.job:
                self.job = narrowed(self.job, (dtype,))
                raise Narrower

        if job.tolerance.mode == "auto" and not (self._dtype_waits or self.compiled or self._keeping.raw.writes):
            raw.on_autocast = narrower
        try:
            return base, self.run_raw(base, backward=job.backward)
        except Narrower:
            raw.rewind()
            base = self._without_backward(base)
            self._predict(base)
        except LeftTies:
            raw.rewind()
        finally:
            raw.on_autocast = None
        return base, self.run_raw(base, backward=job.backward)

    def _without_backward(self, base: StepTrace) -> StepTrace:
        """What base did, without what it need not have done, now that a narrower dtype is known of."""
        if not (self.follows and self.may_follow_later):
            return base
        self.follows = False
        base = replace(base, gradients={}, parameter_gradients={}, ran_backward=False)
        return base if self.job.losses[0] is not None else replace(base, loss=None)

    def _kinks_matter(self, base: StepTrace) -> bool:
        """Whether numbers that cross zero by rounding are put right: not where raw's gradients must be its own."""
        job = self.job
        rounds = job.tolerance.mode == "auto" and not job.tolerance.narrow
        return rounds and job.optimizers is None and base.ran_backward

    def run_raw(self, base: StepTrace, *, backward: bool) -> StepTrace:
        """Raw beside what base did."""
        trial = self._trial
        if trial is not None:
            trial.fill()
        if trial is not None and trial.found is None and self._raw.listen is not None:
            # Whom it is to draw like must be known when it runs.
            trial.look_first(base, self.job.arguments()[1])
            self.modules = self._matched.modules
        return self._randomness.run_raw(base.calls, lambda: self._runs_raw(base, backward), lambda: self.forward_of(1))

    def _runs_base(self, arguments: Arguments) -> StepTrace:
        trial = self._trial
        if trial is None or trial.knows_base:
            return self.run_side(0, arguments)
        found = trial.run_base(self._step, arguments, backward=self._backward)
        self.modules = self._matched.modules
        return found

    def _runs_raw(self, base: StepTrace, backward: bool) -> StepTrace:
        arguments, trial = self.job.arguments()[1], self._trial
        if trial is not None and trial.found is None:
            follow = self._backward and backward
            beside = functools.partial(self._told, base)
            found = trial.run(
                base,
                self._step,
                arguments,
                backward=follow,
                beside=beside,
                between=self._before_backward,
            )
            if found is not None:
                return found
            observer, arguments = beside(), self.job.arguments()[1]
        elif self._dtype_waits:
            late = Late()
            if self._raw.picks is not None:
                self._raw.picks.wait()

            def between(running: Running) -> None:
                late.hand_on(self._beside(base))
                self._before_backward(running)

            return self.run_side(1, arguments, late, backward=backward, between=between)
        else:
            observer = self._beside(base)
        return self.run_side(1, arguments, observer, backward=backward, between=self._before_backward)

    def _told(self, base: StepTrace) -> Observer:
        """Who is told what raw does, now that it is known what belongs together."""
        self.modules = self._matched.modules
        return self._beside(base)

    def _beside(self, base: StepTrace) -> Observer:
        if self._dtype_waits:
            self._dtype_waits = False
            self.job = narrowed(self.job, (self._raw.autocast,))
            self._predict(base)
            self._listens_anew = self._must_listen(base)
            if self._raw.picks is not None and self._raw.picks.left_ties() and not self._listens_anew:
                raise LeftTies
        watcher, trial = self._watching(base), self._trial
        self._leveller = Leveller(watcher)
        told = self._keeping.raw.beside(self._step, self._leveller)
        if trial is None or trial.projection is None or not trial.beyond:
            return told
        names, trial.beyond = trial.beyond, frozenset()
        self._beyond = Beyond(told, names, base, trial.projection, watcher.partner)
        return self._beyond

    def _before_backward(self, raw: Running) -> None:
        """Raw waits between forward and backward."""
        trial, beyond = self._trial, self._beyond
        if trial is not None and beyond is not None:
            self._base.loss_outputs, self._raw.loss_outputs = trial.held.outputs
        self._level_what_crossed()
        if trial is not None and beyond is not None and self.levelled is None:
            found = beyond.found()
            if found is None:
                raise Mistaken(trial.held)
            if found:
                raw.follow_also(found)
        self._beyond = None

    def _level_what_crossed(self) -> None:
        """Where both share gradients differently, numbers that crossed send nothing back in base, which runs again for
        it, nor in raw."""
        watcher, crossings, leveller = self.watcher, self.crossings, self._leveller
        if watcher is None or crossings is None or leveller is None:
            return
        if not crossings.of_tensors or not self.shares_otherwise or self.compiled:
            return
        if self._keeping.base.writes or self._keeping.raw.writes or share_a_parameter(self.job.base, self.job.raw):
            return
        self.levelled = base_levelled(self.job, self._base, self._step, crossings)
        watcher.goes_on_with(self.levelled.gradients)
        leveller.places = crossings.of_side(1)

    def _in_lockstep(self) -> StepComparison | None:
        """Forward of both, then both backward passes in turns: what is held of base is what autograd holds anyway.

        None where base turns out to draw random numbers, which raw is to be given, or to do more in backward than
        follow gradients; it is then as before the step.
        """
        job, base, raw = self.job, self._base, self._raw
        base_arguments, raw_arguments = job.arguments()
        turns = Lockstep()
        with base.begun(self._step, base_arguments, loss_fn=job.losses[0], backward=True) as first:
            first.recorder.log.made = lambda number, gradient: turns.made(number, 4 * math.prod(gradient.shape))
            seen = first.forward()
            if (base.drew and self._randomness.begins_to_listen()) or not first.recorder.plain_backward:
                base.rewind()
                return None
            self._randomness.run_base(lambda: seen, lambda: seen)
            watcher = self._watching(seen)
            told = self._keeping.raw.beside(self._step, watcher)
            with raw.begun(self._step, raw_arguments, loss_fn=job.losses[1], backward=True, observer=told) as second:
                second.forward()
                watcher.wait_for = turns.wait_for
                base_trace, raw_trace = turns.run(first.backward, second.backward)
        raw_trace = self._randomness.run_raw(seen.calls, lambda: raw_trace, lambda: self.forward_of(1))
        return self._finished(base_trace, raw_trace)

    def _may_run_in_turns(self) -> bool:
        """Nobody asks for base's tensors before raw runs, and no parameter takes the gradients of both."""
        job = self.job
        return (
            job.backward
            and job.tolerance.mode != "auto"
            and not (job.ops or self.compiled)
            and self._randomness.quiet
            and self._is_large()
            and not self._keeping.base.writes
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
        pairing = CallPairing(job.base.tree, job.raw.tree, self.modules, base.calls, twins=self._matched.twins)
        self.crossings = Crossings() if self._kinks_matter(base) else None
        self.levelled = None
        self.watcher = SideBySide(
            base, pairing, job.tolerance, job.base.tree, self._matched.twins, self.noise, self.crossings
        )
        return self.watcher

    def _finished(self, base_trace: StepTrace, raw_trace: StepTrace) -> StepComparison:
        job = self.job
        assert self.watcher is not None
        self._keeping.raw.ran(raw_trace)
        if self.levelled is not None:
            made = self.levelled
            base_trace = replace(base_trace, gradients=made.gradients, parameter_gradients=made.parameter_gradients)
        done = replace(self.watcher.finish(raw_trace), base=base_trace)
        if self.crossings is not None and self.crossings.mended:
            self.notes.append(WENT_ON)
        if self._raw.picks is not None and self._raw.picks.mended:
            self.notes.append(PICKED)
        state = State(job, self._matched.plan, self._step, self.noise)
        found = [*done.comparisons, *state.loss(base_trace.loss, raw_trace.loss, done.comparisons)]
        if self._backward:
            gradients = (base_trace.parameter_gradients, raw_trace.parameter_gradients)
            judged = state.tensors("gradient", "parameter", *gradients)
            found += judged
            if self.levelled is not None:
                self.notes.append(NOTE if all(one.agrees for one in judged) else LEFT_OUT)
        return replace(done, comparisons=tuple(found))


def _set_aside(base: Session, trace: StepTrace) -> StepTrace:
    """Base's gradients out of the way of raw's, which would be added to them."""
    adapter = base.live.adapter
    kept: dict[str, Value | None] = {}
    for path, parameter in base.live.parameters().items():
        gradient = adapter.gradient(parameter)
        kept[path] = None if gradient is None else unscaled(Held(adapter, adapter.clone(gradient)), base.scale)
        adapter.set_gradient(parameter, None)
    return replace(trace, parameter_gradients=kept)
