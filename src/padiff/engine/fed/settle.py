"""Gradients that raw makes of base's tensors, judged in two steps.

First by the least that rounding explains anywhere, and only if something is further apart, by how far rounding moves
base's own: that takes a run of base, and mostly nobody needs it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from padiff.capture.jitter import spacing_of
from padiff.compare.arrays import compare_arrays
from padiff.compare.measure import rms
from padiff.engine.fed.local import LocalRun, Reference
from padiff.engine.fed.local_comparing import Key
from padiff.engine.free.where_they_lie import size_of
from padiff.frameworks.tree import LiveTree, join
from padiff.records import SMALLEST, Call, Comparison, Fault, Outcome, TensorSpec, Value

FAR, NEAR = 0.1, 1e-3
"""Gradients that are so far apart, relative to them, are not by rounding; the second where a place beside is wrong."""
KINKS = 4.0
"""The same of numbers that cross a kink: so many times what one of them makes of the whole."""
CANCELLED = 1e-3
"""Of the largest gradient; smaller ones may be what is left of a sum whose terms cancel."""
STEPS = 64.0
"""The same in the spacing of a narrower dtype, where that is more."""
ADDED_UP = ("layer_norm",)
"""Layers whose kernels add up their parameters' gradients in these' own dtype, row by row: torch 2.13 on a CPU."""
NARROW = {2.0**-7: np.dtype(ml_dtypes.bfloat16), 2.0**-10: np.dtype(np.float16)}
MOST_ROWS = 1 << 13
"""That are added up again, to see what is lost."""


def least_of_parameters(live: LiveTree, reference: Reference, narrow: float) -> dict[str, float]:
    """How far rounding, also to a narrower dtype, moves the gradient of a parameter at the very least.

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
            moved = _rounding_of(arrival, narrow) ** 2
            for spec in vectors:
                path = join(node.path, spec.name)
                rows = math.prod(arrival.shape) / spec.shape[0]
                if path in squares:
                    squares[path] += moved * rows
                if path in squares and narrow in NARROW and node.layer in ADDED_UP:
                    squares[path] += _lost(call, arrival, spec, NARROW[narrow]) ** 2
    called = {call.node for call in reference.trace.calls}
    for node in live.tree.nodes if narrow else ():
        paths = [join(node.path, spec.name) for spec in node.parameters]
        moved = max((_summed(reference, path, narrow) for path in paths), default=0.0)
        for path in paths if node.index not in called else ():  # its neighbours tell what size the terms have
            squares[path] = moved**2
    return {path: math.sqrt(square) for path, square in squares.items()}


def _lost(call: Call, arrival: Value, spec: TensorSpec, dtype: np.dtype[Any]) -> float:
    """How far the sum for a norm's weight or bias is off when it is made in a narrow dtype: a row that is small beside
    what the sum has come to is lost."""
    width = spec.shape[0]
    terms = arrival.numpy().reshape(-1, width)[:MOST_ROWS].astype(np.float32)
    given = next((slot.value for slot in call.inputs if slot.value.shape == arrival.shape), None)
    if spec.name != "bias" and given is not None and not given.overwritten:
        x = given.numpy().reshape(-1, width)[:MOST_ROWS].astype(np.float32)
        terms = terms * (x - x.mean(axis=1, keepdims=True)) / (x.std(axis=1, keepdims=True) + 1e-12)
    total = np.zeros(width, np.float32)
    for row in terms:
        total = (total + row).astype(dtype).astype(np.float32)
    return rms(total - terms.sum(axis=0, dtype=np.float64))


def _summed(reference: Reference, path: str, narrow: float) -> float:
    """A step in the last place of the gradient of a parameter."""
    gradient = reference.trace.parameter_gradients.get(path)
    return 0.0 if gradient is None else _rounding_of(gradient, narrow)


def _rounding_of(value: Value, narrow: float) -> float:
    """A step in the last place of what a tensor holds; of what is smaller than any exponent, the least there is."""
    return max(spacing_of(np.dtype(value.dtype)), narrow) * size_of(value) + SMALLEST.get(narrow, 0.0)


def least_of_products(live: LiveTree, reference: Reference, narrow: float) -> dict[str, float]:
    """The same of parameters that are multiplied with what their module is given, in whatever way.

    Shaking base does not tell it behind a softmax that a module spells out: where one number outweighs all others, its
    gradient is a difference of equal ones, exactly zero however they are shaken, and rounding in another order."""
    squares: dict[str, float] = {}
    for call in reference.trace.calls:
        node = live.tree.nodes[call.node]
        products = [join(node.path, spec.name) for spec in node.parameters if len(spec.shape) > 1]
        given = next((slot.value for slot in call.inputs), None) if products else None
        if given is None or given.overwritten or np.dtype(given.dtype).kind != "f":
            continue
        arrived = (reference.arrivals[slot.tensor] for slot in call.outputs if slot.tensor in reference.arrivals)
        moved = sum(_rounding_of(value, narrow) ** 2 for value in arrived) * min(1.0, size_of(given)) ** 2
        for path in products:
            squares[path] = squares.get(path, 0.0) + moved
    return {path: math.sqrt(square) for path, square in squares.items()}


def unsettled(faults: Sequence[Fault], state: Sequence[Comparison], narrow: float) -> bool:
    """Whether some gradient, or the loss, differs for which rounding may be all there is to it, and that does not
    follow from a place that is wrong in forward."""
    wrong = {fault.raw.path for fault in faults if fault.phase == "forward"}
    told = [fault.comparison for fault in faults if fault.phase == "backward" and fault.raw.path not in wrong]
    told += [one for one in state if not one.agrees and (one.role == "loss" or one.raw_path not in wrong)]
    sizes = (one.outcome.numbers for one in state if one.phase == "gradient")
    largest = max((numbers.base_rms for numbers in sizes if numbers is not None), default=0.0)
    return any(_may_be_rounding(one, largest, wrong, STEPS * narrow) for one in told)


def _may_be_rounding(one: Comparison, largest: float, wrong: Iterable[str], steps: float) -> bool:
    """Not where a tensor is missing, nor where one of some size is another: rounding does not go so far, and a number
    that crosses a kink is one of many. Around a place that is wrong, less will do."""
    numbers = one.outcome.numbers
    if one.outcome.reason != "values" or numbers is None:
        return False
    near = any(_beside(one.raw_path, path) for path in wrong)
    few = 0.0 if near or one.role == "loss" else KINKS / math.sqrt(numbers.size)
    share = numbers.rmse / numbers.base_rms if numbers.base_rms else math.inf
    cancelled = one.phase == "gradient" and numbers.base_rms < CANCELLED * largest
    return share < max(NEAR if near else FAR, few, steps) or cancelled


def _beside(one: str, other: str) -> bool:
    """Whether of two modules one lies around the other, or the same module around both."""
    around, beyond = one.rpartition(".")[0], other.rpartition(".")[0]
    return around == beyond or other.startswith(one + ".") or one.startswith(other + ".")


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
