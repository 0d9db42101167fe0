"""Rounding that grows, told from a fault where nothing can be run again: the one grows little by little."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from padiff.engine.fed.second_look import GROWN
from padiff.records import Comparison

JUMP = 4.0
"""How much further than anything before a tensor may be from base's, relative to what was predicted."""


def forgiven(comparisons: Iterable[Comparison]) -> Iterator[Comparison]:
    """What is little over what was predicted, and was come to without a jump, is rounding.

    Gradients go through kinks, which no prediction follows: up to the same limit they are excused without that.
    """
    furthest = 1.0
    for comparison in comparisons:
        outcome = comparison.outcome
        ratio = outcome.ratio
        if ratio is None or comparison.phase == "weight":
            yield comparison
            continue
        backward = comparison.phase in ("backward", "gradient")
        grown = ratio <= GROWN and (backward or ratio <= JUMP * furthest)
        if not backward and (outcome.agrees or grown):
            furthest = max(furthest, min(ratio, GROWN))
        if not outcome.agrees and outcome.reason == "values" and grown:
            message = f"{outcome.message}; it has grown without a jump: rounding"
            comparison = replace(comparison, outcome=replace(outcome, verdict="rounding", reason=None, message=message))
        yield comparison
