"""Gradients that hardly get through: what is left of one behind a saturated function is rounding of what came in.

The slope of a tanh, a sigmoid or a softmax far out is one less its value, or its value times that. It is a few units in
the last place of one, or zero, and a framework that rounds the value the other way makes another slope of it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

from padiff.capture.jitter import spacing_of
from padiff.compare.measure import rms
from padiff.records import Call, Numbers, Outcome, Role, StepTrace, Value

ROUNDED = 2.0
"""Units in the last place of what comes in, by which it may come out wrong."""
ALL_ROUNDING = 16.0
"""Units in the last place of what comes in, below which what comes out is nothing but rounding."""
FEW = 1024.0
"""Units below which one of them is more than a thousandth."""
ONE = 1.5
"""Units by which so little may come out wrong. paddle's tanh (3.3) may be two off, which makes slopes of few elements
wrong by that much."""
SMALL = 1e-3
"""Relative error of what does come out, below which it may be rounding of what came in."""

TURNED = -0.5
"""Cosine below which a gradient has another sign. Slopes that are rounding become smaller or larger, and hardly ever
turn: with few digits a small one would be taken for that."""
MANY = 32
"""Elements; few may point anywhere."""

FEWEST_DIGITS = 2.0**-10
"""float16 and bfloat16: what comes out of a layer of small weights is a few units of what comes in, and no rounding."""
SINGLE = 2.0**-23
LEFT = 1.0 / 32
"""Narrow units of what comes in, below which what comes out of base is zero by rights: that of a norm of two rows, of
an attention whose values are all the same. Rounding on the way leaves some of the terms over."""
BEYOND = 2.0
"""Times base's, by which raw's must be off there: smaller errors are not of terms that should have cancelled."""
SQUASHING = frozenset({"sigmoid", "tanh", "softmax"})
"""Classes, in lower case, whose slope is made of what they return, as it was rounded: near one by a quarter of a narrow
unit, which is all there is to a slope below ``STEEP`` of them."""
QUARTER, STEEP = 0.25, 4.0


class Saturation:
    """Knows what comes in from behind at each place of base's step."""

    def __init__(
        self,
        trace: StepTrace,
        contributions: Mapping[tuple[int, int], Value],
        arrivals: Mapping[int, Value],
        narrow: float = 0.0,
    ) -> None:
        """``narrow`` is the spacing of a dtype that one of the models computes in, where that is narrower."""
        self._narrow = narrow
        self._contributions, self._arrivals = contributions, arrivals
        self._calls = {call.index: call for call in trace.calls}
        self._inside: dict[int, list[Call]] = defaultdict(list)
        for call in trace.calls:
            self._inside[call.parent].append(call)

    def explains(self, role: Role, base: Call, outcome: Outcome) -> bool:
        """Whether a gradient that a call sends back (``input``), or that arrives at it, differs by such rounding."""
        numbers = outcome.numbers
        if outcome.agrees or outcome.reason != "values" or numbers is None:
            return False
        if numbers.size >= MANY and numbers.cosine < TURNED:
            return False
        came = [(spacing_of(array.dtype), rms(array)) for array in (one.numpy() for one in self._behind(role, base))]
        unit = max((min(own, SINGLE) * size for own, size in came), default=0.0)
        narrow = max((max(own, self._narrow) * size for own, size in came), default=0.0)
        own = max((own for own, _ in came), default=0.0)
        if max(own, self._narrow) >= FEWEST_DIGITS and _lost(role, base, numbers, narrow, sure=own < FEWEST_DIGITS):
            return True
        if numbers.rmse > ROUNDED * unit:
            return False
        few = numbers.base_rms <= FEW * unit and numbers.rmse <= ONE * unit
        return few or numbers.base_rms <= ALL_ROUNDING * unit or numbers.rmse <= SMALL * numbers.base_rms

    def _behind(self, role: Role, base: Call) -> Iterable[Value]:
        if role == "input":
            yield from self._arriving(base)
            yield from self._sent_back(self._inside[base.index])
            return
        around = self._calls.get(base.parent)
        if around is not None:
            yield from self._arriving(around)
        yield from self._sent_back(call for call in self._inside[base.parent] if call.index > base.index)

    def _arriving(self, call: Call) -> Iterable[Value]:
        return (self._arrivals[slot.tensor] for slot in call.outputs if slot.tensor in self._arrivals)

    def _sent_back(self, calls: Iterable[Call]) -> Iterable[Value]:
        for call in calls:
            for slot in call.inputs:
                value = self._contributions.get((call.index, slot.tensor))
                if value is not None:
                    yield value


def _lost(role: Role, base: Call, numbers: Numbers, unit: float, *, sure: bool) -> bool:
    """Whether a gradient in few digits is what rounding leaves of terms that cancel, or that of a flat slope. Where
    base is not ``sure``, it may be base's that rounding has left."""
    if role == "input" and base.kind.lower() in SQUASHING and numbers.base_rms <= STEEP * unit:
        return numbers.rmse <= QUARTER * unit
    smaller = numbers.base_rms if sure else min(numbers.base_rms, _of_raw(numbers))
    return numbers.base_rms <= LEFT * unit and BEYOND * smaller <= numbers.rmse <= ROUNDED * unit


def _of_raw(numbers: Numbers) -> float:
    """How large raw's are, from base's, how far both are apart, and in what direction."""
    along = numbers.base_rms * numbers.cosine
    return along + math.sqrt(max(along**2 - numbers.base_rms**2 + numbers.rmse**2, 0.0))
