"""Functions of paddle replaced for a while. Several may replace the same one, in any order, also in several threads."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Makes a replacement that calls what it is given."""

_lock = threading.RLock()


class _Place:
    """One attribute that is replaced while anybody wants it replaced."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name
        self.original = getattr(owner, name)
        self.inherited = isinstance(owner, type) and name not in vars(owner)
        self.wraps: dict[Wrap, int] = {}
        """With how many want it; one that is wanted twice is put in once."""
        self.chain = self.original
        place = self

        @functools.wraps(self.original)
        def standing_in(*args: Any, **kwargs: Any) -> Any:
            return place.chain(*args, **kwargs)

        self.stand_in = standing_in

    def put_back(self) -> None:
        if self.inherited:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.original)

    def rebuild(self) -> None:
        chain = self.original
        for wrap in self.wraps:
            chain = wrap(chain)
        self.chain = chain


_places: dict[tuple[int, str], _Place] = {}


def replace(owner: Any, name: str, wrap: Wrap) -> Callable[[], None]:
    """Put a replacement in; returns what takes it out again, and puts back what was there if it was the last."""
    with _lock:
        key = (id(owner), name)
        place = _places.get(key)
        if place is None:
            place = _places[key] = _Place(owner, name)
            setattr(owner, name, place.stand_in)
        place.wraps[wrap] = place.wraps.get(wrap, 0) + 1
        if place.wraps[wrap] == 1:
            place.rebuild()

    def undo() -> None:
        with _lock:
            place.wraps[wrap] -= 1
            if place.wraps[wrap]:
                return
            del place.wraps[wrap]
            place.rebuild()
            if not place.wraps:
                _places.pop(key, None)
                if getattr(owner, name) is place.stand_in:  # somebody else's replacement comes off by itself
                    place.put_back()

    return undo
