"""Functions of the user's own that are to be seen as one op each: replaced while a model runs under capture."""

from __future__ import annotations

import functools
import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, TracebackType
from typing import Any

from padiff.errors import ArgumentError
from padiff.frameworks.patches import Patch, Wrap, originals, replaced

Whole = Callable[[str, Callable[..., Any]], Callable[..., Any]]
"""Makes of a function, under a name, what is called in its place."""

ENVIRONMENT = "PADDLE_THIRDPARTY_API"
"""Names of such functions, with commas between them; read when a model runs."""

_names: list[str] = []
"""There is nothing to hand a name to before a comparison begins."""


class _Watchers(threading.local):
    """Of one thread: which functions each wants to see, and how; the innermost is asked."""

    def __init__(self) -> None:
        self.stack: list[tuple[frozenset[str], Whole]] = []


_watchers = _Watchers()


class WatchedFunction:
    """A function that is seen as one op until it is removed, or until the ``with`` block ends."""

    def __init__(self, name: str) -> None:
        self.name = name
        _names.append(name)

    def remove(self) -> None:
        """See it no longer; once is enough, and twice does no harm."""
        if self.name in _names:
            _names.remove(self.name)
        self.name = ""

    def __enter__(self) -> WatchedFunction:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.remove()


def watch_function(name: str) -> WatchedFunction:
    """See a function as one op, by its dotted name: ``"package.module.function"`` or ``"module.Class.method"``.

    From here on, in comparisons that look at ops, until ``.remove()`` is called on what this returns or the ``with``
    block ends in which it stands. The function is replaced only while a model runs under capture.
    """
    if not isinstance(name, str) or "." not in name:
        raise ArgumentError(
            f"name is {name!r}, expected the dotted name of a function",
            'write padiff.watch_function("package.module.function")',
        )
    _find(name)
    return WatchedFunction(name)


def _find(name: str) -> tuple[Any, str, Callable[..., Any]]:
    """Who holds a function, under which name, and the function."""
    parts = name.split(".")
    owner: Any = None
    rest: list[str] = []
    for length in range(len(parts) - 1, 0, -1):
        try:
            owner = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        rest = parts[length:]
        break
    if owner is None:
        raise ArgumentError(f"there is no module {parts[0]!r}, which {name!r} names", "it must be importable")
    for part in rest[:-1]:
        owner = getattr(owner, part, None)
    function = getattr(owner, rest[-1], None) if owner is not None else None
    if not callable(function):
        raise ArgumentError(f"there is no function {name!r}", 'write it as "package.module.function"')
    return owner, rest[-1], function


def wanted_functions() -> list[str]:
    """The names in force: those watched, and those the environment names that are there."""
    return list(dict.fromkeys([*_names, *named_in_environment()[0]]))


def named_in_environment() -> tuple[list[str], list[str]]:
    """What the environment names: functions that are there, and names that mean nothing here."""
    found: list[str] = []
    lost: list[str] = []
    for name in (one.strip() for one in os.environ.get(ENVIRONMENT, "").split(",")):
        if name:
            (found if _is_there(name) else lost).append(name)
    return found, lost


def _is_there(name: str) -> bool:
    try:
        _find(name)
    except Exception:  # a package may fail to import in ways of its own
        return False
    return True


@contextmanager
def watched_functions(whole: Whole) -> Iterator[None]:
    """Inside, what this thread calls of these functions goes through what ``whole`` makes of each."""
    names = wanted_functions()
    if not names:
        yield
        return
    with replaced([patch for name in names for patch in _places(name)]):
        own = (frozenset(names), whole)
        _watchers.stack.append(own)
        try:
            yield
        finally:
            _watchers.stack.remove(own)


def _places(name: str) -> list[Patch]:
    """Where a function is held: by its owner, and by all modules that imported it by itself."""
    owner, attribute, function = _find(name)
    wrap = _seen_whole(name)
    held = attribute in getattr(owner, "__dict__", {}) or isinstance(owner, type)
    found: list[Patch] = [(owner, attribute, wrap)] if held else []
    if not isinstance(owner, ModuleType):
        return found
    standing = originals()
    function = standing.get(id(function), function)
    for module in list(sys.modules.values()):
        for label, value in list(getattr(module, "__dict__", {}).items()):
            if standing.get(id(value), value) is function and (module is not owner or label != attribute):
                found.append((module, label, wrap))
    return found


@functools.cache
def _seen_whole(name: str) -> Wrap:
    """What is made of the function of this name."""

    def wrap(held: Any) -> Any:
        bound = type(held) if isinstance(held, (staticmethod, classmethod)) else None
        function = held if bound is None else held.__func__

        @functools.wraps(function)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            wanted, whole = _watchers.stack[-1] if _watchers.stack else ((), None)
            if whole is None or name not in wanted:
                return function(*args, **kwargs)
            return whole(name, function)(*args, **kwargs)

        return replacement if bound is None else bound(replacement)

    return wrap
