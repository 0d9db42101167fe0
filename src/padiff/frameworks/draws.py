"""Random numbers as an adapter sees them drawn: told to somebody, who may have others take their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from padiff.records import Array

Bound = Literal["less", "greater", "floor"]
"""How numbers are held against a bound; ``floor`` takes a sum down to zero or one."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """Numbers just drawn, in the framework's own conventions."""

    kind: str
    op: str
    value: Array
    loc: float | Array = 0.0
    scale: float | Array = 1.0
    """``(value - loc) / scale`` are plain numbers: from 0 to 1, of mean 0 and deviation 1, of rate 1."""
    parameters: Mapping[str, float] = field(default_factory=dict)
    state: Callable[[], int] = lambda: 0
    """A number that tells the state the generator was in; a checkpoint that runs again starts from the same."""


class Dice(Protocol):
    """Listens to draws while a model runs."""

    @property
    def curious(self) -> bool:
        """Whether it wants to be told of bounds now."""
        ...

    def drawn(self, drawn: Drawn) -> Array | None:
        """May return other numbers, of the same shape and in the same conventions."""
        ...

    def hidden(self, op: str) -> None:
        """An op drew numbers that nobody can see."""
        ...

    def bounded(self, how: Bound, numbers: Array, bound: Array, result: Array) -> Array | None:
        """Told of numbers held against a bound; may return another true or false for each."""
        ...


def watching_draws(adapter: Any, dice: Dice | None) -> AbstractContextManager[None]:
    """Inside, ``dice`` hears of every draw; nothing where the adapter does not know how to listen."""
    watch = getattr(adapter, "watch_draws", None)
    if dice is None or watch is None:
        return nullcontext()
    context: AbstractContextManager[None] = watch(dice)
    return context
