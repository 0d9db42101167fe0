"""Two models that ran apart, compared by their dumps: the stages of a comparison, with nothing to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from padiff.align import CallPairing, pair_modules
from padiff.capture.perturb import spacing_of
from padiff.capture.session import Arguments
from padiff.compare.arrays import missing
from padiff.diagnose import find_divergence
from padiff.diagnose.divergence import divergence_of
from padiff.engine.apart_why import explained_apart
from padiff.engine.growth import forgiven
from padiff.engine.job import Job
from padiff.engine.matching import alike, match
from padiff.engine.replay import Replay, synchronised
from padiff.engine.result import Result
from padiff.engine.shown_sources import show_sources
from padiff.engine.side_by_side import SideBySide
from padiff.engine.state import State
from padiff.engine.stored import StoredTree, dtype_named, stored_noise, stored_tree, stored_usage
from padiff.engine.summaries import Summaries, suspects
from padiff.engine.verdict import result_of
from padiff.engine.why import explained_places
from padiff.errors import DumpError
from padiff.records import (
    Call,
    Comparison,
    Divergence,
    Noise,
    Rules,
    StepComparison,
    StepTrace,
    Tolerance,
    Value,
)
from padiff.store import Dump, StepDump

Widen = Callable[[Tolerance, StoredTree, StoredTree], Tolerance]
ReadRules = Callable[[Any, StoredTree, StoredTree], tuple[Rules, dict[str, Any]]]


class Apart:
    """Two dumps of one process each."""

    def __init__(self, base: Dump, raw: Dump, tolerance: Tolerance, rules: Any, read: ReadRules, widen: Widen) -> None:
        for side, dump in (("base", base), ("raw", raw)):
            if not len(dump.steps):
                raise DumpError(f"the dump {dump.path} ({side}) holds no step", "nothing was run while it was captured")
        self._dumps = {"base": base, "raw": raw}
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
        self._matching = match(self.job, run=True)
        self._plan = self._matching.plan
        rules_now = replace(self.job.rules, alike=alike(self.job))
        self._modules = pair_modules(trees[0].tree, trees[1].tree, rules_now, anchors=self._matching.anchors)
        self._twins = self._matching.anchors is None
        self.notes: list[str] = []
        self.doubts: list[str] = []
        if self._plan.problems:
            problem = self._plan.problems[0]
            self.doubts.append(f"base's weights don't fit into raw: {problem.message}")

    def run(self, on_step: Callable[[int, int], None] = lambda done, of: None) -> Result:
        """Compare what both have, up to the first step that diverges; what one has alone is a difference, too."""
        base, raw = self._dumps["base"], self._dumps["raw"]
        held = {side: [step.number for step in dump.steps] for side, dump in self._dumps.items()}
        common = [number for number in held["base"] if number in set(held["raw"])]
        done: list[StepComparison] = []
        found: list[Divergence] = []
        for place, number in enumerate(common):
            on_step(place, len(common))
            step, found = self._step(base.step(number), raw.step(number))
            done.append(step)
            if found:
                break
        alone = [(n, side) for side in ("base", "raw") for n in held[side] if n not in common]
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
        if self.summed and found:
            self.notes += suspects(found, done[-1], base, raw)
        return result_of(self.job, self._plan, self._plan, self._modules, done, found, self.notes, self.doubts)

    # --- one step

    def _step(self, base: StepDump, raw: StepDump) -> tuple[StepComparison, list[Divergence]]:
        noise, local = stored_noise(base)
        noise = self._scaled(noise, raw)
        fed = not self.summed and synchronised(raw)
        if fed:
            replay = Replay(self.job, self._plan, self._modules, self._twins)
            located, done = replay.run(base, raw, {key: gap * self._width() for key, gap in local.items()})
            found = explained_places(located)
        else:
            done, found = self._free(base, raw, noise), []
        start = self._start(base, raw)
        state = self._state(base, raw, noise, gradients=not fed)
        comparisons = [*done.comparisons, *state]
        if not fed and self.job.tolerance.mode == "auto":
            comparisons = list(forgiven(comparisons))
        done = replace(done, comparisons=tuple(comparisons))
        if not found:
            first = find_divergence(done, (self.job.base.tree, self.job.raw.tree))
            if first is not None:
                found = [first if self.summed else explained_apart(self.job, self._plan, first, done, base, raw)]
        wrong = [one for one in start if not one.agrees]
        if wrong:
            note = self._different_start(wrong, len(start))
            self.notes.append(note)
            if not found or found[0].phase != "forward":
                done = replace(done, comparisons=(*start, *done.comparisons))
                found = [divergence_of(wrong[0], (), (), note), *found]
        return done, found

    def _free(self, base: StepDump, raw: StepDump, noise: Noise | None) -> StepComparison:
        """Raw's calls beside base's, as if they were just happening."""
        job = self.job
        base_trace, raw_trace = self._kept(base.trace(), "base"), self._kept(raw.trace(), "raw")
        pairing = CallPairing(job.base.tree, job.raw.tree, self._modules, base_trace.calls, twins=self._twins)
        if self.summed:
            return Summaries(job, pairing, noise).step(base_trace, raw_trace)
        watcher = SideBySide(base_trace, pairing, job.tolerance, job.base.tree, self._twins, noise)
        for call in raw_trace.calls:
            watcher.on_call(call)
            for slot in (*call.inputs, *call.outputs):
                slot.value.release()
        for number, gradient in raw_trace.gradients.items():
            watcher.on_gradient(number, gradient)
            gradient.release()
        return watcher.finish(raw_trace)

    def _state(self, base: StepDump, raw: StepDump, noise: Noise | None, *, gradients: bool) -> list[Comparison]:
        """What the step left: the loss, gradients of parameters, weights, buffers."""
        found: list[Comparison] = []
        if self.summed:
            return Summaries(self.job, None, noise).state(self._plan, base, raw)
        state = State(self.job, self._plan, base.number, noise)
        if gradients:
            if base.loss is not None and raw.loss is not None:
                found += state.loss(base.loss, raw.loss, ())
            if base.trace().ran_backward and raw.trace().ran_backward:
                found += state.tensors("gradient", "parameter", base.parameter_gradients, raw.parameter_gradients)
        if base.weights and raw.weights:
            found += state.tensors("weight", "parameter", base.weights, raw.weights)
        buffers = self._one_convention(base, raw)
        found += state.tensors("buffer", "buffer", *buffers)
        return found

    def _one_convention(self, base: StepDump, raw: StepDump) -> tuple[dict[str, Value | None], dict[str, Value | None]]:
        """Buffers; where not every update was seen, without those that frameworks count differently."""
        whole = base.number == 0 or not any(step.extra.get("statistics_from_here") for step in (base, raw))
        found: list[dict[str, Value | None]] = []
        for live, step in ((self.job.base, base), (self.job.raw, raw)):
            own = {} if whole or live.adapter.name == self._other(live) else _conventional(live)
            found.append({path: value for path, value in step.buffers.items() if path not in own})
        return found[0], found[1]

    def _other(self, live: Any) -> str:
        return (self.job.raw if live is self.job.base else self.job.base).adapter.name

    def _start(self, base: StepDump, raw: StepDump) -> list[Comparison]:
        """The weights that the first step found: when these differ, everything does."""
        if base.number or not base.weights_before or not raw.weights_before:
            return []
        if self.summed:
            return Summaries(self.job, None, None).start(self._plan, base, raw)
        exact = self.job.tolerance
        if exact.mode == "auto":
            exact = replace(exact, predicted=0.0)
        state = State(replace(self.job, tolerance=exact), self._plan, base.number)
        return state.tensors("weight", "parameter", base.weights_before, raw.weights_before)

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


def _listed(what: str, numbers: Sequence[str]) -> str:
    shown = ", ".join(numbers[:10]) + (", ..." if len(numbers) > 10 else "")
    return f"{what} {shown}" if len(numbers) == 1 else f"{what}s {shown}"


def _bare(call: Call) -> Call:
    return replace(call, inputs=(), outputs=())


def _conventional(live: Any) -> set[str]:
    """Paths of buffers that frameworks count differently."""
    found: set[str] = set()
    for node in live.tree.nodes:
        spec = live.layer_spec(node.index)
        for name, stored in () if spec is None else spec.stored.items():
            if stored.convention or "var" in name:
                found.add(f"{node.path}.{name}".lstrip("."))
    return found


def _nothing_to_run() -> tuple[Arguments, Arguments]:
    return Arguments((), {}), Arguments((), {})
