"""One step of two models that ran apart: what their dumps hold of it, and where it parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from padiff.align import CallPairing, orders_of, stretches_of
from padiff.capture.jitter import spacing_of
from padiff.diagnose import find_divergence
from padiff.diagnose.divergence import divergence_of
from padiff.engine.apart.apart_state import ApartState
from padiff.engine.apart.apart_why import explained_apart
from padiff.engine.apart.clipping import FORGOTTEN, but_for_a_factor, by_one_factor, inside_the_step
from padiff.engine.apart.clipping import NOTE as CLIPPED
from padiff.engine.apart.growth import forgiven
from padiff.engine.apart.heard import own_draws, replayed_in, stored_gaps
from padiff.engine.apart.jumps import excused, explained_by_a_jump
from padiff.engine.apart.replay import Replay, in_order, synchronised
from padiff.engine.apart.stored import dtype_named, stored_noise
from padiff.engine.apart.summaries import Summaries
from padiff.engine.covered_draws import with_covered_draws
from padiff.engine.explaining.after_step import MOST_STEPS, path_of
from padiff.engine.explaining.why import explained_places
from padiff.engine.fed.second_look import as_shares, shares_of
from padiff.engine.filling.left_out import as_both_hold
from padiff.engine.free.side_by_side import SideBySide
from padiff.engine.job import Job
from padiff.engine.ops.ops_beside import named_by_ops, with_ops
from padiff.engine.ops.summed_ops import summed_alike
from padiff.engine.randomness import told_gaps
from padiff.records import Comparison, Divergence, DrawGap, ModulePairs, Noise, Phase, StepComparison, WeightPlan
from padiff.store import Dump, StepDump

SEVERAL = "gradients that are accumulated over more calls, or a block that ended within the step"
UNSTEPPED = "a scaler skipped it, it is not the one that was given as optimizer=, or the block ended before"


class ApartStep:
    """Holds steps of two dumps against each other, one after the other."""

    def __init__(
        self,
        job: Job,
        plan: WeightPlan,
        modules: ModulePairs,
        dumps: Mapping[str, Dump],
        state: ApartState,
        *,
        twins: bool,
        summed: bool,
    ) -> None:
        self._job, self._plan, self._modules, self._dumps, self._state = job, plan, modules, dumps, state
        self._twins, self._summed = twins, summed
        self.notes: list[str] = []
        self.doubts: list[str] = []
        """What keeps the steps from supporting a verdict."""
        self.replayed = 0
        """How many of base's draws raw was given."""
        self.jumped = False
        """Weights may differ from here on by more than was predicted, and nothing is wrong."""

    def compare(self, base: StepDump, raw: StepDump) -> tuple[StepComparison, list[Divergence]]:
        """What was compared of a step, and the places where it parts."""
        noise, local = stored_noise(base)
        calls = [sum(call.parent < 0 for call in step.calls) for step in (base, raw)]
        if calls[0] != calls[1]:
            told = [
                f"{side} calls the model {_often(count)}" for side, count in zip(("base", "raw"), calls, strict=True)
            ]
            self.notes.append(f"step {base.number}: {', '.join(told)}: {SEVERAL}")
        stepped = [step.extra.get("optimizer_stepped", "optimizer" in step.extra or None) for step in (base, raw)]
        if None not in stepped and stepped[0] != stepped[1]:
            sides = ("base", "raw") if stepped[0] else ("raw", "base")
            self.notes.append(
                f"step {base.number}: {sides[0]}'s optimizer stepped and {sides[1]}'s did not: {UNSTEPPED}"
            )
        if base.extra.get("repeats") is False:
            self.notes.append("base did something else when it was run again: what is rounding goes by dtype")
        noise = self._scaled(noise, raw)
        fed = not self._summed and synchronised(raw)
        gaps = stored_gaps(raw)
        self.notes += told_gaps(gaps)
        self.replayed += replayed_in(raw) or 0
        if fed:
            replay = Replay(self._job, self._plan, self._modules, self._twins)
            located, done = replay.run(base, raw, {key: gap * self._width() for key, gap in local.items()}, gaps)
            found = explained_places(located)
            done = replace(done, comparisons=(*done.comparisons, *self._shapes(base, raw)))
        else:
            done, found = self._free(base, raw, noise), []
        start = self._state.start(base, raw)
        state = self._state.left(base, raw, noise, gradients=not fed)
        comparisons = [*done.comparisons, *state]
        clipped = None if self._summed or self._job.tolerance.mode != "auto" else but_for_a_factor(comparisons)
        moments = self._state.moments(base, raw, noise, clipped or comparisons, anyway=clipped is not None)
        if clipped is not None and inside_the_step(comparisons, moments):
            comparisons = clipped
            found = [one for one in found if one.phase != "gradient"]
            self.notes.append(f"step {base.number}: {CLIPPED}")
        elif clipped is not None:
            self.notes.append(f"step {base.number}: {FORGOTTEN}")
        elif found and by_one_factor([one for one in comparisons if one.phase == "gradient"]):
            found = [one for one in found if one.phase != "gradient"] or found  # clipped, wherever else it goes wrong
        comparisons += moments
        if not fed and self._job.tolerance.mode == "auto":
            comparisons = list(forgiven(comparisons))
            shares = shares_of(replace(done, comparisons=tuple(comparisons)), uneven=False)
            comparisons = list(as_shares(comparisons, shares))
        if not fed and (not done.alike or self._job.tolerance.mode != "auto"):
            comparisons = self._followed(comparisons, base, raw, noise)
        done = replace(done, comparisons=tuple(comparisons))
        if not fed and not self._summed and self._job.tolerance.mode == "auto":
            done = self._over_jumps(done)
        if not found:
            first = find_divergence(done, (self._job.base.tree, self._job.raw.tree))
            if first is not None:
                found = [first if self._summed else self._explained(first, done, base, raw, gaps)]
        if found and not self._summed:
            self.notes += self._own_draws(base, raw)
        done = with_ops(done, done.comparisons, diverged=bool(found))
        found = [named_by_ops(one, done, summed_alike(self._job.tolerance) if self._summed else None) for one in found]
        if found:
            self.notes += self._not_dumped(base, found[0].phase)
        wrong = [one for one in start if not one.agrees]
        if wrong:
            note = self._different_start(wrong, len(start))
            self.notes.append(note)
            if not found or found[0].phase != "forward":
                done = replace(done, comparisons=(*start, *done.comparisons))
                found = [divergence_of(wrong[0], (), (), note), *found]
        return with_covered_draws(done, found, gaps)

    def _explained(
        self, first: Divergence, done: StepComparison, base: StepDump, raw: StepDump, gaps: tuple[DrawGap, ...]
    ) -> Divergence:
        until, earlier = self._until(base), self._before(raw)
        return explained_apart(self._job, self._plan, first, done, base, raw, gaps, until, earlier)

    def _until(self, step: StepDump) -> list[StepDump]:
        """Base's steps from its first to this one, where its dump holds every one of them."""
        found = [one for one in self._dumps["base"].steps if one.number <= step.number]
        whole = [one.number for one in found] == list(range(len(found))) and len(found) <= MOST_STEPS
        return found if whole else []

    def _before(self, step: StepDump) -> StepDump | None:
        """Raw's step before this one, where its dump holds it."""
        return next((one for one in self._dumps["raw"].steps if one.number == step.number - 1), None)

    def _not_dumped(self, step: StepDump, phase: Phase) -> list[str]:
        """Steps before one that differs in which raw went its own way, and nobody looked; what an optimizer remembers
        of them is left even where raw was filled after them."""
        earlier = [one.number for one in self._dumps["base"].steps if one.number < step.number]
        first, last = (earlier[-1] if earlier else -1) + 1, step.number - 1
        if first > last or (not earlier and phase != "weight"):
            return []
        which = f"step {first} is" if first == last else f"steps {first} to {last} are"
        return [
            f"{which} not in the dumps: there each model had its own inputs and random draws, and what differs at step "
            f"{step.number} may come from there"
        ]

    def _own_draws(self, base: StepDump, raw: StepDump) -> list[str]:
        """Where the two drew other random numbers, nothing that follows from them can agree."""
        told = own_draws(base, raw)
        hint = f'capture raw with base="{self._dumps["base"].path}", which replays them, or switch dropout off'
        return [] if told is None else [f"{told}: {hint}"]

    def _over_jumps(self, done: StepComparison) -> StepComparison:
        """Gradients that rounding threw to the other side of a jump are no fault; what follows is not judged."""
        jump = explained_by_a_jump(done)
        if jump is None:
            return done
        told = "a number on a jump of a derivative (a ReLU's, a maximum's) fell to the other side by rounding"
        note = f"step {done.step}: {told}; sync=True judges gradients without such"
        if jump == "surely":
            self.notes.append(note)
        else:
            self.doubts.append(f"{note}; whether that is all cannot be told from these dumps")
        self.jumped = True
        return replace(done, comparisons=tuple(excused(done.comparisons)))

    def _followed(
        self, comparisons: list[Comparison], base: StepDump, raw: StepDump, noise: Noise | None
    ) -> list[Comparison]:
        """One side may use a tensor once more, and its gradient is another then. Where backward ends in the same,
        gradients of all parameters and of what the model is given, such accuse nobody."""
        wrong = [one for one in comparisons if one.phase == "backward" and not one.agrees]
        given = {slot.tensor for call in raw.calls if call.parent < 0 for slot in call.inputs}
        if not wrong or any(one.tensor in given for one in wrong):
            return comparisons
        gradients = self._state.gradients(base, raw, noise)
        if not gradients or not all(one.agrees for one in gradients):
            return comparisons
        many = "1 gradient of an activation" if len(wrong) == 1 else f"{len(wrong)} gradients of activations"
        self.notes.append(
            f"not compared: {many}; those of parameters agree, and the models use the tensors differently"
        )
        return [one for one in comparisons if one.phase != "backward" or one.agrees]

    def _free(self, base: StepDump, raw: StepDump, noise: Noise | None) -> StepComparison:
        """Raw's calls beside base's, as if they were just happening."""
        job = self._job
        trees, dumps = (job.base.tree, job.raw.tree), (self._dumps["base"], self._dumps["raw"])
        base_trace, raw_trace = as_both_hold((base.trace(), raw.trace()), trees, dumps, self._modules)
        parts = () if self._summed else stretches_of(self._modules, base_trace.calls, raw_trace.calls)
        modules = replace(self._modules, stretches=parts)
        if not self._summed:
            pairing = CallPairing(job.base.tree, job.raw.tree, modules, base_trace.calls, twins=self._twins)
            modules = replace(modules, orders=orders_of(pairing.by_occurrence(), base_trace.calls, raw_trace.calls))
        pairing = CallPairing(job.base.tree, job.raw.tree, modules, base_trace.calls, twins=self._twins)
        if self._summed:
            return Summaries(job, pairing, noise).step(base_trace, raw_trace)
        watcher = SideBySide(base_trace, pairing, job.tolerance, job.base.tree, self._twins, noise)
        for call, moment in in_order(raw_trace.calls):
            if moment == "tags":
                watcher.on_tag(call)
            elif moment == "ends":
                watcher.on_call(call)
                for slot in (*call.inputs, *call.outputs):
                    slot.value.release()
        for number, gradient in raw_trace.gradients.items():
            watcher.on_gradient(number, gradient)
            gradient.release()
        return watcher.finish(raw_trace)

    def _shapes(self, base: StepDump, raw: StepDump) -> list[Comparison]:
        """What a module returns on one side only: no call that is fed shows that."""
        free = self._free(base, raw, None).comparisons
        return [c for c in free if c.phase == "forward" and not c.agrees and c.outcome.reason == "structure"]

    def _different_start(self, wrong: Sequence[Comparison], of: int) -> str:
        place, base = path_of(wrong[0]), self._dumps["base"].path
        return (
            f"{len(wrong)} of {of} parameters differ before the first step, {place} first; capture raw with "
            f'base="{base}", weights="copy" to start from base\'s'
        )

    # --- noise

    def _scaled(self, noise: Noise | None, raw: StepDump) -> Noise | None:
        """The prediction for models of different dtypes, and for steps in which the model was called several times."""
        if noise is None or self._job.tolerance.mode != "auto":
            return None
        width = self._width()
        calls = max(1, sum(call.parent < 0 for call in raw.calls))

        def times(row: Mapping[Any, float], factor: float) -> dict[Any, float]:
            return {key: gap * factor for key, gap in row.items()}

        return replace(
            noise,
            tensors=times(noise.tensors, width),
            gradients=times(noise.gradients, width),
            parameters=times(noise.parameters, width * calls),
            buffers=times(noise.buffers, width * calls),
            weights=times(noise.weights, width),
            loss=None if noise.loss is None else noise.loss * width,
        )

    def _width(self) -> float:
        """How much further a narrower dtype moves things than base's own does."""
        narrow = self._job.tolerance.narrow
        if not narrow:
            return 1.0
        own = [spacing_of(dtype_named(t.dtype)) for t in self._job.base.parameters().values()]
        return max(1.0, narrow / min((one for one in own if one > 0), default=narrow))


def _often(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")
