"""Gradients that differ because a number lies on a jump of a derivative, told from dumps: nothing can be moved to see.

A ReLU's derivative jumps at zero. A number that rounding puts on the other side there changes the gradient of that one
element by all it is, and what is before it by any amount. So the first gradient that differs does so in few elements,
and in each the number itself is next to nothing, on both sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal

import numpy as np

from padiff.align import pair_slots
from padiff.records import Array, Call, Comparison, Slot, StepComparison

FEW = 0.01
FEWEST = 4
"""Elements that may lie on a jump: a share of all, and at least so many."""
NEXT_TO_NOTHING = 1e-3
"""Relative to the size of a tensor."""
NOTICED = 0.02
"""Which differences of gradients are looked at, relative to the largest; the others must be rounding."""
MOST_TENSORS = 64
BACKWARD = frozenset({"backward", "gradient"})


def explained_by_a_jump(done: StepComparison) -> Literal["surely", "maybe"] | None:
    """Whether all that differs in a step follows from a number on a jump."""
    wrong = [one for one in done.comparisons if not one.agrees and one.phase != "weight"]
    if any(one.phase not in BACKWARD or one.outcome.reason != "values" for one in wrong):
        return None
    first = next((one for one in wrong if one.phase == "backward"), None)
    pair = None if first is None else next((p for p in done.pairs if p[1].index == first.raw_call), None)
    if first is None or pair is None:
        return None
    slots = _slots(*pair, first)
    if slots is None:
        return None
    base, raw = done.base.gradients.get(slots[0].tensor), done.raw.gradients.get(slots[1].tensor)
    if base is None or raw is None or base.shape != raw.shape:
        return None
    one, other = base.numpy(), raw.numpy()
    gap = np.abs(one.astype(np.float64) - other)
    apart = gap > NOTICED * gap.max(initial=0.0)
    rest = float(np.sqrt(np.mean(np.square(gap * ~apart)))) if gap.size else 0.0
    if first.outcome.allowed is None or rest > first.outcome.allowed:
        return None
    count = int(apart.sum())
    if not 0 < count <= max(FEWEST, FEW * apart.size):
        return None
    if any(_nothing_there(a.value.numpy(), b.value.numpy(), apart) for a, b in _around(done, pair[1], apart.shape)):
        return "surely"
    return "maybe" if bool(((one[apart] == 0) | (other[apart] == 0)).all()) else None


def excused(comparisons: Iterable[Comparison]) -> Iterator[Comparison]:
    """What differs, taken for what a jump made of rounding; of weights, those whose gradients do."""
    known = tuple(comparisons)
    moved = {(one.raw_path, one.name) for one in known if one.phase == "gradient" and not one.agrees}
    for comparison in known:
        outcome = comparison.outcome
        follows = comparison.phase != "weight" or (comparison.raw_path, comparison.name) in moved
        if not outcome.agrees and follows:
            message = f"{outcome.message}; a number on a jump of a derivative fell to the other side: rounding"
            comparison = replace(comparison, outcome=replace(outcome, verdict="rounding", reason=None, message=message))
        yield comparison


def _slots(base: Call, raw: Call, comparison: Comparison) -> tuple[Slot, Slot] | None:
    sides = (base.inputs, raw.inputs) if comparison.role == "input" else (base.outputs, raw.outputs)
    pairs, _, _ = pair_slots(*sides)
    return next((pair for pair in pairs if pair[1].tensor == comparison.tensor), None)


def _around(done: StepComparison, call: Call, shape: tuple[int, ...]) -> Iterator[tuple[Slot, Slot]]:
    """Tensors of a shape, base's and raw's, those of the nearest calls first."""
    nearest = sorted(done.pairs, key=lambda pair: abs(pair[1].index - call.index))
    left = MOST_TENSORS
    for base, raw in nearest:
        for sides in ((base.inputs, raw.inputs), (base.outputs, raw.outputs)):
            for one, other in pair_slots(*sides)[0]:
                if one.value.shape == other.value.shape == shape and not (
                    one.value.overwritten or other.value.overwritten
                ):
                    left -= 1
                    yield one, other
        if left <= 0:
            return


def _nothing_there(base: Array, raw: Array, where: Array) -> bool:
    size = float(np.sqrt(np.mean(np.square(base, dtype=np.float64))))
    largest = max(float(np.abs(side[where]).max()) for side in (base, raw))
    return size > 0.0 and largest <= NEXT_TO_NOTHING * size
