"""Calls that are given base's numbers in another order, and return base's in another order, too.

Their authors draw windows, or lay out heads, around a module here and inside of it there. What is around such a call
shows whether the order is put right again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

from padiff.compare.kinds import kind_of
from padiff.compare.unordered import apart_in_any_order
from padiff.records import Call, Comparison, Numbers, Outcome, Slot

Comparing = Callable[[Slot, Slot], Outcome]

FAR = 1e-3
"""So far apart, relative to their size, two tensors may agree by rounding and still be in another order."""
SAME = 1e-4
"""Up to here, relative to their size, two sorted tensors hold the same numbers."""


class Reordered:
    """Is shown calls as they are compared."""

    def __init__(self, narrow: float = 0.0) -> None:
        """``narrow`` is the spacing of a narrower dtype that one side computes in."""
        self._narrow = narrow
        self._calls: set[int] = set()
        self._agreeing: set[int] = set()
        """Those of them whose numbers are so much the same that they agree in any order."""

    def see(self, base: Call, raw: Call, known: Mapping[tuple[int, int], Outcome], compared: Comparing) -> None:
        """``known`` is what comparing tensors came to, by their numbers."""
        if not (base.inputs and raw.inputs and base.outputs and raw.outputs):
            return
        returned = known.get((base.outputs[0].tensor, raw.outputs[0].tensor))
        if returned is None or not (_may_be_in_another_order(returned) or _hides_it(base, raw, returned)):
            return
        if not all(map(self._holds_the_same, (base.outputs[0], base.inputs[0]), (raw.outputs[0], raw.inputs[0]))):
            return
        if not compared(base.inputs[0], raw.inputs[0]).agrees:  # else it has put them in another order itself
            (self._agreeing if returned.agrees else self._calls).add(raw.index)

    def _holds_the_same(self, one: Slot, other: Slot) -> bool:
        if one.value.overwritten or other.value.overwritten:
            return False
        arrays = one.value.numpy(), other.value.numpy()
        same = max(SAME, self._narrow, *(kind_of(array.dtype).eps for array in arrays))
        return apart_in_any_order(*arrays) <= same

    def left_out(self, found: list[Comparison], calls: Collection[int]) -> list[Comparison]:
        """What is left without these of the calls: nothing wrong is hidden by that."""
        reordered = self._calls.intersection(calls) | self._agreeing
        return [one for one in found if one.raw_call not in reordered] if reordered else found


def _hides_it(base: Call, raw: Call, returned: Outcome) -> bool:
    """Whether calls are given other shapes and return the same in any order, rows that are all alike."""
    return returned.agrees and base.inputs[0].value.shape != raw.inputs[0].value.shape


def _may_be_in_another_order(outcome: Outcome) -> bool:
    """Whether two tensors differ, or in a dtype of few digits might: numbers that are all nearly the same agree in any
    order then."""
    numbers = outcome.numbers
    if not _as_large(numbers) or numbers is None:
        return False
    return outcome.reason == "values" or (outcome.agrees and numbers.rmse > FAR * numbers.base_rms)


def _as_large(numbers: Numbers | None) -> bool:
    """Whether two tensors may be equally large, by what is known of them: each is as far from the other as its angle
    says."""
    if numbers is None or not 0 < numbers.base_rms < math.inf:
        return False
    square = numbers.base_rms**2
    return abs(numbers.rmse**2 - 2 * square * (1 - numbers.cosine)) <= 1e-3 * square
