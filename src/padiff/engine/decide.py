"""Settling what was declared open, and nothing else, by running raw with each option."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from padiff.capture.session import Arguments
from padiff.capture.state import preserved
from padiff.compare.layouts import compare_in_any_layout
from padiff.frameworks.tree import LiveTree
from padiff.records import Array, Tolerance, WeightEntry, WeightPlan
from padiff.weights import apply_plan

Fresh = Callable[[], tuple[Arguments, Arguments]]


def decide(base: LiveTree, raw: LiveTree, arguments: Fresh, plan: WeightPlan) -> WeightPlan:
    """Run raw with the default of every choice; where outputs differ, try the other options, choice after choice.

    Raw's own weights are put back afterwards: the plan is still to be carried out.
    """
    if not plan.choices or plan.problems:
        return plan
    expected = _outputs(base, arguments()[0])
    with _restored(raw):
        error = _error(base, raw, arguments, plan, expected)
        if error == 0:
            return _confirmed(plan)
        chosen = plan
        for choice in plan.choices:
            for label, entries in choice.options[1:]:
                other = _with(chosen, entries, f"chosen because outputs match: {label}", 0.9)
                found = _error(base, raw, arguments, other, expected)
                if found < error:
                    chosen, error = other, found
            if error == 0:
                return chosen
    return _doubtful(plan)


def _error(base: LiveTree, raw: LiveTree, arguments: Fresh, plan: WeightPlan, expected: list[Array]) -> float:
    """How far raw's outputs are from base's under a plan; 0 when they agree."""
    apply_plan(base, raw, plan)
    found = _outputs(raw, arguments()[1])
    outcomes = [
        compare_in_any_layout(a, b, Tolerance(mode="auto"), loosely=True) for a, b in zip(expected, found, strict=False)
    ]
    if outcomes and all(outcome.agrees for outcome in outcomes):
        return 0.0
    sizes = [one.numbers.rmse / (one.numbers.base_rms or 1.0) for one in outcomes if one.numbers is not None]
    return max(sizes, default=math.inf)


def _outputs(live: LiveTree, arguments: Arguments) -> list[Array]:
    adapter = live.adapter
    with preserved(live, buffers=True), adapter.no_grad():
        output = live.model(*arguments.args, **arguments.kwargs)
        floating = [t for _, t in adapter.flatten(output) if adapter.dtype(t).startswith(("float", "bfloat"))]
        return [adapter.to_numpy(adapter.clone(tensor)) for tensor in floating]


@contextmanager
def _restored(live: LiveTree) -> Iterator[None]:
    with ExitStack() as stack:
        for tensor in {id(t): t for t in live.tensors().values()}.values():
            stack.callback(_put_back, live, tensor, live.adapter.clone(tensor))
        yield


def _put_back(live: LiveTree, tensor: Any, value: Any) -> None:
    live.adapter.assign(tensor, live.adapter.to_numpy(value))


def _with(plan: WeightPlan, entries: tuple[WeightEntry, ...], evidence: str, confidence: float) -> WeightPlan:
    changed = {entry.path: replace(entry, evidence=evidence, confidence=confidence) for entry in entries}
    return replace(plan, entries=tuple(changed.get(entry.path, entry) for entry in plan.entries))


def _confirmed(plan: WeightPlan) -> WeightPlan:
    """Outputs match with the defaults."""
    paths = {entry.path for choice in plan.choices for entry in choice.options[0][1]}
    entries = tuple(
        replace(entry, confidence=max(entry.confidence, 0.95), evidence=f"{entry.evidence}, outputs match")
        if entry.path in paths
        else entry
        for entry in plan.entries
    )
    return replace(plan, entries=entries)


def _doubtful(plan: WeightPlan) -> WeightPlan:
    """No option makes outputs match: the default stays, marked, with what else it could have been."""
    others: dict[str, tuple[str, ...]] = {}
    for choice in plan.choices:
        labels = tuple(label for label, _ in choice.options[1:])
        others |= {entry.path: labels for entry in choice.options[0][1]}
    entries = tuple(
        replace(entry, confidence=min(entry.confidence, 0.6), alternatives=others[entry.path])
        if entry.path in others
        else entry
        for entry in plan.entries
    )
    return replace(plan, entries=entries)
