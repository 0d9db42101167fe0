"""Where raw's tensors come from and which modules belong together: rules, names, then the order of use."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

from padiff.align import pair_modules
from padiff.capture.one_step import Arguments, note
from padiff.capture.usage import first_use, used_as_defined
from padiff.compare.layouts import agree_in_any_layout
from padiff.engine.apart.stored import StoredTree
from padiff.engine.filling.decide import Chosen, by_numbers, decide, settled_by_values, taken
from padiff.engine.job import Job
from padiff.engine.outputs import Places, paired_outputs, places_in_common
from padiff.errors import ArgumentError
from padiff.frameworks.compiled import compiled_parts, eagerly
from padiff.frameworks.tree import LiveTree
from padiff.records import (
    Anchors,
    Choice,
    Group,
    ModulePairs,
    Question,
    Rules,
    Tolerance,
    Usage,
    WeightEntry,
    WeightPlan,
    WeightProblem,
)
from padiff.weights import is_filled, plan_by_use, plan_weights
from padiff.weights.by_use import Proposal, hold_the_same
from padiff.weights.rules import entries_of
from padiff.weights.special import special_kinds
from padiff.weights.words import words_of


@dataclass(frozen=True)
class Matching:
    """Where raw's tensors come from, and which modules belong together."""

    plan: WeightPlan
    anchors: Anchors | None = None
    """None where names and order of definition are evidence enough."""
    outputs: tuple[Places, Places] = (None, None)
    """The outputs of base and raw that correspond, where the models return others besides."""
    raised: Exception | None = None
    """What a model raised when it was run to see how it uses its tensors, where that may be why they don't fit."""
    settle: Callable[[frozenset[Question]], Matching] | None = None
    """Settles, by running raw with each option, the choices that were left at their defaults, but for those that it is
    told are known; None where none are left."""
    known: frozenset[Question] = frozenset()
    """Choices that need no settling any more."""
    by_use: Callable[[Usage, Chosen, Collection[Question]], Matching] | None = None
    """What holds instead, once it was seen how raw uses its tensors, where that is only assumed so far, what was chosen
    then, and what was tried and not told."""
    by_base: Callable[[Usage, Exception | None], Matching] | None = None
    """What is known once base has run, and was seen using its tensors until it ended or raised something: until then
    nothing is, and raw cannot be filled."""


def match(job: Job, *, run: bool, lazily: bool = False, fills: bool = True) -> Matching:
    """Plan the weights, the user's rules above all; ``lazily`` leaves choices at their defaults for now, ``fills`` says
    whether raw will be given base's weights, or keeps its own."""
    with eagerly(job.base), eagerly(job.raw):
        matching = _match(job, run=run, lazily=lazily and not job.weight_rules, fills=fills)
    if not job.weight_rules:
        return matching
    return override(job, matching, entries_of(job.weight_rules, job.base, job.raw))


def _match(job: Job, *, run: bool, lazily: bool, fills: bool) -> Matching:
    """Plan the weights at rest; where names don't settle it and ``run`` allows, look at the order of use as well."""
    rules = replace(job.rules, skip_parameterless=False, alike=alike(job))  # the first is about calls
    pairs = pair_modules(job.base.tree, job.raw.tree, rules, inside=True)
    plan = plan_weights(job.base, job.raw, pairs, job.special, lossy=bool(job.tolerance.narrow))
    told = plan.special or rules.pairs or rules.base_skip or rules.raw_skip
    if plan.special or (not plan.problems and (told or _same_names(plan))):
        return Matching(plan)
    planned = partial(_by_use, job, plan, rules, lazily=lazily)
    if not run:
        return planned((Usage(), Usage()), None)
    if job.uses is not None:
        return planned(job.uses, None)
    watched = lazily and _can_watch(job)

    def once_base_ran(base: Usage, raised: Exception | None) -> Matching:
        if watched and raised is None:
            assumed = planned((base, used_as_defined(job.raw)), None)
            fits = assumed.anchors is not None and not assumed.plan.problems
            if fits and (not fills or _values_agree(job, base, assumed.plan)):

                def by_use(raw: Usage, chosen: Chosen, untold: Collection[Question]) -> Matching:
                    return planned((base, raw), None, filled=fills, chosen=chosen, untold=untold)

                return replace(assumed, settle=None, by_use=by_use)
        raw, other = _use_of("raw", job.raw, job.arguments()[1])
        return planned((base, raw), raised or other)

    if watched:
        return Matching(plan, by_base=once_base_ran)
    return once_base_ran(*_use_of("base", job.base, job.arguments()[0]))


def _by_use(
    job: Job,
    plan: WeightPlan,
    rules: Rules,
    uses: tuple[Usage, Usage],
    raised: Exception | None,
    *,
    lazily: bool,
    filled: bool = False,
    chosen: Chosen | None = None,
    untold: Collection[Question] = (),
) -> Matching:
    """What both models' use of their tensors says beside ``plan``, which was made at rest; where one ``raised``, it was
    seen up to there. ``filled``: what raw holds was put there by us, and says nothing. ``chosen`` options are known;
    of ``untold`` choices none had their place return what base's does."""
    found = plan_by_use(
        job.base,
        job.raw,
        uses[0],
        uses[1],
        (rules.base_skip, rules.raw_skip),
        values=not filled and (_apart(job) or _equal_already(uses)),
        lossy=bool(job.tolerance.narrow),
    )
    other = found.plan
    if plan.problems and other.problems and uses[1].tensors and not _of_one_name(plan.problems[0]):
        return Matching(other, raised=raised)
    if other.problems or (not uses[1].tensors and not _told(other)):
        found_anyway = bool(plan.problems) and _of_one_name(plan.problems[0])
        return Matching(plan if plan.problems else _doubted(plan, other), raised=None if found_anyway else raised)
    if _apart(job):
        other = settled_by_values(job.base, job.raw, other)
    elif uses[1].tensors and raised is None and other.choices:
        taken_so_far = taken(other, chosen or {})

        idle = {one.asks for one in other.choices if not _is_used(one, uses[1])}

        def settle(known: frozenset[Question] = frozenset()) -> Matching:
            known |= idle  # no run of raw says anything of them
            with eagerly(job.base), eagerly(job.raw):
                tried = [one for one in other.choices if one.asks in untold and one.asks not in known]
                plan, told = by_numbers(job.base, job.raw, job.arguments, replace(taken_so_far, choices=tuple(tried)))
                decided = {one.asks: one for one in plan.choices}
                left = [one for one in other.choices if one.asks not in known and one.asks not in told]
                plan = decide(job.base, job.raw, job.arguments, replace(plan, choices=tuple(left)), uses[0].outputs)
            decided |= {one.asks: one for one in plan.choices}
            choices = tuple(decided.get(one.asks, one) for one in taken_so_far.choices)
            return _matched(job, found, replace(plan, choices=choices), uses)

        if not lazily:
            return settle()
        known = _matched(job, found, taken_so_far, uses)
        all_known = all(one.asks in (chosen or {}) for one in other.choices)
        return known if all_known else replace(known, settle=settle, known=frozenset(chosen or {}))
    if raised is not None:  # it will again when it is run for good, beside what the other did
        return replace(_matched(job, found, other, uses), outputs=(None, None), raised=raised)
    return _matched(job, found, other, uses)


def _is_used(choice: Choice, raw: Usage) -> bool:
    """Whether raw uses any tensor that a choice is about."""
    return any(entry.path in raw.tensors for _, entries in choice.options for entry in entries)


def _can_watch(job: Job) -> bool:
    """Whether the first runs of both, in which they are compared, can be watched: none has to come before."""
    return not (
        job.ops is not None or job.tolerance.mode != "auto" or compiled_parts(job.base) or compiled_parts(job.raw)
    )


def _values_agree(job: Job, base: Usage, plan: WeightPlan) -> bool:
    """Whether the numbers that raw holds say nothing else than a plan: they are its own, or just what it would copy."""
    written = (entry for entry in plan.entries if entry.written)
    return not hold_the_same(job.base, job.raw, base) or is_filled(job.base, job.raw, written)


def _matched(job: Job, found: Proposal, plan: WeightPlan, uses: tuple[Usage, Usage]) -> Matching:
    """What a plan by order of use, its choices settled, says about modules and outputs."""
    anchors = found.anchors(plan)
    anchors = replace(anchors, groups=tuple(_with_heads(job, group, plan) for group in anchors.groups))
    return Matching(plan, anchors, places_in_common(uses[0].outputs, uses[1].outputs))


def _doubted(plan: WeightPlan, other: WeightPlan) -> WeightPlan:
    """A plan at rest, with what names don't settle marked, and what else it could have been."""
    open_sets = {e.path: {e.sources[0].path, *e.alternatives} for e in other.entries if e.alternatives}
    entries = []
    for entry in plan.entries:
        source = entry.sources[0].path
        if source in open_sets.get(entry.path, ()):
            others = tuple(path for path in sorted(open_sets[entry.path]) if path != source)
            entry = replace(entry, confidence=min(entry.confidence, 0.6), alternatives=others)
        entries.append(entry)
    return replace(plan, entries=tuple(entries))


def _equal_already(uses: Sequence[Usage]) -> bool:
    """Both models return the same as they are: only then do equal values mean equal weights, not equal seeds."""
    pairs = paired_outputs(uses[0].outputs, uses[1].outputs)
    auto = Tolerance(mode="auto")
    return bool(pairs) and all(agree_in_any_layout(one, other, auto) for (_, one), (_, other) in pairs)


def _with_heads(job: Job, group: Group, plan: WeightPlan) -> Group:
    """A group whose fused tensor turned out to be laid out head by head."""
    paths = {job.raw.tree.nodes[node].path for node in group.raw}
    for entry in plan.entries:
        if entry.path.rpartition(".")[0] in paths:
            heads = entry.heads or next((s.interleaved[0] for s in entry.sources if s.interleaved), 0)
            if heads:
                return replace(group, heads=heads)
    return group


def override(job: Job, matching: Matching, entries: Sequence[WeightEntry]) -> Matching:
    """Entries that the user gives, in place of the plan's own for the same tensors; what they mend is no problem."""
    tensors = job.raw.tensors()
    unknown = [entry.path for entry in entries if entry.path not in tensors]
    if unknown:
        raise ArgumentError(f"raw has no tensor {unknown[0]!r}")
    base = job.base.tensors()
    lost = [source.path for entry in entries for source in entry.sources if source.path not in base]
    if lost:
        raise ArgumentError(f"base has no tensor {lost[0]!r}")
    buffers = {id(buffer) for buffer in job.raw.buffers().values()}
    entries = [replace(e, role="buffer" if id(tensors[e.path]) in buffers else "parameter") for e in entries]
    given = {id(tensors[entry.path]) for entry in entries}
    read = {source.path for entry in entries for source in entry.sources}
    free = any(entry.function is not None for entry in entries)
    plan = matching.plan
    kept = [entry for entry in plan.entries if id(tensors[entry.path]) not in given]
    problems = []
    for problem in plan.problems:
        filled = id(tensors.get(problem.raw_path)) in given or problem.base_path in read
        unplaced = problem.base_path in base and problem.raw_path not in tensors  # a function may read it
        if not filled and not (free and unplaced):
            problems.append(problem)
    unmatched = [one for one in plan.unmatched if one.path not in read]
    changed = replace(plan, entries=(*kept, *entries), problems=tuple(problems), unmatched=tuple(unmatched))
    return replace(matching, plan=changed)


def _apart(job: Job) -> bool:
    """Both ran elsewhere, and raw holds the weights it ran with: what is equal to base's was filled from it."""
    return isinstance(job.base, StoredTree) and isinstance(job.raw, StoredTree) and job.base.whole and job.raw.whole


def _told(plan: WeightPlan) -> bool:
    """Without a run only a plan that leaves nothing over and guesses nothing is better than saying what is wrong."""
    left = any(one.side == "base" and one.kind == "parameter" for one in plan.unmatched)
    return not left and all(entry.confidence >= 0.9 for entry in plan.entries)


def _of_one_name(problem: WeightProblem) -> bool:
    """It holds a tensor against the one of the same name: nothing says more precisely what is wrong."""
    return bool(problem.base_path) and words_of(problem.base_path) == words_of(problem.raw_path)


def alike(job: Job) -> frozenset[tuple[str, str]]:
    return special_kinds(job.base.adapter.name, job.raw.adapter.name)


def modules_of(job: Job, matching: Matching) -> ModulePairs:
    """Which modules belong together."""
    return pair_modules(job.base.tree, job.raw.tree, replace(job.rules, alike=alike(job)), anchors=matching.anchors)


def _use_of(side: str, live: LiveTree, arguments: Arguments) -> tuple[Usage, Exception | None]:
    """How a model uses its tensors, as far as it comes; and what it raised."""
    usage, error = first_use(live, arguments)
    if error is not None:
        why = "run first to see in which order it uses its weights, since names don't tell how to fill raw"
        note(error, f"padiff: raised by the {side} model {live.tree.name} ({live.adapter.name}), {why}")
    return usage, error


def _same_names(plan: WeightPlan) -> bool:
    """Every tensor is filled from the one of the same owner's name."""
    return all(
        _same_owner(entry.path.rpartition(".")[0], source.path.rpartition(".")[0])
        for entry in plan.entries
        for source in entry.sources
    )


def _same_owner(one: str, other: str) -> bool:
    """The same module, or one inside it: a layer matched as one thing keeps its tensors where it likes."""
    return one == other or one.startswith(other + ".") or other.startswith(one + ".")
