"""One step of both models: side by side, and where something differs, once more with raw fed base's tensors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace

from padiff.capture.session import Session
from padiff.diagnose import find_divergence, given_otherwise
from padiff.engine.explaining.after_step import AfterStep
from padiff.engine.explaining.suspected import Suspected, found_in_backward, suspected
from padiff.engine.explaining.why import explained_places, explained_state
from padiff.engine.fed.gradients_later import with_fed_gradients, without_backward, wrong_in_backward
from padiff.engine.fed.lent import lent_weights
from padiff.engine.fed.localise import Located, localise
from padiff.engine.fed.second_look import (
    adds_much,
    agreeing_by_themselves,
    as_shares,
    asks_of_forward_alone,
    explained,
    may_hide,
    on_kinks,
    shares_of,
    wants_second_look,
    without_cut,
    without_idle_inputs,
)
from padiff.engine.filling.assumed import Trial
from padiff.engine.free.drift import UNCERTAIN, Drift, gradients_apart
from padiff.engine.free.free_run import FreeRun
from padiff.engine.free.kinks import BACKWARD, may_be_kinks, nudged, place_of, places, without_kinks_beside
from padiff.engine.free.levelled import NOTE, levelled_first, levelled_gradients, may_be_levelled, without_gradients
from padiff.engine.free.lone_outputs import with_lone_outputs
from padiff.engine.free.trips import with_trips
from padiff.engine.job import Job
from padiff.engine.keeping import Keeping
from padiff.engine.matched import Matched
from padiff.engine.ops.ops_beside import named_by_ops, with_ops
from padiff.engine.randomness import Randomness
from padiff.engine.single_step import single_step
from padiff.engine.state import State
from padiff.engine.widths import few_digits
from padiff.frameworks.compiled import OPENS, compiled_parts, sealed
from padiff.records import (
    Comparison,
    Divergence,
    ModulePairs,
    StepComparison,
    Tolerance,
    Value,
    WeightPlan,
)


class Step:
    """One step of both models, compared."""

    def __init__(
        self,
        job: Job,
        matched: Matched,
        base: Session,
        raw: Session,
        step: int,
        after: AfterStep,
        *,
        drift: Mapping[str, float],
        keeping: Keeping,
        randomness: Randomness,
        trial: Trial | None,
    ) -> None:
        self.keeping, self.randomness = keeping, randomness
        self.after = after
        self._matched, self.base, self.raw, self.step = matched, base, raw, step
        self.free = FreeRun(
            job, matched, base, raw, step, drift=drift, keeping=keeping, randomness=randomness, trial=trial
        )
        self.seen_into = False
        """Whether a second look was taken."""
        self.eager_only = False
        """Whether all that counts ran in eager form, since compiled code would not take base's random draws."""
        self._levelled: list[Comparison] | None = None
        """Parameters' gradients without what comes back through numbers on a kink; None until that was tried."""
        self.done: StepComparison | None = None
        """Forward and backward, compared; None until both have run."""
        self.notes, self.doubts = self.free.notes, self.free.doubts
        self.drift = dict(drift)
        """How far rounding has moved base's parameters by now."""

    @property
    def job(self) -> Job:
        return self.free.job

    @property
    def plan(self) -> WeightPlan:
        return self._matched.plan

    @property
    def modules(self) -> ModulePairs:
        """Which modules belong together, and since both ran, which calls do that are cut to stretches."""
        return self.free.modules

    @property
    def twins(self) -> bool:
        return self._matched.twins

    @property
    def compiled(self) -> bool:
        """Some part of a model is compiled: what is seen inside is its eager form, and proves nothing about it."""
        return self.free.compiled

    def run(self) -> tuple[StepComparison, list[Divergence]]:
        """The step as raw runs by itself; where something differs, once more with raw fed base's tensors."""
        if self.job.single_step is not None:
            return single_step(self, self.job.single_step)
        done = self.free.run()
        with ExitStack() as stack:
            if self._draws_apart(done):
                for session in (self.base, self.raw):
                    session.rewind()
                    stack.enter_context(session.eagerly())
                self.free.compiled, self.eager_only = False, True
                done = self.free.run()
            if self.free.follows:
                return self._judged(self._without_sealed(done))
            return self._judged(*self._with_gradients(done))

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

    def _with_gradients(self, done: StepComparison) -> tuple[StepComparison, Located | None]:
        """What ran forward only, with gradients from a second look, and that. Both run backward by themselves after all
        where no dtype was narrow, and where it cannot be taken, or finds something in models built differently."""
        second = self.second_look(done) if self.free.may_follow_later else None
        if second is not None and (second.alike or not wrong_in_backward(second)):
            return with_fed_gradients(done, second), second
        self.free.follows = True
        sessions = self.base, self.raw
        spent = [session.spent for session in sessions]
        for session in sessions:
            session.rewind()
        done = self.free.run()
        for session, before in zip(sessions, spent, strict=True):
            session.spent += before
        gradients = [one for one in done.comparisons if one.phase == "gradient"]
        if second is not None and not self.job.tolerance.narrow and not self._asks_for_more(done):
            return done, None  # few digits in both: what they come to by themselves tells enough
        return done, second if second is None or not _all_agree(gradients) else without_backward(second)

    def _judged(self, done: StepComparison, second: Located | None = None) -> tuple[StepComparison, list[Divergence]]:
        """What both have run, with the place where they part; ``second`` is a second look that was taken already."""
        self.done = done
        job, base, raw, noise = self.job, self.base, self.raw, self.free.noise
        located: list[Divergence] = []
        grown = False
        by_rounding = job.tolerance.mode == "auto" and not self.compiled
        told = without_idle_inputs(done)
        if by_rounding:
            shares = shares_of(done, uneven=self.free.shares_otherwise)
            known = {id(one) for one in shares}
            told = [one for one in told if id(one) not in known]
            done = self.done = replace(done, comparisons=tuple(as_shares(done.comparisons, shares)))
        wanted = second is not None or self._asks_for_more(done, told)
        if wanted and by_rounding and levelled_first(done, told, job.tolerance) and self._agree_levelled():
            done = replace(done, comparisons=tuple(on_kinks(done.comparisons)))
        elif wanted:
            with lent_weights(job, self.plan) if self._trained else nullcontext():
                second = second or self._looked_again(done, told)
                if second is not None and not second.alike:
                    second = replace(second, state=tuple(agreeing_by_themselves(second.state, done.comparisons)))
                if second is not None and by_rounding:
                    second = replace(second, faults=without_kinks_beside(second.faults))
                if second is not None and by_rounding and may_be_levelled(second) and self._agree_levelled():
                    second = without_gradients(second)
                    done = replace(done, comparisons=tuple(on_kinks(done.comparisons)))
                elif second is not None and by_rounding and may_be_kinks(second.faults, second.state):
                    second = self._without_kinks(done, second)
                    if not second.faults and all(one.agrees for one in second.state):
                        done = replace(done, comparisons=tuple(on_kinks(done.comparisons)))
                if second is not None:
                    with base.eagerly(), raw.eagerly():  # causes and ops are tried by running modules again
                        located = explained_places(second)
                    done = replace(done, local=second.comparisons)
            self.seen_into = second is not None
            if second is not None and by_rounding and not located:
                held = without_cut(done, self.modules.cut())
                done = replace(done, comparisons=tuple(explained(held, second.state)))
                grown = True
        trees = (job.base.tree, job.raw.tree)
        located = with_lone_outputs(located, done, trees)
        given = given_otherwise(done, located[0]) if located else None
        located = located if given is None else [given]
        found = list(done.comparisons)
        state = State(job, self.plan, self.step, noise)
        if job.optimizers is not None and not located and find_divergence(done, trees) is None:
            self.after.keep_weights()
            drift = None if noise is None else Drift(base, noise, gradients_apart(self.plan, done.comparisons))
            base.optimize(self.step, job.optimizers[0])
            raw.optimize(self.step, job.optimizers[1])
            if drift is not None and noise is not None:
                allowed = drift.noise(self.drift, UNCERTAIN)
                state = State(job, self.plan, self.step, replace(noise, weights=allowed))
                self.drift = drift.noise(self.drift)
            weights = state.tensors("weight", "parameter", base.weights(), raw.weights())
            found += weights
            if drift is not None and noise is not None and all(one.agrees for one in weights):
                found += self.after.moments.compare(self.step, noise, drift.gradients, done.comparisons)
        buffers = _buffers(base, raw, self.modules)
        moving = None if second is None else second.noise
        kept = state.with_buffers_of(moving).tensors("buffer", "buffer", *buffers)
        found += explained(kept, ()) if grown else kept
        self.after.keep_buffers(*buffers)
        self.keeping.base.end(base, buffers[0])
        self.keeping.raw.end(raw, buffers[1])
        for session, optimizer in zip((base, raw), job.optimizers or (None, None), strict=True):
            session.finish_step(optimizer)
        if job.optimizers is not None and job.steps > 1 and not located:
            if self.step == 0:
                self._say_what_is_left()
            left = state.tensors("gradient", "parameter", base.left_gradients(), raw.left_gradients())
            base.gathers_alike = raw.gathers_alike = bool(left) and all(one.agrees for one in left)
        # In compiled code an output of which another is made gets its own share of the gradient only.
        plain = replace(done, comparisons=tuple(found), alike=done.alike and not self.compiled)
        first = None if located else find_divergence(plain, trees)
        if first is not None:
            located = [self._of_compiled(first) if self.compiled else explained_state(first, plain, self.after)]
        if not self.compiled:
            located = with_trips(located, plain, self.modules.cut())
        done = with_ops(done, found, diverged=bool(located))
        return done, [named_by_ops(one, done) for one in located]

    @property
    def _trained(self) -> bool:
        """Whether both have taken steps that were found to agree: their weights differ by rounding and no more."""
        return self.step > 0 and self.job.optimizers is not None

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

    def _agree_levelled(self) -> bool:
        """Whether numbers that crossed a kink are all there is to gradients that differ."""
        crossings = self.free.crossings
        if crossings is None or not crossings.of_tensors or self.free.levelled is not None:
            return False
        if self._levelled is None:
            state = State(self.job, self.plan, self.step, self.free.noise)
            with lent_weights(self.job, self.plan) if self._trained else nullcontext():
                self._levelled = levelled_gradients(self.job, state, (self.base, self.raw), self.step, crossings)
            if _all_agree(self._levelled):
                self.notes.append(NOTE)
        return _all_agree(self._levelled)

    def _without_kinks(self, done: StepComparison, second: Located) -> Located:
        """Of gradients that differ, those that still do when the inputs are a little different."""
        job = nudged(self.job)
        again = None if job is None else self.second_look(done, job, earlier=second)
        if again is None:
            return second
        if again.scenes.watched is not None:
            second = replace(second, scenes=replace(second.scenes, watched=again.scenes.watched))
        still = places(again.faults, again.state)
        faults = tuple(fault for fault in second.faults if place_of(fault) in still)
        state = tuple(one for one in second.state if one.agrees or (one.raw_path, one.name) in still)
        if len(faults) < len(second.faults) or len(state) < len(second.state):
            self.notes.append(
                "some gradients differ where numbers lie on a kink (of a ReLU, of a maximum) and fall to either side "
                "by rounding; with inputs moved a little they agree"
            )
        return replace(second, faults=faults, state=state)

    def _asks_for_more(self, done: StepComparison, told: Sequence[Comparison] | None = None) -> bool:
        """Whether what both came to by themselves asks for a second look."""
        told, tolerance = without_idle_inputs(done) if told is None else told, self.job.tolerance
        if done.doubtful or wants_second_look(told, tolerance) or may_hide(told, self.free.noise):
            return True
        by_rounding = tolerance.mode == "auto" and not self.compiled
        spacing = few_digits(self.job) if by_rounding else 0.0
        return spacing > 0 and adds_much(done, spacing)

    def _looked_again(self, done: StepComparison, told: Sequence[Comparison]) -> Located | None:
        """A second look, without backward where forward is all there is to make sure of."""
        forward = done.base.ran_backward and not done.doubtful and asks_of_forward_alone(told, self.job.tolerance)
        found = self.second_look(done, backward=not forward)
        if forward and found is not None and (found.faults or any(not one.agrees for one in found.state)):
            return self.second_look(done)
        return found

    def second_look(
        self,
        done: StepComparison,
        job: Job | None = None,
        *,
        half_way: bool = False,
        earlier: Located | None = None,
        backward: bool = True,
    ) -> Located | None:
        """Raw fed base's tensors; None where a model cannot stand it (one that checks what it is given).

        ``half_way`` says that raw is known to raise: what it does until then counts. ``earlier`` is a look at the same
        models with other inputs.
        """
        job = job or self.job
        told = replace(done, comparisons=tuple(without_idle_inputs(done)))
        gradients = [one for one in told.comparisons if one.phase == "gradient"]
        differing = {one.phase for one in told.comparisons if not one.agrees}
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
                    drift={} if self._trained else self.drift,
                    gradients_agree=bool(gradients) and all(one.agrees for one in gradients),
                    gradients_differ=bool(differing & BACKWARD) and "forward" not in differing and not done.doubtful,
                    gradients_open=not self.free.follows,
                    backward=backward,
                    half_way=half_way,
                    earlier=earlier,
                    suspects=None if self.compiled else self._suspected(job, told, earlier),
                )
        except Exception as error:  # the models' own code, which ran through once already
            what = f"{type(error).__name__}: {error}".splitlines()[0]
            self.notes.append(
                f"raw could not be run on base's tensors, so the place is the first that differs ({what})"
            )
            return None

    def _suspected(self, job: Job, done: StepComparison, earlier: Located | None) -> Suspected | None:
        """Whose code a second look watches: by how both ran by themselves, or by what an ``earlier`` one found."""
        if earlier is None:
            return suspected(job, done, self._levelled)
        return found_in_backward(earlier.faults, earlier.state, earlier.pairs, earlier.scenes)

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


def _all_agree(comparisons: Collection[Comparison]) -> bool:
    """Whether there are any, and all do."""
    return bool(comparisons) and all(one.agrees for one in comparisons)


def _partner(why: str) -> str | None:
    """The path of a partner that was never called."""
    return why.partition("its partner ")[2].removesuffix(" never") if why.endswith(" never") else None


def _buffers(base: Session, raw: Session, modules: ModulePairs) -> tuple[dict[str, Value], dict[str, Value]]:
    """What the step left in both; a layer inside compiled code was updated as its partner was."""
    ours, theirs = base.updates(), raw.updates()
    of_base = {one: theirs[other] for one, other in modules.pairs if other in theirs}
    of_raw = {other: ours[one] for one, other in modules.pairs if one in ours}
    return base.buffers(of_base), raw.buffers(of_raw)
