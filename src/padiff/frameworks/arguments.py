"""What a function of a framework was given besides tensors, by name."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Mapping
from types import FrameType
from typing import Any

from padiff.frameworks.settings import SYNONYMS

Options = tuple[tuple[str, Any], ...]
"""Name and value; the name is the place where the function does not tell its names."""

_LONGEST = 16
_SIGNATURE = re.compile(r"^\s*\w+\((.*)\)\s*->")
_KEYS = {"keepdims": "keepdim", "shape": "size", "perm": "dims", "x": "input"} | SYNONYMS
"""Spelling of an argument to the one name used everywhere."""


def options_of(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Options:
    """Numbers, words and tuples of them that a function was called with."""
    names = _names(function)
    placed = {names[place] if place < len(names) else str(place): value for place, value in enumerate(args)}
    return _plain(placed | dict(kwargs))


def options_in(frame: FrameType) -> Options:
    """The same of a function that is running."""
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount
    names, own = code.co_varnames[:count], frame.f_locals
    given = {name: own[name] for name in names if name in own and name not in ("self", "name")}
    if code.co_flags & inspect.CO_VARKEYWORDS:  # a function that passes on what it is given
        rest = own.get(code.co_varnames[count + bool(code.co_flags & inspect.CO_VARARGS)])
        given |= rest if isinstance(rest, dict) else {}
    return _plain(given)


def _plain(given: Mapping[str, Any]) -> Options:
    found: list[tuple[str, Any]] = []
    for name, value in given.items():
        known, plain = _value(value)
        if known:
            found.append((_KEYS.get(name, name), plain))
    return tuple(found)


def _value(value: Any) -> tuple[bool, Any]:
    if value is None or isinstance(value, (bool, int, float, str)):
        return True, value
    if value is Ellipsis:
        return True, "..."
    if isinstance(value, slice):
        parts = (value.start, value.stop, value.step)
        known = all(part is None or isinstance(part, int) for part in parts)
        return known, ":".join("" if part is None else str(part) for part in parts)
    if isinstance(value, (tuple, list)) and 0 < len(value) <= _LONGEST:
        items = [_value(item) for item in value]
        return all(known for known, _ in items), tuple(item for _, item in items)
    if type(value).__name__ in ("dtype", "DataType", "VarType"):
        return True, str(value).rpartition(".")[2]
    return False, None


@functools.cache
def _names(function: Any) -> tuple[str, ...]:
    """The names of a function's arguments: by its signature, or by the first line of its documentation."""
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        pass
    found = _SIGNATURE.match((getattr(function, "__doc__", None) or "").lstrip())
    if found is None:
        return ()
    words = [word.partition("=")[0].strip().lstrip("*") for word in found.group(1).split(",")]
    own = ("self",) if inspect.ismethoddescriptor(function) else ()
    return (*own, *(word for word in words if word.isidentifier()))
