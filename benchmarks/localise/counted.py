"""How often a comparison runs each model, in plain runs: forward is a third of one, backward the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from padiff.capture.one_step import Step

ALIGNED = (3.0, 1.0)
"""Plain runs of base and of raw that an aligned pair may take for each step; four in all."""
DIVERGING = (5.0, 3.0)
"""The same where something differs; eight in all."""
_NEARLY = 0.01


class Runs:
    """Of both models, so far; a forward that ends half-way counts as a whole one."""

    def __init__(self) -> None:
        self._calls, self._backwards = [0, 0], [0, 0]

    def called(self, side: int) -> None:
        self._calls[side] += 1

    def came_back(self, side: int) -> None:
        self._backwards[side] += 1

    def plain(self) -> tuple[float, float]:
        base, raw = ((calls + 2 * back) / 3 for calls, back in zip(self._calls, self._backwards, strict=True))
        return base, raw


@contextmanager
def counting(base: Any, raw: Any) -> Iterator[Runs]:
    """Inside, runs of both models are counted: calls by hooks of our own, backward passes where padiff begins them."""
    runs = Runs()
    original = Step.backward

    def backward(step: Step) -> Any:
        if step._backward and step._loss is not None:
            runs.came_back(("base", "raw").index(step._session.side))
        return original(step)

    with ExitStack() as stack:
        for side, model in enumerate((base, raw)):
            handle = model.register_forward_pre_hook(lambda *_, side=side: runs.called(side))
            stack.callback(handle.remove)
        stack.enter_context(mock.patch.object(Step, "backward", backward))
        yield runs


def cost(what: str, runs: Sequence[tuple[float, float]], allowed: tuple[float, float]) -> str:
    """How many comparisons keep to their number of plain runs, of base and of raw and in all."""
    known = [one for one in runs if any(one)]
    if not known:
        return f"{what}: runs were not counted"
    within = sum(base <= allowed[0] + _NEARLY and raw <= allowed[1] + _NEARLY for base, raw in known)
    in_all = sum(base + raw <= sum(allowed) + _NEARLY for base, raw in known)
    most = [max(column) for column in zip(*known, strict=True)]
    return (
        f"{what}: {within} of {len(known)} within {allowed[0]:.0f} plain runs of base and {allowed[1]:.0f} of raw, "
        f"{in_all} within {sum(allowed):.0f} in all; at most {most[0]:.1f} and {most[1]:.1f}"
    )
