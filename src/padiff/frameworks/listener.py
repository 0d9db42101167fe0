"""Who hears of functions that are replaced for a while.

They are replaced for the process; what a replacement does is decided by who listens in the thread that calls it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from padiff.frameworks.patches import Patch, Wrap, replaced

Tell = Callable[[Any, Sequence[Any], Mapping[str, Any], Any], None]
"""Tells who listens what a function was given, by position and by name, and what it returned."""


class Listener(threading.local):
    """Of one thread; it is not told of what it does itself."""

    told: Any = None

    @contextmanager
    def hearing(self, told: Any, patches: Sequence[Patch]) -> Iterator[None]:
        """Inside, ``told`` hears of the functions that are replaced, after each has run in this thread."""
        before = self.told
        with replaced(patches):
            self.told = told
            try:
                yield
            finally:
                self.told = before

    def telling(self, aside: Callable[[], AbstractContextManager[Any]], tell: Tell) -> Wrap:
        """What is made of a function; inside of ``aside`` nobody else sees what the listener does."""

        @functools.cache
        def wrap(function: Any) -> Any:
            @functools.wraps(function)
            def replacement(*args: Any, **kwargs: Any) -> Any:
                output = function(*args, **kwargs)
                told = self.told
                if told is not None:
                    self.told = None
                    try:
                        with aside():
                            tell(told, args, kwargs, output)
                    finally:
                        self.told = told
                return output

            return replacement

        return wrap
