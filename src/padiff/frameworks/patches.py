"""Functions and methods replaced for a while: the one way in which padiff puts anything of its own in another's place.

Several may replace the same one, nested or one after the other, in any order, also in several threads. What was there
is back once nobody wants otherwise, whatever exceptions came in between.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

Wrap = Callable[[Any], Any]
"""Makes a replacement that calls what it is given. It must do no more than that where nobody listens. One for hundreds
of functions should remember what it has made."""
Patch = tuple[Any, str, Wrap]
"""Who has the function, its name, and what is made of it."""

_lock = threading.Lock()


class _Place:
    """One attribute that is replaced while anybody wants it replaced."""

    __slots__ = ("inherited", "name", "original", "owner", "standing", "wraps")

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name
        self.inherited = isinstance(owner, type) and name not in vars(owner)
        self.original: Any = None
        self.standing: Any = None
        """What stands there now."""
        self.wraps: dict[Wrap, int] = {}
        """With how many want it; one that is wanted twice is put in once."""

    def add(self, wrap: Wrap) -> None:
        if not self.wraps:
            self.original = _held(self.owner, self.name)
        if wrap not in self.wraps:
            self._set((*self.wraps, wrap))
        self.wraps[wrap] = self.wraps.get(wrap, 0) + 1

    def remove(self, wrap: Wrap) -> None:
        wraps = self.wraps
        wraps[wrap] -= 1
        if wraps[wrap]:
            return
        del wraps[wrap]
        if _held(self.owner, self.name) is self.standing:  # else somebody has replaced it since, and will put back
            self._put_back()  # what is of no effect by now
        if not wraps:  # whatever a replacement holds, nobody holds it for that
            self.standing = self.original = None

    def _put_back(self) -> None:
        if self.wraps:
            self._set(self.wraps)
        elif self.inherited:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.original)

    def _set(self, wraps: Iterable[Wrap]) -> None:
        chain = self.original
        for wrap in wraps:
            chain = wrap(chain)
        self.standing = chain
        setattr(self.owner, self.name, chain)


_places: dict[tuple[int, str], _Place] = {}


def _held(owner: Any, name: str) -> Any:
    """What stands there, as it is stored, or inherited: a static method is not unwrapped."""
    for one in owner.__mro__ if isinstance(owner, type) else (owner,):
        own = getattr(one, "__dict__", {})
        if name in own:
            return own[name]
    return getattr(owner, name)


@contextmanager
def replaced(patches: Sequence[Patch]) -> Iterator[None]:
    """Inside, the functions are replaced; afterwards what was there is back, once nobody else wants otherwise."""
    found: list[tuple[_Place, Wrap]] = []
    try:
        with _lock:
            for owner, name, wrap in patches:
                place = _places.get((id(owner), name))
                if place is None:
                    place = _places[id(owner), name] = _Place(owner, name)
                place.add(wrap)
                found.append((place, wrap))
        yield
    finally:
        with _lock:
            for place, wrap in reversed(found):
                place.remove(wrap)


@contextmanager
def after_method(cls: type, name: str, tell: Callable[[Any], None]) -> Iterator[None]:
    """Inside, ``tell`` is called with an object of the class whenever that method of it has run in this thread."""
    thread = threading.get_ident()

    def wrap(original: Any) -> Any:
        def telling(one: Any, *args: Any, **kwargs: Any) -> Any:
            found = original(one, *args, **kwargs)
            if threading.get_ident() == thread:
                tell(one)
            return found

        return telling

    with replaced([(cls, name, wrap)]):
        yield


def originals() -> dict[int, Any]:
    """By the identity of what stands somewhere in another's place: the other."""
    with _lock:
        return {id(place.standing): place.original for place in _places.values() if place.wraps}
