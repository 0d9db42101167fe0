"""One step of both models: side by side, and where something differs, once more with raw fed base's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from padiff.align import CallPairing
from padiff.capture.held import Held
from padiff.capture.scaling import unscaled
from padiff.capture.session import Session
from padiff.diagnose import find_divergence
from padiff.engine.after_step import AfterStep
from padiff.engine.calibrate import differs_from_itself, predict_noise, set_apart
from padiff.engine.drift import UNCERTAIN, Drift
from padiff.engine.job import Job
from padiff.engine.localise import Located, localise
from padiff.engine.second_look import explained, wants_second_look
from padiff.engine.side_by_side import SideBySide
from padiff.engine.state import State
from padiff.engine.trips import with_trips
from padiff.engine.why import explained_places, explained_state
from padiff.engine.widths import narrowed
from padiff.frameworks.compiled import compiled_parts, sealed
from padiff.frameworks.tree import LiveTree
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
    ) -> None:
        self.after = after
        self.job, self.plan, self.modules, self.base, self.raw = job, plan, modules, base, raw
        self.step, self.twins = step, twins
        self.compiled = bool(compiled_parts(job.base) or compiled_parts(job.raw))
        """Some part of a model is compiled: what is seen inside is its eager form, and proves nothing about it."""
        self.seen_into = False
        """Whether a second look was taken."""
        self.noise: Noise | None = None
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
            return self._single_step(self.job.single_step)
        done = self.done = self._without_sealed(self._as_narrow_as_they_are())
        job, base, raw = self.job, self.base, self.raw
        located: list[Divergence] = []
        if done.doubtful or wants_second_look(done.comparisons, job.tolerance):
            second = self.second_look(done)
            if second is not None:
                located = explained_places(second)
                done = replace(done, local=second.comparisons)
            self.seen_into = second is not None
            if second is not None and job.tolerance.mode == "auto" and not located and not self.compiled:
                done = replace(done, comparisons=tuple(explained(done.comparisons, second.state)))
        found = list(done.comparisons)
        state = State(job, self.plan, self.step, self.noise)
        trees = (job.base.tree, job.raw.tree)
        if job.optimizers is not None and not located and find_divergence(done, trees) is None:
            self.after.keep_weights()
            drift = None if self.noise is None else Drift(base, self.noise)
            base.optimize(self.step, job.optimizers[0])
            raw.optimize(self.step, job.optimizers[1])
            if drift is not None and self.noise is not None:
                allowed = drift.noise(self.drift, UNCERTAIN)
                state = State(job, self.plan, self.step, replace(self.noise, weights=allowed))
                self.drift = drift.noise(self.drift)
            found += state.tensors("weight", "parameter", base.weights(), raw.weights())
        buffers = base.buffers(), raw.buffers()
        found += state.tensors("buffer", "buffer", *buffers)
        self.after.keep_buffers(*buffers)
        for session, optimizer in zip((base, raw), job.optimizers or (None, None), strict=True):
            session.finish_step(optimizer)
        done = replace(done, comparisons=tuple(found))
        if located:
            return done, located if self.compiled else with_trips(located, done)
        first = find_divergence(done, trees)
        if first is not None and self.compiled and self.seen_into:
            why = "in their eager form the models agree: look at what the compiler made of them"
            first = replace(first, note=f"{first.note}; {why}" if first.note else why)
        if first is None or self.compiled:
            return done, [] if first is None else [first]
        return done, with_trips([explained_state(first, done, self.after)], done)

    def _single_step(self, phases: Literal["forward", "backward", "both"]) -> tuple[StepComparison, list[Divergence]]:
        """Every call of raw fed what base's was fed; what the models would have done by themselves is not compared."""
        job, base, raw = self.job, self.base, self.raw
        for side, session in enumerate((base, raw)):
            session.run(self.step, job.arguments()[side], loss_fn=job.losses[side], backward=job.backward)
            if side == 0 and _shared(job.base, job.raw):
                session.clear_gradients()
        located = localise(
            job,
            self.plan,
            self.modules,
            base,
            raw,
            self.step,
            twins=self.twins,
            tolerance=job.tolerance,
            backward=phases != "forward",
        )
        wanted = {"forward": ("forward",), "backward": ("backward", "gradient")}.get(
            phases, ("forward", "backward", "gradient")
        )
        comparisons = [one for one in (*located.comparisons, *located.state) if one.phase in wanted]
        found = [one for one in explained_places(located) if one.phase in wanted]
        if job.optimizers is not None and not found:
            state = State(job, self.plan, self.step)
            self.after.keep_weights()
            base.optimize(self.step, job.optimizers[0])
            raw.optimize(self.step, job.optimizers[1])
            comparisons += state.tensors("weight", "parameter", base.weights(), raw.weights())
        for session, optimizer in zip((base, raw), job.optimizers or (None, None), strict=True):
            session.finish_step(optimizer)
        scenes = located.scenes
        done = StepComparison(
            self.step,
            scenes.reference.trace,
            scenes.found,
            located.pairs,
            tuple(comparisons),
            located.unmatched,
            located.alike,
        )
        first = None if found else find_divergence(done, (job.base.tree, job.raw.tree))
        return done, found if first is None else [explained_state(first, done, self.after)]

    def second_look(self, done: StepComparison, *, half_way: bool = False) -> Located | None:
        """Raw fed base's tensors; None where a model cannot stand it (one that checks what it is given).

        ``half_way`` says that raw is known to raise: what it does until then counts.
        """
        job = self.job
        gradients = [one for one in done.comparisons if one.phase == "gradient"]
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
                    half_way=half_way,
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
        known, self.job = self.job, narrowed(self.job, (self.base.autocast, self.raw.autocast))
        if self.job is known:
            return done
        with self.base.again(), self.raw.again():
            return self._side_by_side(apart=True)

    def _side_by_side(self, *, apart: bool = False) -> StepComparison:
        job, base = self.job, self.base
        # Base runs through first: its outputs and gradients are held, its autograd graph is not.
        base_trace = base.run(self.step, job.arguments()[0], loss_fn=job.losses[0], backward=job.backward)
        if _shared(job.base, job.raw):
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
            )
            if self.noise is not None and differs_from_itself(
                base, base_trace, lambda: job.arguments()[0], self.noise, job.tolerance.narrow
            ):
                self.doubts.append(
                    "base returns something else when it runs again on the same inputs and random numbers: it is not "
                    "deterministic, and nothing can be held against it"
                )
        raw_trace = self.run_raw(base_trace, backward=job.backward)
        if apart:
            set_apart(job.base, base_trace)
            set_apart(job.raw, raw_trace)
        assert self.watcher is not None
        done = self.watcher.finish(raw_trace)
        state = State(job, self.plan, self.step, self.noise)
        outputs = [c for c in done.comparisons if c.raw_path == "" and c.role == "output" and c.phase == "forward"]
        found = [*done.comparisons, *state.loss(base_trace.loss, raw_trace.loss, outputs)]
        if job.backward:
            gradients = (base_trace.parameter_gradients, raw_trace.parameter_gradients)
            found += state.tensors("gradient", "parameter", *gradients)
        return replace(done, comparisons=tuple(found))

    def run_raw(self, base: StepTrace, *, backward: bool) -> StepTrace:
        """Raw beside what base did."""
        job = self.job
        pairing = CallPairing(job.base.tree, job.raw.tree, self.modules, base.calls, twins=self.twins)
        self.watcher = SideBySide(base, pairing, job.tolerance, job.base.tree, self.twins, self.noise)
        arguments = job.arguments()[1]
        return self.raw.run(self.step, arguments, loss_fn=job.losses[1], backward=backward, observer=self.watcher)


def _partner(why: str) -> str | None:
    """The path of a partner that was never called."""
    return why.partition("its partner ")[2].removesuffix(" never") if why.endswith(" never") else None


def _shared(base: LiveTree, raw: LiveTree) -> bool:
    """The two models hold a parameter in common, or are one."""
    ours = {id(parameter) for parameter in base.parameters().values()}
    return any(id(parameter) in ours for parameter in raw.parameters().values())


def _set_aside(base: Session, trace: StepTrace) -> StepTrace:
    """Base's gradients out of the way of raw's, which would be added to them."""
    adapter = base.live.adapter
    kept: dict[str, Value | None] = {}
    for path, parameter in base.live.parameters().items():
        gradient = adapter.gradient(parameter)
        kept[path] = None if gradient is None else unscaled(Held(adapter, adapter.clone(gradient)), base.scale)
        adapter.set_gradient(parameter, None)
    return replace(trace, parameter_gradients=kept)
