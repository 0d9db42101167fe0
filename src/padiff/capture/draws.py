"""Listening to a model's random draws: where in the model each happens, and what is made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from padiff.frameworks.draws import Bound, Drawn
from padiff.records import Array, Call, Draw, Frame

_MOST_OPEN = 8
"""Draws of which it is not yet known whether they are held against a bound."""
_OPPOSITE: dict[Bound, Bound] = {"less": "greater", "greater": "less"}


@dataclass
class Undecided:
    """Uniform numbers that may yet be held against a bound."""

    draw: int
    numbers: Array
    """As the model has them."""
    low: float
    width: float

    def chance(self, how: Bound, numbers: Array, bound: Array) -> tuple[bool, float | None]:
        """Whether these numbers are what is held against the bound, and how likely a true is."""
        if numbers.shape != self.numbers.shape:
            return False, None
        if how == "floor":
            added = numbers.astype(np.float64) - self.numbers.astype(np.float64)
            first = float(added.flat[0]) if added.size else 0.0
            spread = float(np.abs(added - first).max(initial=0.0))
            return spread < 1e-2 if numbers.dtype.itemsize < 4 else spread < 1e-5, first
        if not np.array_equal(numbers, self.numbers):
            return False, None
        if bound.size != 1:
            return True, None
        share = (float(bound.reshape(-1)[0]) - self.low) / self.width
        return True, share if how == "less" else 1.0 - share


class Listener:
    """Notes every draw of a run with its place. Told of calls as they begin and end."""

    def __init__(self) -> None:
        self.draws: list[Draw] = []
        self.times: dict[int, tuple[int, int]] = {}
        """Call to what the clock showed after it began, and after it ended."""
        self.parents: dict[int, int] = {}
        self.unseen: list[tuple[str, str]] = []
        """Ops that draw where nobody can see it, with the path of their module."""
        self._open: list[Call] = []
        self._clock = 0
        self._undecided: list[Undecided] = []
        self.lines: Callable[[], tuple[Frame, ...]] = tuple
        """Where the user's code is, while a model runs."""

    # --- told by the recorder

    def entered(self, call: Call) -> None:
        self._clock += 1
        self._open.append(call)
        self.times[call.index] = (self._clock, self._clock)
        self.parents[call.index] = call.parent

    def left(self, call: Call) -> None:
        while self._open and self._open.pop().index != call.index:  # calls that an exception ended
            pass
        self._clock += 1
        self.times[call.index] = (self.times[call.index][0], self._clock)
        self._undecided.clear()

    # --- told by the adapter

    @property
    def curious(self) -> bool:
        return bool(self._undecided)

    def drawn(self, drawn: Drawn) -> Array | None:
        self.note(drawn)
        self.keep_in_view(drawn, np.array(drawn.value), len(self.draws) - 1)
        return None

    def hidden(self, op: str) -> None:
        self.unseen.append((op, self._open[-1].path if self._open else ""))

    def bounded(self, how: Bound, numbers: Array, bound: Array, result: Array) -> Array | None:
        found = self.decided(how, numbers, bound)
        if found is not None:
            undecided, chance = found
            self.decide(undecided, result, chance)
        return None

    # --- shared with those who do more

    def note(self, drawn: Drawn) -> Draw:
        """Keep the draw with its place."""
        value, loc, scale = plain_numbers(drawn, np.array(drawn.value)), drawn.loc, drawn.scale
        if not isinstance(loc, (int, float)) or not isinstance(scale, (int, float)):
            loc, scale = 0.0, 1.0
        call = self._open[-1] if self._open else None
        draw = Draw(
            kind=drawn.kind,
            value=value,
            parameters=drawn.parameters,
            loc=float(loc),
            scale=float(scale),
            op=drawn.op,
            call=-1 if call is None else call.index,
            path="" if call is None else call.path,
            clock=self._clock,
            stack=self.lines(),
        )
        self.draws.append(draw)
        return draw

    def decide(self, undecided: Undecided, result: Array, chance: float | None) -> None:
        """Keep what the model made of a draw."""
        draw = self.draws[undecided.draw]
        self.draws[undecided.draw] = replace(draw, event=np.array(result) != 0, chance=chance)

    def keep_in_view(self, drawn: Drawn, numbers: Array, number: int) -> None:
        """Uniform numbers may be held against a bound next; ``number`` is that of the draw."""
        low, width = drawn.loc, drawn.scale
        if drawn.kind == "uniform" and isinstance(low, (int, float)) and isinstance(width, (int, float)) and width:
            self._undecided.append(Undecided(number, numbers, float(low), float(width)))
            del self._undecided[:-_MOST_OPEN]

    def decided(self, how: Bound, numbers: Array, bound: Array) -> tuple[Undecided, float | None] | None:
        """The draw that is held against a bound, if it is one, and how likely a true is; asked once for each."""
        for undecided in reversed(self._undecided):
            for way, one, other in ((how, numbers, bound), (_OPPOSITE.get(how), bound, numbers)):
                if way is None:
                    continue
                held, chance = undecided.chance(way, one, other)
                if held:
                    self._undecided.remove(undecided)
                    return undecided, chance
        return None

    @property
    def repeats(self) -> bool:
        """Whether a checkpoint may run again, and must be given something then."""
        return False

    @contextmanager
    def in_backward(self) -> Iterator[Listener | None]:
        """What listens while backward runs: nobody, unless a checkpoint's second run must be given something."""
        yield None


def plain_numbers(drawn: Drawn, numbers: Array) -> Array:
    """Numbers of a draw as a record keeps them: where each has a place and a scale of its own, without these."""
    if isinstance(drawn.loc, (int, float)) and isinstance(drawn.scale, (int, float)):
        return numbers
    plain: Array = (numbers.astype(np.float64) - drawn.loc) / drawn.scale
    return plain


class Steady:
    """Takes chance out of a run: masks keep everything, numbers are what they are on average."""

    curious = False

    def drawn(self, drawn: Drawn) -> Array | None:
        plain = {"mask": 1.0, "uniform": 0.5, "gaussian": 0.0, "exponential": 1.0}.get(drawn.kind)
        if plain is None:
            return None
        placed: Array = np.broadcast_to(drawn.loc + drawn.scale * np.float64(plain), drawn.value.shape)
        return placed.astype(drawn.value.dtype)

    def hidden(self, op: str) -> None:
        """Nothing can be done about it."""

    def bounded(self, how: Bound, numbers: Array, bound: Array, result: Array) -> Array | None:
        return None
