"""Gradients that one side clips before its optimizer steps and the other while it does: the same but for one factor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from padiff.records import Comparison

UNIFORM = 1e-3
"""How far the factors of single parameters may be apart, relative."""
STRAIGHT = 1e-5
"""How far from one the cosine of the two gradients may be."""
NOTHING = 1e-4
"""Gradients smaller than this share of the largest say nothing about a factor."""

NOTE = (
    "gradients of parameters differ by one factor, and what the optimizers were given in the end does not: "
    "one side clips before its optimizer steps"
)

FORGOTTEN = (
    "gradients of parameters differ by one factor, and nothing that backward passes before them does: "
    "one side clips or scales them before its optimizer steps, the other does not"
)


def inside_the_step(comparisons: Sequence[Comparison], moments: Sequence[Comparison]) -> bool:
    """Whether the optimizers were given the same in the end: by what they remember of gradients, else by weights."""
    first = [one for one in moments if one.name.endswith((": moment1", ": velocity"))]
    weights = [one for one in comparisons if one.phase == "weight"]
    return all(one.agrees for one in first or weights) and bool(first or weights)


def _counts(one: Comparison) -> bool:
    """What inner modules are given may be passed in other forms."""
    return one.phase == "backward" or one.role != "input" or one.raw_path == ""


def but_for_a_factor(comparisons: Sequence[Comparison]) -> list[Comparison] | None:
    """The comparisons with gradients of parameters that differ by one factor alone taken for agreeing; None where they
    don't, or where backward differs already, so that it was not done to the parameters' alone."""
    before = ("forward", "backward")
    if any(one.phase in before and not one.agrees and _counts(one) for one in comparisons):
        return None
    if not by_one_factor([one for one in comparisons if one.phase == "gradient"]):
        return None
    return [
        replace(one, outcome=replace(one.outcome, verdict="rounding", reason=None, numbers=None))
        if one.phase == "gradient" and not one.agrees
        else one
        for one in comparisons
    ]


def by_one_factor(gradients: Sequence[Comparison]) -> bool:
    """Whether gradients of parameters differ by one factor alone, all that are worth anything."""
    factors: list[float] = []
    numbers = [one.outcome.numbers for one in gradients]
    largest = max((known.base_rms for known in numbers if known is not None), default=0.0)
    for one, known in zip(gradients, numbers, strict=True):
        if known is None or one.outcome.reason not in (None, "values"):
            return False
        if known.base_rms <= NOTHING * largest:
            continue
        if known.cosine < 1 - STRAIGHT:
            if one.agrees and (one.outcome.allowed or 0.0) >= known.base_rms:
                continue  # as much is allowed as there is: it says nothing about a factor, either
            return False
        factors.append(known.rmse / known.base_rms)  # also of those that agree: what is allowed may be as much
    differ = any(not one.agrees for one in gradients)
    return differ and bool(factors) and max(factors) - min(factors) <= UNIFORM * max(factors)
