"""Records to JSON and back, by their types."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

from padiff.errors import ReportError

ODD = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
"""JSON has no such numbers: they are written as these words."""


def written(value: Any, *, slim: bool = False) -> Any:
    """A record as JSON knows it; ``slim`` leaves out members that hold their default."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = {}
        for name, default in members(type(value)):
            member = getattr(value, name)
            if not (slim and _is_default(member, default)):
                found[name] = written(member, slim=slim)
        return found
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): written(item, slim=slim) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [written(item, slim=slim) for item in value]
    return str(value)


def _is_default(member: Any, default: Any) -> bool:
    return member is default or (type(member) is type(default) and bool(member == default))


@functools.cache
def members(record: type) -> tuple[tuple[str, Any], ...]:
    """Name and default of each member; a default that nothing equals where there is none."""
    found = []
    for one in dataclasses.fields(record):
        default = one.default
        if one.default_factory is not dataclasses.MISSING:
            default = one.default_factory()
        found.append((one.name, default))
    return tuple(found)


@functools.cache
def hints(record: type) -> dict[str, Any]:
    return typing.get_type_hints(record)


def read(kind: Any, data: Any, where: str) -> Any:
    """What ``written`` made of something of this type; raises ReportError, with the place, where it cannot be."""
    if kind is Any:
        return _frozen(data)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _read_record(kind, data, where)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return data if data in inner and isinstance(data, str) else _refuse(data, where, f"one of {', '.join(inner)}")
    if origin in (types.UnionType, typing.Union):
        return None if data is None else read(next(one for one in inner if one is not type(None)), data, where)
    if origin is tuple:
        return _read_tuple(inner, data, where)
    if origin is not None:
        if not isinstance(data, dict):
            _refuse(data, where, "an object")
        return {str(key): read(inner[1], item, f"{where}.{key}") for key, item in data.items()}
    return _read_scalar(kind, data, where)


def _frozen(data: Any) -> Any:
    """Records hold tuples, JSON has lists."""
    return tuple(_frozen(item) for item in data) if isinstance(data, list) else data


def _read_record(kind: type, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        _refuse(data, where, "an object")
    known = hints(kind)
    found: dict[str, Any] = {}
    for name, default in members(kind):
        if name in data:
            found[name] = read(known[name], data[name], f"{where}.{name}" if where else name)
        elif default is dataclasses.MISSING:
            raise ReportError(f"the report has no member {name!r} in {where or 'its top'}")
    return kind(**found)


def _read_tuple(inner: tuple[Any, ...], data: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(data, list):
        _refuse(data, where, "a list")
    if len(inner) == 2 and inner[1] is Ellipsis:
        return tuple(read(inner[0], item, f"{where}[{place}]") for place, item in enumerate(data))
    if len(inner) != len(data):
        _refuse(data, where, f"{len(inner)} members")
    return tuple(
        read(one, item, f"{where}[{place}]") for place, (one, item) in enumerate(zip(inner, data, strict=True))
    )


def _read_scalar(kind: Any, data: Any, where: str) -> Any:
    if kind is float:
        if isinstance(data, str) and data in ODD:
            return ODD[data]
        if isinstance(data, (int, float)) and not isinstance(data, bool):
            return float(data)
    elif isinstance(data, kind) and (kind is bool or not isinstance(data, bool)):
        return data
    return _refuse(data, where, {float: "a number", int: "a whole number", str: "text"}.get(kind, "true or false"))


def _refuse(data: Any, where: str, expected: str) -> Any:
    shown = repr(data)
    raise ReportError(
        f"the report holds {shown[:60]}{'...' if len(shown) > 60 else ''} in {where or 'its top'}, expected {expected}"
    )
