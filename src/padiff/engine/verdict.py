"""The outcome of a run, and how much of the models it covers."""

from __future__ import annotations

from collections.abc import Sequence

from padiff.engine.explaining.hidden_settings import hidden_settings
from padiff.engine.job import Job
from padiff.engine.result import Result
from padiff.engine.shared import shared_in_base
from padiff.records import (
    FIRST_OP,
    Comparison,
    Divergence,
    Interruption,
    ModulePairs,
    StepComparison,
    Unmatched,
    WeightPlan,
)
from padiff.report.words import first_of

ENOUGH_PARAMETERS = 0.9


def result_of(
    job: Job,
    copied: WeightPlan | None,
    plan: WeightPlan,
    modules: ModulePairs,
    steps: list[StepComparison],
    divergences: Sequence[Divergence],
    more_notes: Sequence[str] = (),
    doubts: Sequence[str] = (),
    interruption: Interruption | None = None,
) -> Result:
    first = steps[0]
    compared = {comparison.raw_call for comparison in first.comparisons if _of_module(comparison)}
    calls = len(first.raw.calls)
    coverage = {
        "calls": len(compared) / calls if calls else 0.0,
        "outputs": _outputs(first),
        "parameters": covered_parameters(job, plan),
    }
    notes = list(dict.fromkeys(doubts))
    if interruption is not None:
        notes.insert(0, str(interruption))
    half = interruption is not None and len(steps) == 1
    if not coverage["outputs"] and not half:
        notes.append("the models' own outputs hold no tensors that could be compared")
    if coverage["parameters"] < ENOUGH_PARAMETERS:
        share = f"{100 * coverage['parameters']:.0f} % of raw's parameters"
        notes.append(f"only {share} have a partner in base: too little for a verdict")
    enough = not notes
    if job.backward and not half and not (first.base.ran_backward and first.raw.ran_backward):
        sides = [side for side, one in (("base", first.base), ("raw", first.raw)) if not one.ran_backward]
        why = "gradients are switched off here, or its loss does not depend on anything that takes a gradient"
        notes.append(f"backward was not run for {' and '.join(sides)}: {why}; only forward was compared")
    notes += [*_precision(first), *_layouts(first), *unsure(copied), *_shared(job, plan), *_special(job, plan)]
    notes += [*_of_its_own(plan), *dict.fromkeys(more_notes)]
    if not divergences and interruption is None:
        notes += hidden_settings(job, first.pairs)
    unmatched: list[Unmatched] = [*first.unmatched, *plan.unmatched]
    return Result(
        aligned=not divergences and enough,
        divergences=tuple(divergences),
        steps=tuple(steps),
        unmatched=tuple(dict.fromkeys(unmatched)),
        base=job.base.tree,
        raw=job.raw.tree,
        tolerance=job.tolerance,
        plan=copied,
        notes=tuple(notes),
        coverage=coverage,
        interruption=interruption,
    )


def _of_module(comparison: Comparison) -> bool:
    return comparison.role == "output" and comparison.raw_call < FIRST_OP and comparison.raw_kind != "tag"


def _layouts(step: StepComparison) -> list[str]:
    """What had to be done to hold the models' own results against each other."""
    found = []
    for comparison in step.comparisons:
        own = (comparison.base_path, comparison.raw_path, comparison.role) == ("", "", "output")
        if own and comparison.phase == "forward" and comparison.outcome.layout:
            which = f"the result {comparison.name!r}" if comparison.name else "the result"
            found.append(f"{which} of raw comes in another layout: compared with {comparison.outcome.layout}")
    return found


def unsure(plan: WeightPlan | None) -> list[str]:
    """Weights that could have come from elsewhere: what differs may be that."""
    entries = [entry for entry in plan.entries if entry.alternatives] if plan is not None else []
    if not entries:
        return []
    example = f"{entries[0]}, or {' / '.join(entries[0].alternatives[:3])}"
    return [f"{len(entries)} of raw's tensors could be filled otherwise: {example}"]


def _of_its_own(plan: WeightPlan) -> list[str]:
    """What raw learns and base does not: nothing shows in a run that starts with zeros there."""
    paths = [one.path for one in plan.unmatched if one.side == "raw" and one.kind == "parameter" and not one.idle]
    if not paths:
        return []
    what = "1 parameter" if len(paths) == 1 else f"{len(paths)} parameters"
    return [
        f"raw uses {what} that base has nothing for ({first_of(paths, 3)}): as they are, they are held against nothing"
    ]


def _shared(job: Job, plan: WeightPlan) -> list[str]:
    found = []
    for group in shared_in_base(job, plan):
        names = first_of([entry.path for entry in group], 4)
        source = group[0].sources[0].path
        found.append(
            f"base keeps {source} once, raw {len(group)} times ({names}): the sum of their gradients is compared, and "
            "after an optimizer's step they part"
        )
    return found


def _special(job: Job, plan: WeightPlan) -> list[str]:
    """What a function of the user's fills holds its values in its own way."""
    paths = [job.raw.tree.nodes[raw].path or "(model)" for _, raw, _ in plan.special]
    if not paths:
        return []
    what, shown = "1 layer is" if len(paths) == 1 else f"{len(paths)} layers are", first_of(paths, 3)
    return [f"{what} filled by a function of yours ({shown}): gradients and weights inside are not compared"]


def _precision(step: StepComparison) -> list[str]:
    """How many tensors are as far apart as a narrower dtype brings them."""
    count = sum(one.outcome.verdict == "precision" for one in step.comparisons)
    if not count:
        return []
    what = "1 tensor is" if count == 1 else f"{count} tensors are"
    return [f"{what} further apart than base's dtype explains, and as near as the narrower one does: precision"]


def _outputs(step: StepComparison) -> float:
    """Share of what raw returns that was compared: as its own, or as that of what raw wraps, where that is base."""
    root, base = step.raw.root, step.base.root
    if root is None or not root.outputs:
        return 0.0
    whole = -1 if base is None else base.index
    owns = (c for c in step.comparisons if c.raw_call == root.index or (whole >= 0 and c.base_call == whole))
    compared = {c.tensor for c in owns if c.role == "output" and c.tensor >= 0}
    compared &= {slot.tensor for slot in root.outputs}
    return len(compared) / len({slot.tensor for slot in root.outputs})


def covered_parameters(job: Job, plan: WeightPlan) -> float:
    """Share of raw's parameters that the plan holds against base's; those never used, or left out, don't count."""
    raw = job.raw
    tensors = raw.tensors()
    idle = [one.path for one in plan.unmatched if one.side == "raw" and one.idle]
    left_out = {id(tensors[path]) for path in idle if path in tensors}
    held = {id(tensors[entry.path]) for entry in plan.entries}
    for node in raw.tree.nodes:
        if node.path in job.rules.raw_skip:
            left_out |= {id(parameter) for _, parameter in raw.adapter.own_parameters(raw.modules[node.index])}
    for _, special, _ in plan.special:
        for inner in raw.tree.subtree(special):
            held |= {id(parameter) for _, parameter in raw.adapter.own_parameters(raw.modules[inner])}
    wanted = [id(parameter) for parameter in raw.parameters().values() if id(parameter) not in left_out]
    return sum(identity in held for identity in wanted) / len(wanted) if wanted else 1.0
