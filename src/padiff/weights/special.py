"""Functions of the user's own that fill a layer of raw from a layer of base."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from padiff.errors import ArgumentError
from padiff.frameworks.registry import known_frameworks

_functions: dict[tuple[str, str, str, str], Callable[[Any, Any], Any]] = {}
"""The documented call registers for the whole process; there is nothing to hand it to."""


def add_special_init(
    base_framework: str,
    base_class_name: str,
    raw_framework: str,
    raw_class_name: str,
    func: Callable[[Any, Any], Any],
) -> None:
    """Have ``func(base_layer, raw_layer)`` fill every pair of such layers; it wins over the built-in tables."""
    names = {
        "base_framework": base_framework,
        "base_class_name": base_class_name,
        "raw_framework": raw_framework,
        "raw_class_name": raw_class_name,
    }
    for argument, value in names.items():
        example = "torch" if argument.endswith("framework") else "MultiheadAttention"
        if not isinstance(value, str) or not value:
            raise ArgumentError(f"{argument} is {value!r}, expected a name such as {example!r}")
    for argument, value in (("base_framework", base_framework), ("raw_framework", raw_framework)):
        if value not in known_frameworks():
            raise ArgumentError(f"{argument} is {value!r}, expected {' or '.join(map(repr, known_frameworks()))}")
    if not callable(func):
        raise ArgumentError(f"func is a {type(func).__name__}, expected a function of (base_layer, raw_layer)")
    _functions[(base_framework, base_class_name, raw_framework, raw_class_name)] = func


def find_special_init(
    base_framework: str, base_class: str, raw_framework: str, raw_class: str
) -> Callable[[Any, Any], Any] | None:
    return _functions.get((base_framework, base_class, raw_framework, raw_class))


def special_kinds(base_framework: str, raw_framework: str) -> frozenset[tuple[str, str]]:
    """Classes of base and raw that a function of the user's says belong together."""
    return frozenset(
        (base_class, raw_class)
        for one, base_class, other, raw_class in _functions
        if (one, other) == (base_framework, raw_framework)
    )


def special_classes(framework: str, base: bool) -> frozenset[str]:
    """Classes of a framework that a function of the user's fills others from, or fills."""
    sides = [key[:2] if base else key[2:] for key in _functions]
    return frozenset(name for owner, name in sides if owner == framework)
