"""Settling what was declared open, and nothing else, by running raw with each option."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from padiff.capture.session import Arguments, floating
from padiff.capture.state import preserved
from padiff.compare.layouts import compare_in_any_layout
from padiff.engine.outputs import Named, paired_outputs
from padiff.frameworks.tree import LiveTree
from padiff.records import Choice, Tolerance, WeightEntry, WeightPlan
from padiff.weights import apply_plan

Fresh = Callable[[], tuple[Arguments, Arguments]]
SETTLED = 0.95
_MOST_TRIED = 48
_ROUNDS = 3


def decide(base: LiveTree, raw: LiveTree, arguments: Fresh, plan: WeightPlan) -> WeightPlan:
    """Run raw with the default of every choice; where outputs differ, try the other options.

    All combinations where they are few, else choice after choice, keeping what brings outputs nearer. Raw's own
    weights are put back afterwards: the plan is still to be carried out.
    """
    if not plan.choices or plan.problems:
        return plan
    expected = _outputs(base, arguments()[0])

    def error(chosen: Sequence[int]) -> float:
        return _error(base, raw, arguments, _with(plan, chosen), expected)

    with _restored(raw):
        found = _found(plan.choices, error)
    return _doubtful(plan) if found is None else _settled(plan, found)


def _found(choices: Sequence[Choice], error: Callable[[Sequence[int]], float]) -> tuple[int, ...] | None:
    """The options, one per choice, that make outputs match; None when none do."""
    counts = [len(choice.options) for choice in choices]
    chosen = (0,) * len(counts)
    least = error(chosen)
    if least == 0:
        return chosen
    if math.prod(counts) <= _MOST_TRIED:
        others = sorted(itertools.product(*map(range, counts)), key=lambda one: sum(map(bool, one)))[1:]
        return next((one for one in others if error(one) == 0), None)
    for _ in range(_ROUNDS):
        before = chosen
        for place, count in enumerate(counts):
            for option in range(count):
                other = (*chosen[:place], option, *chosen[place + 1 :])
                found = error(other) if other != chosen else math.inf
                if found < least:
                    chosen, least = other, found
                if least == 0:
                    return chosen
        if chosen == before:
            break
    return None


def _error(base: LiveTree, raw: LiveTree, arguments: Fresh, plan: WeightPlan, expected: list[Named]) -> float:
    """How far raw's outputs are from base's under a plan; 0 when they agree."""
    apply_plan(base, raw, plan)
    found = _outputs(raw, arguments()[1])
    outcomes = [
        compare_in_any_layout(one, other, Tolerance(mode="auto"), loosely=True)
        for (_, one), (_, other) in paired_outputs(expected, found)
    ]
    if outcomes and all(outcome.agrees for outcome in outcomes):
        return 0.0
    sizes = [one.numbers.rmse / (one.numbers.base_rms or 1.0) for one in outcomes if one.numbers is not None]
    return max(sizes, default=math.inf)


def _outputs(live: LiveTree, arguments: Arguments) -> list[Named]:
    adapter = live.adapter
    with preserved(live, buffers=True), adapter.no_grad():
        output = live.model(*arguments.args, **arguments.kwargs)
        return [(name, adapter.to_numpy(adapter.clone(tensor))) for name, tensor in floating(adapter, output)]


@contextmanager
def _restored(live: LiveTree) -> Iterator[None]:
    with ExitStack() as stack:
        for tensor in {id(t): t for t in live.tensors().values()}.values():
            stack.callback(_put_back, live, tensor, live.adapter.clone(tensor))
        yield


def _put_back(live: LiveTree, tensor: Any, value: Any) -> None:
    live.adapter.assign(tensor, live.adapter.to_numpy(value))


def _with(plan: WeightPlan, chosen: Sequence[int]) -> WeightPlan:
    """The plan with the chosen options' entries; the same choices in a later option win over an earlier's."""
    changed: dict[str, WeightEntry] = {}
    for choice, option in zip(plan.choices, chosen, strict=True):
        if option or not changed:
            changed |= {entry.path: entry for entry in choice.options[option][1]}
    entries = tuple(changed.get(entry.path, entry) for entry in plan.entries)
    choices = tuple(replace(one, chosen=option) for one, option in zip(plan.choices, chosen, strict=True))
    return replace(plan, entries=entries, choices=choices)


def _settled(plan: WeightPlan, chosen: Sequence[int]) -> WeightPlan:
    """Outputs match: what was open says so."""
    plan = _with(plan, chosen)
    labels = {entry.path: choice.options[choice.chosen][0] for choice in plan.choices for entry in choice.options[0][1]}
    changed = {entry.path for choice in plan.choices if choice.chosen for entry in choice.options[0][1]}
    entries = []
    for entry in plan.entries:
        if entry.path in labels:
            match = f"chosen because outputs match: {labels[entry.path]}"
            evidence = match if entry.path in changed else f"{entry.evidence}, {match}"
            entry = replace(entry, evidence=evidence, confidence=max(entry.confidence, SETTLED), alternatives=())
        entries.append(entry)
    return replace(plan, entries=tuple(entries))


def _doubtful(plan: WeightPlan) -> WeightPlan:
    """No option makes outputs match: the default stays, marked, with what else it could have been."""
    others: dict[str, tuple[str, ...]] = {}
    for choice in plan.choices:
        labels = tuple(label for label, _ in choice.options[1:])
        others |= {entry.path: entry.alternatives or labels for entry in choice.options[0][1]}
    entries = tuple(
        replace(entry, confidence=min(entry.confidence, 0.6), alternatives=others[entry.path])
        if entry.path in others
        else entry
        for entry in plan.entries
    )
    return replace(plan, entries=entries)
