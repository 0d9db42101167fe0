"""Two models that ran apart, compared by their dumps: the stages of a comparison, with nothing to run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from padiff.align import CallPairing, pair_modules
from padiff.capture.one_step import Arguments
from padiff.capture.perturb import spacing_of
from padiff.compare.arrays import missing
from padiff.diagnose import find_divergence
from padiff.diagnose.divergence import divergence_of
from padiff.engine.after_step import MOST_STEPS
from padiff.engine.apart_state import ApartState
from padiff.engine.apart_why import explained_apart
from padiff.engine.clipping import NOTE as CLIPPED
from padiff.engine.clipping import but_for_a_factor, inside_the_step
from padiff.engine.growth import forgiven
from padiff.engine.heard import own_draws, replayed_in, stored_gaps
from padiff.engine.job import Job
from padiff.engine.jumps import excused, explained_by_a_jump
from padiff.engine.left_out import not_dumped, without
from padiff.engine.matching import alike, match
from padiff.engine.ops_beside import named_by_ops, with_ops
from padiff.engine.randomness import told_gaps
from padiff.engine.replay import Replay, in_order, synchronised
from padiff.engine.result import Result
from padiff.engine.selecting import NO_STEP
from padiff.engine.shown_sources import show_sources
from padiff.engine.side_by_side import SideBySide
from padiff.engine.stored import StoredTree, dtype_named, stored_noise, stored_tree, stored_usage
from padiff.engine.summaries import Summaries, suspects
from padiff.engine.summed_ops import summed_alike
from padiff.engine.verdict import covered_parameters, result_of
from padiff.engine.why import explained_places
from padiff.engine.widths import narrowed
from padiff.errors import DumpError
from padiff.records import (
    Call,
    Comparison,
    Divergence,
    Noise,
    Phase,
    Rules,
    StepComparison,
    StepTrace,
    Tolerance,
)
from padiff.store import Dump, StepDump

Widen = Callable[[Tolerance, StoredTree, StoredTree], Tolerance]
ReadRules = Callable[[Any, StoredTree, StoredTree], tuple[Rules, dict[str, Any]]]


SEVERAL = "gradients that are accumulated over more calls, or a block that ended within the step"
UNSTEPPED = "a scaler skipped it, it is not the one that was given as optimizer=, or the block ended before"


class Apart:
    """Two dumps of one process each."""

    def __init__(
        self,
        base: Dump,
        raw: Dump,
        tolerance: Tolerance,
        rules: Any,
        read: ReadRules,
        widen: Widen,
        *,
        left: Collection[Phase] = ("gradient", "weight", "buffer"),
    ) -> None:
        for side, dump in (("base", base), ("raw", raw)):
            if not len(dump.steps):
                raise DumpError(f"the dump {dump.path} ({side}) holds no step", NO_STEP)
        self._dumps = {"base": base, "raw": raw}
        _check_pair(base, raw)
        show_sources(base, raw)
        trees = stored_tree(base), stored_tree(raw)
        tolerance = widen(tolerance, *trees)
        module_rules, weight_rules = read(rules, *trees)
        first = base.steps[0], raw.steps[0]
        self.summed = "full" not in (base.kind, raw.kind) or base.kind != raw.kind
        """Whether elements are lacking on a side: summaries are compared then."""
        self.job = Job(
            *trees,
            arguments=_nothing_to_run,
            backward=any(step.trace().ran_backward for step in first),
            tolerance=tolerance,
            rules=module_rules,
            weight_rules=weight_rules,
            uses=(stored_usage(first[0]), stored_usage(first[1])),
        )
        self.job = narrowed(self.job, (step.extra.get("autocast") for step in first))
        self._matching = match(self.job, run=True)
        self._plan = self._matching.plan
        self.plan = without(self._plan, trees[0].tree, trees[1].tree, not_dumped(base), not_dumped(raw))
        """Of where raw's tensors come from, what both dumps may hold."""
        self._state = ApartState(self.job, self.plan, frozenset(left), summed=self.summed)
        rules_now = replace(self.job.rules, alike=alike(self.job))
        self._modules = pair_modules(trees[0].tree, trees[1].tree, rules_now, anchors=self._matching.anchors)
        self._twins = self._matching.anchors is None
        self.notes: list[str] = []
        self.doubts: list[str] = []
        self._replayed = 0
        """How many of base's draws raw was given."""
        self._jumped = False
        """Weights may differ from here on by more than was predicted, and nothing is wrong."""
        if self._plan.problems:
            problem = self._plan.problems[0]
            self.doubts.append(f"base's weights don't fit into raw: {problem.message}")

    def run(self, on_step: Callable[[int, int], None] = lambda done, of: None, *, renumbered: bool = False) -> Result:
        """Compare what both have, up to the first step that diverges; what one has alone is a difference, too.

        ``renumbered`` holds the only step of one against the only step of the other, whatever their numbers.
        """
        base, raw = self._dumps["base"], self._dumps["raw"]
        held = {side: [step.number for step in dump.steps] for side, dump in self._dumps.items()}
        common = self.steps(renumbered=renumbered)
        done: list[StepComparison] = []
        found: list[Divergence] = []
        for place, (mine, theirs) in enumerate(common):
            on_step(place, len(common))
            step, found = self._step(mine, theirs)
            done.append(step)
            if found:
                break
            if self._jumped and step.base.ran_backward and place + 1 < len(common):
                self.notes.append(f"steps after {step.step} were not compared: their weights follow from that jump")
                break
        paired = {"base": {one.number for one, _ in common}, "raw": {other.number for _, other in common}}
        alone = [(n, side) for side in ("base", "raw") for n in held[side] if n not in paired[side]]
        if alone and not found:
            found = [self._alone(*min(alone))]
        if alone:
            for side in ("base", "raw"):
                numbers = [str(number) for number, whose in alone if whose == side]
                if numbers:
                    self.notes.append(f"only {side}'s dump holds {_listed('step', numbers)}")
        if not done:
            done = [self._nothing(min(held["base"] + held["raw"]))]
        self.notes += self._kinds()
        self.notes += [
            f"{side} {dump.extra['compiled']}" for side, dump in self._dumps.items() if "compiled" in dump.extra
        ]
        if self.summed and found:
            self.notes += suspects(found, done[-1], base, raw)
        result = result_of(self.job, self._plan, self._plan, self._modules, done, found, self.notes, self.doubts)
        return replace(result, replayed=self._replayed)

    def steps(self, *, renumbered: bool = False) -> list[tuple[StepDump, StepDump]]:
        """Steps that both have; where each has one and ``renumbered`` says so, whatever their numbers."""
        base, raw = self._dumps["base"].steps, self._dumps["raw"].steps
        if renumbered and len(base) == len(raw) == 1:
            return [(base[0], raw[0])]
        numbers = {step.number for step in raw}
        return [(step, self._dumps["raw"].step(step.number)) for step in base if step.number in numbers]

    def left_by(self, base: StepDump, raw: StepDump) -> list[Comparison]:
        """What two steps left, and nothing of what was computed in them."""
        return [one for one in self._state.left(base, raw, None) if one.role != "loss"]

    def covered(self) -> float:
        """The share of raw's parameters that have a partner in base."""
        return covered_parameters(self.job, self._plan)

    # --- one step

    def _step(self, base: StepDump, raw: StepDump) -> tuple[StepComparison, list[Divergence]]:
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
        fed = not self.summed and synchronised(raw)
        gaps = stored_gaps(raw)
        self.notes += told_gaps(gaps)
        self._replayed += replayed_in(raw) or 0
        if fed:
            replay = Replay(self.job, self._plan, self._modules, self._twins)
            located, done = replay.run(base, raw, {key: gap * self._width() for key, gap in local.items()}, gaps)
            found = explained_places(located)
            done = replace(done, comparisons=(*done.comparisons, *self._shapes(base, raw)))
        else:
            done, found = self._free(base, raw, noise), []
        start = self._state.start(base, raw)
        state = self._state.left(base, raw, noise, gradients=not fed)
        comparisons = [*done.comparisons, *state]
        clipped = None if self.summed or self.job.tolerance.mode != "auto" else but_for_a_factor(comparisons)
        moments = self._state.moments(base, raw, noise, clipped or comparisons, anyway=clipped is not None)
        if clipped is not None and inside_the_step(comparisons, moments):
            comparisons = clipped
            found = [one for one in found if one.phase != "gradient"]
            self.notes.append(f"step {base.number}: {CLIPPED}")
        comparisons += moments
        if not fed and self.job.tolerance.mode == "auto":
            comparisons = list(forgiven(comparisons))
        if not fed and (not done.alike or self.job.tolerance.mode != "auto"):
            comparisons = self._followed(comparisons, base, raw, noise)
        done = replace(done, comparisons=tuple(comparisons))
        if not fed and not self.summed and self.job.tolerance.mode == "auto":
            done = self._over_jumps(done)
        if not found:
            first = find_divergence(done, (self.job.base.tree, self.job.raw.tree))
            if first is not None:
                found = [
                    first
                    if self.summed
                    else explained_apart(self.job, self._plan, first, done, base, raw, gaps, self._until(base))
                ]
        if found and not self.summed:
            self.notes += self._own_draws(base, raw)
        done = with_ops(done, done.comparisons, diverged=bool(found))
        found = [named_by_ops(one, done, summed_alike(self.job.tolerance) if self.summed else None) for one in found]
        wrong = [one for one in start if not one.agrees]
        if wrong:
            note = self._different_start(wrong, len(start))
            self.notes.append(note)
            if not found or found[0].phase != "forward":
                done = replace(done, comparisons=(*start, *done.comparisons))
                found = [divergence_of(wrong[0], (), (), note), *found]
        return done, found

    def _until(self, step: StepDump) -> list[StepDump]:
        """Base's steps from its first to this one, where its dump holds every one of them."""
        found = [one for one in self._dumps["base"].steps if one.number <= step.number]
        whole = [one.number for one in found] == list(range(len(found))) and len(found) <= MOST_STEPS
        return found if whole else []

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
        self._jumped = True
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
        job = self.job
        base_trace, raw_trace = self._kept(base.trace(), "base"), self._kept(raw.trace(), "raw")
        pairing = CallPairing(job.base.tree, job.raw.tree, self._modules, base_trace.calls, twins=self._twins)
        if self.summed:
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
        place = ".".join(part for part in (wrong[0].raw_path, wrong[0].name) if part)
        base = self._dumps["base"].path
        return (
            f"{len(wrong)} of {of} parameters differ before the first step, {place} first; capture raw with "
            f'base="{base}", weights="copy" to start from base\'s'
        )

    # --- noise

    def _scaled(self, noise: Noise | None, raw: StepDump) -> Noise | None:
        """The prediction for models of different dtypes, and for steps in which the model was called several times."""
        if noise is None or self.job.tolerance.mode != "auto":
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
        narrow = self.job.tolerance.narrow
        if not narrow:
            return 1.0
        own = [spacing_of(dtype_named(t.dtype)) for t in self.job.base.parameters().values()]
        return max(1.0, narrow / min((one for one in own if one > 0), default=narrow))

    # --- what a dump does not hold

    def _kept(self, trace: StepTrace, side: str) -> StepTrace:
        """Without the tensors of modules that one of the sides was told to leave out."""
        nodes = self._left_out(side)
        if nodes is None:
            return trace
        calls = tuple(_bare(call) if call.node in nodes else call for call in trace.calls)
        met = {slot.tensor for call in calls for slot in (*call.inputs, *call.outputs)}
        gradients = {number: value for number, value in trace.gradients.items() if number in met}
        return replace(trace, calls=calls, gradients=gradients)

    def _left_out(self, side: str) -> set[int] | None:
        limited = {s: set(d.extra["only"]) for s, d in self._dumps.items() if "only" in d.extra}
        if not limited:
            return None
        trees = {"base": self.job.base.tree, "raw": self.job.raw.tree}
        partner = {"base": self._modules.pairs, "raw": tuple((r, b) for b, r in self._modules.pairs)}[side]
        other = "raw" if side == "base" else "base"
        kept = {node.index for node in trees[side].nodes if node.path in limited.get(side, {node.path})}
        if other in limited:
            wanted = {mine for mine, theirs in partner if trees[other].nodes[theirs].path in limited[other]}
            kept &= wanted
        return {node.index for node in trees[side].nodes} - kept

    def _kinds(self) -> list[str]:
        kinds = {side: dump.kind for side, dump in self._dumps.items()}
        if "hash" in kinds.values():
            return ["the dumps hold digests: only equality bit by bit was compared"]
        return ["statistics were compared, not elements"] if self.summed else []

    def _alone(self, number: int, side: str) -> Divergence:
        kinds = self.job.base.tree.nodes[0].kind, self.job.raw.tree.nodes[0].kind
        outcome = missing(f"step {number} is in {side}'s dump only")
        return divergence_of(Comparison("forward", number, "output", "", "", *kinds, "", outcome), (), (), "")

    def _nothing(self, number: int) -> StepComparison:
        empty = StepTrace(number, (), {}, None, {})
        return StepComparison(number, empty, empty, (), ())


def _check_pair(base: Dump, raw: Dump) -> None:
    """A run that was fed base's tensors says nothing beside another base."""
    made = raw.extra.get("base")
    if isinstance(made, Mapping) and made.get("synchronised") and made.get("identity") != base.identity:
        raise DumpError(
            f"the dump {raw.path} was captured with sync=True beside another base than {base.path}",
            "compare it with the dump that was given as base=, or capture it again",
        )


def _listed(what: str, numbers: Sequence[str]) -> str:
    shown = ", ".join(numbers[:10]) + (", ..." if len(numbers) > 10 else "")
    return f"{what} {shown}" if len(numbers) == 1 else f"{what}s {shown}"


def _often(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")


def _bare(call: Call) -> Call:
    return replace(call, inputs=(), outputs=(), ops=())


def _nothing_to_run() -> tuple[Arguments, Arguments]:
    return Arguments((), {}), Arguments((), {})
