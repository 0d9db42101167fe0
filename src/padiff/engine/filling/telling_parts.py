"""What the layers inside a place say about an open choice, where the place itself returns something else than base's
with every option: it may end elsewhere, or something in it may be wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from padiff.records import Choice, WeightPlan

Options = tuple[int, ...]
Scores = Mapping[tuple[str, str], tuple[bool, float]]
"""By a layer of base and its partner: whether what they return agrees, and how far it is apart."""

NEARER = 0.5
"""How much nearer another option must be than the default, relative, to be taken though it does not agree."""
_TELLS = 1.5
"""By what factor the error of a layer must change with the options to tell anything."""


def layers_in(plan: WeightPlan, places: Sequence[tuple[str, str]]) -> dict[tuple[str, str], list[tuple[str, str]]]:
    """By place, the layers in it that are filled from one another and that no choice is about."""
    open_paths = {entry.path for choice in plan.choices for _, entries in choice.options for entry in entries}
    found: dict[tuple[str, str], dict[tuple[str, str], None]] = {place: {} for place in places}
    for entry in plan.entries:
        if entry.path in open_paths or len(entry.sources) != 1:
            continue
        pair = entry.sources[0].path.rpartition(".")[0], entry.path.rpartition(".")[0]
        for place in places:
            if all(path.startswith(f"{around}.") for path, around in zip(pair, place, strict=True)):
                found[place][pair] = None
    return {place: list(pairs) for place, pairs in found.items()}


def told_by_layers(
    choices: Sequence[Choice], tried: Sequence[Options], score: Callable[[Options], Scores]
) -> tuple[Options, bool] | None:
    """The options with which most of the layers return what base's do, and True; where the options don't differ in
    that, those that are much nearer than the default, and False."""
    scores = {options: score(options) for options in tried}
    default = (0,) * len(choices)
    agreeing = {options: sum(agrees for agrees, _ in found.values()) for options, found in scores.items()}
    most = max(agreeing.values(), default=0)
    best = [options for options, count in agreeing.items() if count == most]
    if len(best) < len(tried):
        return (default if default in best else best[0]), True
    every = [pair for pair in scores[default] if all(pair in found for found in scores.values())]
    telling = [pair for pair in every if _tells([found[pair][1] for found in scores.values()])]
    errors = {options: sum(found[pair][1] for pair in telling) for options, found in scores.items()}
    least = min(errors, key=lambda options: errors[options])
    if telling and errors[least] < NEARER * errors[default]:
        return least, False
    return None


def _tells(errors: Sequence[float]) -> bool:
    return max(errors) > _TELLS * min(errors)
