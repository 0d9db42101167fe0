"""Choices that names leave open, settled by the comparison itself: raw runs with their defaults, mostly right ones.

Only where it shows a fault inside a place that a choice is about, the other options are tried, and what they change is
compared once more.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from padiff.engine.filling.assumed import Mistaken
from padiff.engine.filling.decide import settled
from padiff.engine.filling.matching import Matching
from padiff.engine.result import Result
from padiff.engine.verdict import unsure
from padiff.records import Choice, WeightPlan

Run = Callable[[Matching], tuple[Result, Matching]]
"""Compares on what is given, and says on what it stood in the end."""


def first_try(matching: Matching, run: Run) -> Result:
    """What a run says, once nothing is open that could be to blame for it."""
    result, matching = _run(matching, run)
    plan = matching.plan
    if matching.settle is None:
        return result
    known = [number for number, choice in enumerate(plan.choices) if choice.asks in matching.known]
    where = {n: said for n, said in _settled_by(result, plan.choices).items() if n not in known}
    if len(where) + len(known) == len(plan.choices):
        return _with_plan(result, settled(plan, _chosen(plan), where, known))
    other = matching.settle(matching.known | {plan.choices[number].asks for number in where})
    if _chosen(other.plan) != _chosen(plan):
        return run(other)[0]
    told = [number for number in range(len(plan.choices)) if number not in where]
    return _with_plan(result, settled(other.plan, _chosen(other.plan), where, told))


def _chosen(plan: WeightPlan) -> list[int]:
    return [choice.chosen for choice in plan.choices]


def _run(matching: Matching, run: Run) -> tuple[Result, Matching]:
    """Anew, on what is known then, as long as something else was assumed."""
    while True:
        try:
            return run(matching)
        except Mistaken as mistaken:
            matching = mistaken.matching


def _settled_by(result: Result, choices: Sequence[Choice]) -> dict[int, str]:
    """By number of the choice, what its default made match."""
    if not result.divergences:
        return dict.fromkeys(range(len(choices)), "outputs")
    found: dict[int, str] = {}
    for number, choice in enumerate(choices):
        for place in _places(choice):
            if _agrees_at(result, place, whole=place != choice.place):
                found[number] = f"outputs of {place[1]}"
                break
    return found


def _places(choice: Choice) -> Iterator[tuple[str, str]]:
    """Modules of base and raw around the place of a choice, and around the same in other blocks, which follow it."""
    base, raw = choice.place
    if "" in choice.place:
        return
    yield choice.place
    entries = [entry for entry in choice.options[0][1] if entry.sources]
    for first in entries:
        ours, theirs = first.sources[0].path, first.path
        if ours.startswith(f"{base}.") and theirs.startswith(f"{raw}."):
            for entry in entries:
                one, other = entry.sources[0].path, entry.path
                alike = one.endswith(ours[len(base) :]) and other.endswith(theirs[len(raw) :])
                if entry is not first and alike and _tells(choice, entry.path):
                    yield one.removesuffix(ours[len(base) :]), other.removesuffix(theirs[len(raw) :])
            return


def _tells(choice: Choice, path: str) -> bool:
    """Whether each of the options fills a tensor otherwise."""
    filled = [entry for _, entries in choice.options for entry in entries if entry.path == path]
    return all(one != other for one, other in itertools.combinations(filled, 2))


def _agrees_at(result: Result, place: tuple[str, str], *, whole: bool) -> bool:
    """Whether raw, fed base's tensors, does in a module what base does there; ``whole`` asks for what it returns."""
    blamed = any(_inside(one.base_path, place[0]) or _inside(one.raw_path, place[1]) for one in result.divergences)
    made = [
        one
        for step in result.steps
        for one in step.local
        if one.role == "output" and one.phase == "forward" and _inside(one.raw_path, place[1])
    ]
    told = [one for one in made if one.raw_path == place[1]] if whole else made
    return bool(told) and all(one.agrees for one in made) and not blamed


def _inside(path: str, place: str) -> bool:
    """Whether a path is that of a module, of one inside it, or of an op or tag there."""
    return path == place or path.startswith((f"{place}.", f"{place}/", f"{place}@"))


def _with_plan(result: Result, plan: WeightPlan) -> Result:
    """The same result, with what is known now about where the weights come from."""
    notes = [note for note in result.notes if note not in unsure(result.plan)]
    return replace(result, plan=plan, notes=(*notes, *unsure(plan)))
