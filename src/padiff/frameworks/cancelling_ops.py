"""Functions that may work with larger numbers than they return, told of while somebody wants to know."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from padiff.frameworks.listener import Listener
from padiff.frameworks.patches import Patch, Wrap

Told = Callable[[str, Sequence[Any], Any], None]
"""Told of a function's kind, what it was given by position, and what it returned."""

_listener = Listener()


def listening(told: Told, patches: Sequence[Patch]) -> AbstractContextManager[None]:
    """Inside, ``told`` hears of the functions that are replaced, after each has run in this thread."""
    return _listener.hearing(told, patches)


class Unheard:
    """Inside, nobody hears of what this thread calls: padiff's own work, amid the model's."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before, _listener.told = _listener.told, None

    def __exit__(self, *_: object) -> None:
        _listener.told = self._before


def telling(
    kind: str, aside: Callable[[], AbstractContextManager[Any]], positions: Sequence[int] | None = None
) -> Wrap:
    """What is made of a function of this kind; inside of ``aside`` nobody else sees what the listener does.
    ``positions`` are those of the arguments it is told of, in this order; None for all."""

    def tell(told: Told, args: Sequence[Any], _: Mapping[str, Any], output: Any) -> None:
        told(kind, args if positions is None else [args[place] for place in positions], output)

    return _listener.telling(aside, tell)
