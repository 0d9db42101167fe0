"""Base's draws given to another run: each to the draw that happens at the same place, if it is of the same kind."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from padiff.capture.conversion import LOCATED, converted, event_of, fitted, told
from padiff.capture.draws import Listener, Undecided, plain_numbers
from padiff.capture.recomputing import in_checkpoint
from padiff.frameworks.draws import Bound, Drawn
from padiff.records import Array, Call, Draw, DrawGap

Partners = Callable[[Call], Sequence[Call]]
"""Base's calls that a call stands beside; none where it is not known, or there are none."""
_ON_AVERAGE = frozenset({"mean chance", "mean index", "mean rate"})
_ROUGHLY = 2.0**-8 + 2.0**-9
"""As near as bfloat16 comes: a chance is rounded, and so is what it is added to."""


class _Given(NamedTuple):
    number: int
    """Of this run's draw."""
    numbers: Array | None


class Replay(Listener):
    """Hands out the draws of a run that was listened to.

    Calls that stand beside each other divide both runs into stretches; draws of one stretch correspond in order. So
    neither what is drawn elsewhere nor how the modules between are built matters.
    """

    def __init__(self, base: Listener, partners: Partners, dividing: Iterable[int]) -> None:
        """``dividing`` are base's calls that a call of this run will stand beside, beginning and ending with it."""
        super().__init__()
        self._base = base
        self._clocks = [draw.clock for draw in base.draws]
        self._partners = partners
        self._dividing = frozenset(dividing)
        self._bounds = sorted({time for index in self._dividing if index in base.times for time in base.times[index]})
        self._now = 0
        self._beside: dict[int, Sequence[Call]] = {}
        self._place: dict[int, str] = {}
        """Base's call to the path of the one beside it."""
        self._taken: dict[int, bool] = {}
        """Base's draws that were handed out, to whether at their own place."""
        self._gaps: list[tuple[int, DrawGap]] = []
        """With the number of this run's draw."""
        self._given: dict[int, deque[_Given]] = {}
        """State of the generator to what was handed out for it, should a checkpoint draw again."""
        self._in_backward = False
        self._in_checkpoint = False
        """Whether some draw may be repeated in backward."""
        self._events: dict[int, tuple[Draw, tuple[Array, float | None]]] = {}
        """This run's draw to base's, and to what base decided by it."""

    @property
    def replayed(self) -> int:
        """How many draws were handed out."""
        return len(self._taken)

    # --- where we are

    def entered(self, call: Call) -> None:
        super().entered(call)
        beside = [one for one in self._partners(call) if one.index in self._base.times]
        if beside:
            self._beside[call.index] = beside
            for one in beside:
                self._place.setdefault(one.index, call.path)
            self._now = min((self._base.times[i][0] for i in self._dividing_among(beside)), default=self._now)

    def left(self, call: Call) -> None:
        super().left(call)
        beside = self._beside.get(call.index)
        if beside:
            self._now = max((self._base.times[i][1] for i in self._dividing_among(beside)), default=self._now)

    def _dividing_among(self, calls: Sequence[Call]) -> list[int]:
        return [one.index for one in calls if one.index in self._dividing]

    # --- what is handed out

    def drawn(self, drawn: Drawn) -> Array | None:
        if self._in_backward:
            return self._once_more(drawn)
        own = self.note(drawn)
        number = len(self.draws) - 1
        chosen = self._choose(own, drawn)
        base = None if chosen is None else self._base.draws[chosen]
        numbers = None if base is None else converted(base, drawn)
        event = None if base is None else event_of(base)
        if base is not None and event is not None and own.kind == "uniform":
            self._events[number] = (base, event)
        if numbers is not None:  # what the model goes on with
            self.draws[number] = replace(own, value=plain_numbers(drawn, np.array(numbers)))
        self.keep_in_view(drawn, np.array(drawn.value) if numbers is None else numbers, number)
        self._in_checkpoint = self._in_checkpoint or in_checkpoint()
        self._given.setdefault(drawn.state(), deque()).append(_Given(number, numbers))
        return numbers

    def bounded(self, how: Bound, numbers: Array, bound: Array, result: Array) -> Array | None:
        found = self.decided(how, numbers, bound)
        if found is None:
            return None
        undecided, chance = found
        if undecided.draw not in self._events:
            self.decide(undecided, result, chance)
            return None
        base, (event, likely) = self._events[undecided.draw]
        fitting = fitted(event, result.shape)
        if fitting is None:
            return None
        if chance is not None and likely is not None and not self._in_backward:
            self._compare_chances(undecided, base, likely, chance)
        decided = told(fitting, likely, chance)
        if not self._in_backward:
            self.decide(undecided, decided, chance)
        return decided

    def _compare_chances(self, undecided: Undecided, base: Draw, likely: float, chance: float) -> None:
        if min(abs(chance - likely), abs(1 - chance - likely)) > 1e-4:
            own = self.draws[undecided.draw]
            raw = f"a mask of {list(own.value.shape)} that keeps {chance:.6g}"
            apart = min(abs(chance - likely), abs(1 - chance - likely)) > _ROUGHLY
            stacks = (base.stack, own.stack)
            gap = DrawGap("parameters", base.path, own.path, str(base), raw, True, (likely, chance), apart, stacks)
            self._gaps.append((undecided.draw, gap))

    def _choose(self, own: Draw, drawn: Drawn) -> int | None:
        number = len(self.draws) - 1
        stop = bisect_right(self._bounds, self._now)
        end = self._bounds[stop] if stop < len(self._bounds) else None
        first = bisect_left(self._clocks, self._now)
        last = len(self._clocks) if end is None else bisect_left(self._clocks, end)
        free = [one for one in range(first, last) if not self._taken.get(one)]
        fits = [one for one in free if converted(self._base.draws[one], drawn) is not None]
        chosen = next((one for one in fits if _alike(self._base.draws[one], own)), fits[0] if fits else None)
        if chosen is None:
            chosen = self._elsewhere(own, drawn)
            if chosen is not None:
                self._taken[chosen] = False
                base = self._base.draws[chosen]
                self._gaps.append((number, _gap("place", base, own)))
                return chosen
            if free:
                base = self._base.draws[free[0]]
                self._taken[free[0]] = True
                same = base.kind == own.kind
                self._gaps.append((number, _gap("shape" if same else "kind", base, own)))
            else:
                self._gaps.append((number, _gap("raw only", None, own)))
            return None
        self._taken[chosen] = True
        base = self._base.draws[chosen]
        if not _alike(base, own) and base.kind == own.kind:
            self._gaps.append((number, _gap("parameters", base, own)))
        return chosen

    def _elsewhere(self, own: Draw, drawn: Drawn) -> int | None:
        """A draw that the module beside makes in its own code at another moment."""
        around = next((self._beside[call.index] for call in reversed(self._open) if call.index in self._beside), ())
        calls = {one.index for one in around}
        for one, base in enumerate(self._base.draws):
            if one not in self._taken and self._owner(base) in calls and _alike(base, own):
                value = converted(base, drawn)
                if value is not None and base.value.shape == own.value.shape:
                    return one
        return None

    def _owner(self, base: Draw) -> int:
        """The innermost of base's calls around a draw that some call will stand beside."""
        index = base.call
        while index >= 0 and index not in self._dividing:
            index = self._base.parents.get(index, -1)
        return index

    # --- a checkpoint's second run

    @property
    def repeats(self) -> bool:
        return self._in_checkpoint

    @contextmanager
    def in_backward(self) -> Iterator[Listener | None]:
        self._in_backward = True
        try:
            yield self if self._given else None
        finally:
            self._in_backward = False

    def _once_more(self, drawn: Drawn) -> Array | None:
        known = self._given.get(drawn.state())
        if not known:
            return None
        found = known[0]
        known.rotate(-1)
        numbers = None if found.numbers is None else fitted(found.numbers, drawn.value.shape)
        if numbers is not None:
            self.keep_in_view(drawn, numbers, found.number)
        return numbers

    # --- what does not correspond

    def gaps(self) -> tuple[DrawGap, ...]:
        """Where the draws of the two runs do not correspond, in the order of this run, then what only base draws."""
        found = [gap for _, gap in sorted(self._gaps, key=lambda one: one[0])]
        for number, base in enumerate(self._base.draws):
            if number not in self._taken:
                found.append(_gap("base only", base, None, self._there(base)))
        found += [DrawGap("hidden", base_path=path, base=op) for op, path in self._base.unseen]
        found += [DrawGap("hidden", raw_path=path, raw=op) for op, path in self.unseen]
        return tuple(found)

    def _there(self, base: Draw) -> str:
        """Where this run would draw what only base draws."""
        index = base.call
        while index >= 0 and index not in self._place:
            index = self._base.parents.get(index, -1)
        return self._place.get(index, "")


def itself(base: Listener) -> Replay:
    """Base's own draws, for base to run again."""
    nodes = dict.fromkeys(base.times)

    def partners(call: Call) -> Sequence[Call]:
        return (call,) if call.index in nodes else ()

    return Replay(base, partners, nodes)


def _alike(base: Draw, own: Draw) -> bool:
    """Drawn with the same parameters, as far as they are known."""
    if base.kind != own.kind:
        return True
    return all(apart <= (_ROUGHLY if name in _ON_AVERAGE else 1e-6) for name, apart in _apart(base, own))


def _apart(base: Draw, own: Draw) -> Iterator[tuple[str, float]]:
    """How far the parameters that both have are apart, of numbers over 1 relative to them."""
    for name in base.parameters.keys() & own.parameters.keys():
        one, other = base.parameters[name], own.parameters[name]
        yield name, abs(one - other) / max(1.0, abs(one))


def _covered(base: Draw, own: Draw) -> bool:
    """Whether numbers that are handed over as they are have been drawn from something else, by more than the rounding
    of a narrow dtype."""
    return base.kind not in LOCATED and any(apart > _ROUGHLY for _, apart in _apart(base, own))


def _gap(reason: str, base: Draw | None, own: Draw | None, there: str = "") -> DrawGap:
    masked = any(one is not None and (one.kind == "mask" or one.chance is not None) for one in (base, own))
    return DrawGap(
        reason,  # type: ignore[arg-type]
        "" if base is None else base.path,
        there if own is None else own.path,
        "" if base is None else str(base),
        "" if own is None else str(own),
        masked,
        (None if base is None else base.keep, None if own is None else own.keep),
        covered=reason == "parameters" and base is not None and own is not None and _covered(base, own),
        stacks=(() if base is None else base.stack, () if own is None else own.stack),
    )
