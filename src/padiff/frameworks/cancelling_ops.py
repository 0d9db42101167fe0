"""Functions that may work with larger numbers than they return, told of while somebody wants to know.

They are replaced for the process; what a replacement does is decided by who listens in the thread that calls it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from padiff.frameworks.patches import Patch, Wrap, replaced

Told = Callable[[str, Sequence[Any], Any], None]
"""Told of a function's kind, what it was given by position, and what it returned."""


class _Listener(threading.local):
    """Of one thread; it is not told of what it does itself."""

    told: Told | None = None


_listener = _Listener()


@contextmanager
def listening(told: Told, patches: Sequence[Patch]) -> Iterator[None]:
    """Inside, ``told`` hears of the functions that are replaced, after each has run in this thread."""
    before = _listener.told
    with replaced(patches):
        _listener.told = told
        try:
            yield
        finally:
            _listener.told = before


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
    listener = _listener

    @functools.cache
    def wrap(function: Any) -> Any:
        @functools.wraps(function)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            output = function(*args, **kwargs)
            told = listener.told
            if told is not None:
                listener.told = None
                try:
                    with aside():
                        told(kind, args if positions is None else [args[place] for place in positions], output)
                finally:
                    listener.told = told
            return output

        return replacement

    return wrap
