"""Functions of paddle replaced for a while. Several may replace the same one, in any order, also in several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

Wrap = Callable[[Any], Callable[..., Any]]
"""Makes a replacement that calls what it is given. It must do no more than that where nobody listens."""
Patch = tuple[Any, str, Wrap]
"""Who has the function, its name, and what is made of it."""

_lock = threading.Lock()


class _Place:
    """One attribute that is replaced while anybody wants it replaced."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name
        self.original: Any = None
        self.standing: Any = None
        """What stands there now."""
        self.inherited = isinstance(owner, type) and name not in vars(owner)
        self.wraps: dict[Wrap, int] = {}
        """With how many want it; one that is wanted twice is put in once."""

    def add(self, wrap: Wrap) -> None:
        if not self.wraps:
            self.original = getattr(self.owner, self.name)
        self.wraps[wrap] = self.wraps.get(wrap, 0) + 1
        if self.wraps[wrap] == 1:
            self._set()

    def remove(self, wrap: Wrap) -> None:
        self.wraps[wrap] -= 1
        if self.wraps[wrap]:
            return
        del self.wraps[wrap]
        if getattr(self.owner, self.name) is not self.standing:
            return  # somebody else has replaced it since, and will put back what is of no effect by now
        if self.wraps:
            self._set()
        elif self.inherited:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.original)

    def _set(self) -> None:
        chain = self.original
        for wrap in self.wraps:
            chain = wrap(chain)
        self.standing = chain
        setattr(self.owner, self.name, chain)


_places: dict[tuple[int, str], _Place] = {}


@contextmanager
def replaced(patches: Sequence[Patch]) -> Iterator[None]:
    """Inside, the functions are replaced; afterwards what was there is back, once nobody else wants otherwise."""
    found = []
    with _lock:
        for owner, name, wrap in patches:
            place = _places.get((id(owner), name))
            if place is None:
                place = _places[id(owner), name] = _Place(owner, name)
            place.add(wrap)
            found.append((place, wrap))
    try:
        yield
    finally:
        with _lock:
            for place, wrap in reversed(found):
                place.remove(wrap)
