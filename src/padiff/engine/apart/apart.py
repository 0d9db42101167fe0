"""Two models that ran apart, compared by their dumps: the stages of a comparison, with nothing to run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from padiff.align import pair_modules
from padiff.capture.one_step import Arguments
from padiff.compare.arrays import missing
from padiff.diagnose.divergence import divergence_of
from padiff.engine.apart.apart_state import ApartState
from padiff.engine.apart.apart_step import ApartStep
from padiff.engine.apart.shown_sources import show_sources
from padiff.engine.apart.stored import StoredTree, stored_tree, stored_usage
from padiff.engine.apart.summaries import suspects
from padiff.engine.captured.selecting import NO_STEP
from padiff.engine.filling.left_out import not_dumped, without
from padiff.engine.filling.matching import alike, match
from padiff.engine.job import Job
from padiff.engine.result import Result
from padiff.engine.verdict import covered_parameters, result_of
from padiff.engine.widths import narrowed
from padiff.errors import DumpError
from padiff.records import (
    Comparison,
    Divergence,
    Phase,
    Rules,
    StepComparison,
    StepTrace,
    Tolerance,
)
from padiff.report.words import first_of
from padiff.store import Dump, StepDump

Widen = Callable[[Tolerance, StoredTree, StoredTree], Tolerance]
ReadRules = Callable[[Any, StoredTree, StoredTree], tuple[Rules, dict[str, Any]]]


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
        matching = match(self.job, run=True)
        self._plan = matching.plan
        self.plan = without(self._plan, trees[0].tree, trees[1].tree, not_dumped(base), not_dumped(raw))
        """Of where raw's tensors come from, what both dumps may hold."""
        self._state = ApartState(self.job, self.plan, frozenset(left), summed=self.summed)
        rules_now = replace(self.job.rules, alike=alike(self.job))
        self._modules = pair_modules(trees[0].tree, trees[1].tree, rules_now, anchors=matching.anchors)
        self._step = ApartStep(
            self.job,
            self._plan,
            self._modules,
            self._dumps,
            self._state,
            twins=matching.anchors is None,
            summed=self.summed,
        )
        if self._plan.problems:
            problem = self._plan.problems[0]
            self._step.doubts.append(f"base's weights don't fit into raw: {problem.message}")

    def run(self, on_step: Callable[[int, int], None] = lambda done, of: None, *, renumbered: bool = False) -> Result:
        """Compare what both have, up to the first step that diverges; what one has alone is a difference, too.

        ``renumbered`` holds the only step of one against the only step of the other, whatever their numbers.
        """
        base, raw = self._dumps["base"], self._dumps["raw"]
        notes = self._step.notes
        held = {side: [step.number for step in dump.steps] for side, dump in self._dumps.items()}
        common = self.steps(renumbered=renumbered)
        done: list[StepComparison] = []
        found: list[Divergence] = []
        for place, (mine, theirs) in enumerate(common):
            on_step(place, len(common))
            step, found = self._step.compare(mine, theirs)
            done.append(step)
            if found:
                break
            if self._step.jumped and step.base.ran_backward and place + 1 < len(common):
                notes.append(f"steps after {step.step} were not compared: their weights follow from that jump")
                break
        paired = {"base": {one.number for one, _ in common}, "raw": {other.number for _, other in common}}
        alone = [(n, side) for side in ("base", "raw") for n in held[side] if n not in paired[side]]
        if alone and not found:
            found = [self._alone(*min(alone))]
        if alone:
            for side in ("base", "raw"):
                numbers = [str(number) for number, whose in alone if whose == side]
                if numbers:
                    notes.append(f"only {side}'s dump holds {_listed('step', numbers)}")
        if not done:
            done = [self._nothing(min(held["base"] + held["raw"]))]
        notes += self._kinds()
        notes += [f"{side} {dump.extra['compiled']}" for side, dump in self._dumps.items() if "compiled" in dump.extra]
        if self.summed and found:
            notes += suspects(found, done[-1], base, raw)
        result = result_of(self.job, self._plan, self._plan, self._modules, done, found, notes, self._step.doubts)
        return replace(result, replayed=self._step.replayed)

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
    shown = first_of(numbers, 10)
    return f"{what} {shown}" if len(numbers) == 1 else f"{what}s {shown}"


def _nothing_to_run() -> tuple[Arguments, Arguments]:
    return Arguments((), {}), Arguments((), {})
