"""Functions of the user's own that are to be seen as one op each: replaced while a model runs under capture."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType, TracebackType
from typing import Any

from padiff.errors import ArgumentError

ENVIRONMENT = "PADDLE_THIRDPARTY_API"
"""Names of such functions, with commas between them; read when a model runs."""

_names: list[str] = []
"""There is nothing to hand a name to before a comparison begins."""
_patching = threading.Lock()
_replaced: dict[tuple[int, str], list[Any]] = {}
"""(Owner, attribute) to owner, attribute, function, and how many captures want it replaced."""


class _Watchers(threading.local):
    """Of one thread: by function, what takes its place."""

    def __init__(self) -> None:
        self.stack: list[dict[int, Callable[..., Any]]] = []


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
        except ModuleNotFoundError:
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
    """The names in force: those watched, and those the environment names."""
    named = [one.strip() for one in os.environ.get(ENVIRONMENT, "").split(",")]
    return list(dict.fromkeys([*_names, *(one for one in named if one)]))


@contextmanager
def watched_functions(whole: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Inside, what this thread calls of these functions goes through what ``whole`` makes of each."""
    names = wanted_functions()
    if not names:
        yield
        return
    own: dict[int, Callable[..., Any]] = {}
    places: list[tuple[Any, str, Any]] = []
    with _patching:
        for name in names:
            owner, attribute, function = _find(name)
            function = _behind(function)
            own[id(function)] = whole(name, function)
            places += _places(owner, attribute, function)
        for owner, attribute, function in places:
            entry = _replaced.setdefault((id(owner), attribute), [owner, attribute, vars(owner)[attribute], 0])
            entry[3] += 1
            if entry[3] == 1:
                setattr(owner, attribute, _replacement(function, entry[2]))
    _watchers.stack.append(own)
    try:
        yield
    finally:
        _watchers.stack.remove(own)
        with _patching:
            for owner, attribute, _ in places:
                entry = _replaced[id(owner), attribute]
                entry[3] -= 1
                if entry[3] == 0:
                    del _replaced[id(owner), attribute]
                    setattr(owner, attribute, entry[2])


def _places(owner: Any, attribute: str, function: Any) -> list[tuple[Any, str, Any]]:
    """Where the function is held: by its owner, and by all modules that imported it by itself."""
    found = [(owner, attribute, function)] if attribute in getattr(owner, "__dict__", {}) else []
    if not isinstance(owner, ModuleType):
        return found
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            same = value is function or (type(value) is FunctionType and _behind(value) is function)
            if same and (module is not owner or name != attribute):
                found.append((module, name, function))
    return found


def _behind(function: Any) -> Any:
    """What a replacement stands for; anything else stands for itself."""
    return getattr(function, "__dict__", {}).get("__padiff_watched__", function)


def _replacement(function: Callable[..., Any], held: Any) -> Any:
    def replacement(*args: Any, **kwargs: Any) -> Any:
        stack = _watchers.stack
        return (stack[-1].get(id(function), function) if stack else function)(*args, **kwargs)

    replacement.__padiff_watched__ = function  # type: ignore[attr-defined]
    replacement.__name__ = getattr(function, "__name__", "replacement")
    replacement.__doc__ = function.__doc__
    return staticmethod(replacement) if isinstance(held, staticmethod) else replacement
