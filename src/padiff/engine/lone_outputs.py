"""Outputs that only one of the models returns: no call adds them when raw is fed, and nothing comes before them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from padiff.diagnose import find_divergence
from padiff.records import Divergence, ModuleTree, StepComparison


def with_lone_outputs(
    located: Sequence[Divergence], done: StepComparison, trees: tuple[ModuleTree, ModuleTree]
) -> list[Divergence]:
    """Places that were found by feeding raw, behind the call that returns more or less than its partner: a loss that is
    made of what the other side has not, or a gradient of it, only tells the same."""
    lone = [
        one
        for one in done.comparisons
        if (one.phase, one.role, one.outcome.reason) == ("forward", "output", "structure") and not one.agrees
    ]
    if not located or not lone or located[0].comparison.outcome.reason == "structure":
        return list(located)
    ended = {raw.index: place for place, (_, raw) in enumerate(done.pairs)}
    first = located[0]
    in_forward = first.phase == "forward" and first.role == "output"
    before = [one for one in lone if not in_forward or ended[one.raw_call] < ended.get(first.raw_call, len(ended))]
    found = find_divergence(replace(done, comparisons=tuple(before)), trees)
    return list(located) if found is None else [found, *located]
