"""What a model was called with, as JSON: containers by name, tensors by reference, the rest said honestly."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from padiff.errors import ArgumentError
from padiff.records import PlainData
from padiff.store import strict
from padiff.store.strict import Malformed

_DEEPEST = 64
_PLAIN = (bool, str, type(None))


@dataclass(frozen=True)
class Opaque(PlainData):
    """An argument that no dump can hold; only its type is known."""

    type: str


def encode(value: Any, tensor: Callable[[Any], Any], depth: int = 0) -> Any:
    """Nested arguments; ``tensor`` says how what has elements is referred to, or None for what has none."""
    if depth > _DEEPEST:
        raise ArgumentError(f"arguments: containers are nested more than {_DEEPEST} deep")
    if isinstance(value, _PLAIN) and type(value) in _PLAIN:
        return value
    if type(value) is int:
        return value if abs(value) <= strict.LARGEST else {"int": str(value)}
    if type(value) is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if type(value) is complex:
        return {"complex": [str(value.real), str(value.imag)]}
    if type(value) in (tuple, list):
        return {type(value).__name__: [encode(item, tensor, depth + 1) for item in value]}
    if type(value) is dict:
        pairs = ((encode(k, tensor, depth + 1), encode(v, tensor, depth + 1)) for k, v in value.items())
        return {"dict": [[key, item] for key, item in pairs]}
    reference = tensor(value)
    if reference is not None:
        return {"tensor": reference}
    return {"opaque": f"{type(value).__module__}.{type(value).__qualname__}"}


def decode(value: Any, tensor: Callable[[Any], Any], depth: int = 0) -> Any:
    """The arguments again; ``tensor`` makes values of references."""
    if depth > _DEEPEST + 1:
        raise Malformed("arguments are nested too deep")
    if value is None or type(value) in (bool, int, float, str):
        return value
    table = strict.table(value, "an argument")
    if len(table) != 1:
        raise Malformed("an argument has not one member")
    ((kind, content),) = table.items()
    if kind == "tensor":
        return tensor(content)
    if kind == "opaque":
        return Opaque(strict.text(content, "opaque"))
    if kind in ("tuple", "list"):
        items = [decode(item, tensor, depth + 1) for item in strict.array(content, kind)]
        return tuple(items) if kind == "tuple" else items
    if kind == "dict":
        return _dict(strict.array(content, "dict"), tensor, depth)
    return _number(kind, content)


def _dict(pairs: list[Any], tensor: Callable[[Any], Any], depth: int) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for pair in pairs:
        key, item = (decode(part, tensor, depth + 1) for part in strict.array(pair, "dict", 2))
        try:
            known = key in found
        except TypeError:
            raise Malformed(f"{type(key).__name__} cannot be a key") from None
        if known:
            raise Malformed("a key appears twice")
        found[key] = item
    return found


def _number(kind: str, content: Any) -> Any:
    try:
        if kind == "int":
            return int(strict.text(content, kind))
        if kind == "float":
            return float(strict.text(content, kind))
        if kind == "complex":
            real, imaginary = (float(strict.text(part, kind)) for part in strict.array(content, kind, 2))
            return complex(real, imaginary)
    except ValueError:
        raise Malformed(f"{kind} {content!r} is no number") from None
    raise Malformed(f"an argument of kind {kind[:60]!r} is unknown")
