"""Against a narrower dtype both run forward by themselves, and backward only in the second look.

What rounding to few digits explains along the way hides most of what goes wrong in backward, and a second look is taken
there in any case: its gradients are made of base's tensors, call by call, and tell more.
"""

from __future__ import annotations

from dataclasses import replace

from padiff.engine.fed.localise import Located
from padiff.records import Comparison, StepComparison


def wrong_in_backward(second: Located) -> bool:
    """Whether a gradient differs that was made of base's tensors."""
    faults = any(fault.phase == "backward" for fault in second.faults)
    return faults or any(one.phase == "gradient" and not one.agrees for one in second.state)


def with_fed_gradients(done: StepComparison, second: Located) -> StepComparison:
    """A step whose models ran forward by themselves, with the gradients that the second look has compared."""
    loss = any(one.role == "loss" for one in done.comparisons)
    state = [one for one in second.state if one.phase == "gradient" or (one.role == "loss" and not loss)]
    backward = [one for one in second.comparisons if one.phase == "backward"]
    found: tuple[Comparison, ...] = (*done.comparisons, *backward, *state)
    ran = [replace(trace, ran_backward=True) for trace in (done.base, done.raw)]
    return replace(done, comparisons=found, base=ran[0], raw=ran[1])


def without_backward(second: Located) -> Located:
    """Of models that are built differently, where all parameters' gradients agree when they run by themselves: equal
    values may be joined to the graph differently (a sum kept, or made anew for each use), and share a gradient."""
    return replace(second, faults=tuple(fault for fault in second.faults if fault.phase == "forward"))
