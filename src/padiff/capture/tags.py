"""Tensors that the user marks inside a model, to be compared by name."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from padiff.errors import ArgumentError

T = TypeVar("T")


class Listener(Protocol):
    """Who wants to know of tags."""

    def tagged(self, name: str, value: Any) -> Any: ...


class _Listeners(threading.local):
    """Of one thread."""

    def __init__(self) -> None:
        self.stack: list[Listener] = []


_listeners = _Listeners()


def tag(name: str, tensor: T) -> T:
    """Mark a tensor inside a model: in a comparison it is held against the one that the other model marks with the same
    name, its gradient too. Returns the tensor; outside of a comparison that is all it does."""
    if not isinstance(name, str) or not name:
        raise ArgumentError(f"name is {name!r}, expected a name such as 'scores'", 'write padiff.tag("scores", tensor)')
    stack = _listeners.stack
    return tensor if not stack else stack[-1].tagged(name, tensor)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Inside, ``listener`` is told of what this thread tags."""
    _listeners.stack.append(listener)
    try:
        yield
    finally:
        _listeners.stack.remove(listener)
