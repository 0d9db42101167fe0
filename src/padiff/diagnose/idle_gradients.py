"""Gradients that are zero but for rounding: an optimizer that divides by their size makes whole steps of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from padiff.records import Comparison, Numbers

NOTE = (
    "the gradient there is what rounding leaves of zero, and an optimizer that divides by its size (Adam does) makes "
    "whole steps of it: this says nothing about the optimizers"
)
IDLE = 1e-5
"""Of the size of the other gradients of the module."""


def idle(comparisons: Iterable[Comparison], weights: Sequence[Comparison]) -> list[Comparison]:
    """Those of the weights whose gradients are as small as the rounding of the others in their module: a bias before a
    norm, that of an attention's keys."""
    modules: dict[str, dict[str, Numbers]] = {}
    for one in comparisons:
        if one.phase == "gradient" and one.agrees and one.outcome.numbers is not None:
            modules.setdefault(one.raw_path, {})[one.name] = one.outcome.numbers
    return [weight for weight in weights if _is_idle(modules.get(weight.raw_path, {}), weight.name)]


def _is_idle(gradients: dict[str, Numbers], name: str) -> bool:
    own = gradients.get(name)
    beside = [numbers.base_rms for other, numbers in gradients.items() if other != name]
    return own is not None and bool(beside) and max(own.base_rms, own.rmse) <= IDLE * max(beside)
