"""Gradients that raw makes of base's tensors, judged in two steps.

First by the least that rounding explains anywhere, and only if something is further apart, by how far rounding moves
base's own: that takes a run of base, and mostly nobody needs it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from padiff.capture.perturb import spacing_of
from padiff.compare.arrays import compare_arrays
from padiff.compare.measure import rms
from padiff.engine.local import LocalRun, Reference
from padiff.engine.local_comparing import Key
from padiff.frameworks.tree import LiveTree, join
from padiff.records import Comparison, Fault, Outcome


def least_of_parameters(live: LiveTree, reference: Reference) -> dict[str, float]:
    """How far rounding moves the gradient of a parameter at the very least.

    That of a bias is the sum of what arrives at its module, row by row: if the terms cancel, as those of a key's bias
    do before a softmax, all that is left is their rounding."""
    squares = dict.fromkeys(live.parameters(), 0.0)
    for call in reference.trace.calls:
        node = live.tree.nodes[call.node]
        vectors = [spec for spec in node.parameters if len(spec.shape) == 1 and spec.shape[0]]
        for slot in call.outputs if vectors else ():
            arrival = reference.arrivals.get(slot.tensor)
            if arrival is None:
                continue
            array = arrival.numpy()
            moved = (spacing_of(array.dtype) * rms(array)) ** 2 * array.size
            for spec in vectors:
                path = join(node.path, spec.name)
                if path in squares:
                    squares[path] += moved / spec.shape[0]
    return {path: math.sqrt(square) for path, square in squares.items()}


def unsettled(faults: Sequence[Fault], state: Iterable[Comparison]) -> bool:
    """Whether some gradient, or the loss, differs that does not follow from a place that is wrong in forward."""
    wrong = {fault.raw.path for fault in faults if fault.phase == "forward"}
    if any(fault.phase == "backward" and fault.raw.path not in wrong for fault in faults):
        return True
    return any(not one.agrees and (one.role == "loss" or one.raw_path not in wrong) for one in state)


def settle(run: LocalRun, noise: Mapping[Key, float]) -> None:
    """Judge a run's gradients again, now that base's noise is known."""
    known: dict[int, Outcome] = {}
    for outcome, key, base, raw in run.compared.unsettled:
        found = compare_arrays(base, raw, run.compared.allowed(key, noise))
        known[id(outcome)] = replace(found, layout=outcome.layout)
    run.compared.comparisons = [_judged(one, known) for one in run.compared.comparisons]
    judged = (replace(fault, comparison=_judged(fault.comparison, known)) for fault in run.faults)
    run.faults[:] = [fault for fault in judged if not fault.comparison.agrees]


def _judged(one: Comparison, known: Mapping[int, Outcome]) -> Comparison:
    outcome = known.get(id(one.outcome))
    return one if outcome is None else replace(one, outcome=outcome)


def without_prediction(comparisons: Iterable[Comparison]) -> list[Comparison]:
    """Where the least was enough, nothing was predicted."""
    return [
        replace(one, outcome=replace(one.outcome, predicted=None)) if one.outcome.predicted == 0.0 else one
        for one in comparisons
    ]
