"""Which row of a framework's layer table speaks for a class."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

from padiff.frameworks.layers import LayerSpec
from padiff.frameworks.protocol import Adapter


def _layer_spec(adapter: Adapter, cls: type) -> LayerSpec | None:
    table = adapter.layer_table()
    for base in cls.__mro__:
        found = table.get(f"{base.__module__}.{base.__qualname__}")
        if found is not None:
            return found
    return None


layer_spec: Callable[[Any, Any], LayerSpec | None] = functools.lru_cache(maxsize=4096)(_layer_spec)
"""The row of the framework's layer table for a class or the nearest of its bases."""


def spec_of(adapter: Adapter, module: Any) -> LayerSpec | None:
    """The row that speaks for a module; none where something else stands in the place of one of its parts."""
    spec = layer_spec(adapter, class_of(adapter, module))
    return None if spec is not None and spec.atomic and _exchanged(adapter, module, spec) else spec


def _exchanged(adapter: Adapter, module: Any, spec: LayerSpec) -> bool:
    """Whether a child that the row knows by its tensors holds others, and none of these: an adapter's wrapper around
    the projection of an attention."""
    named = {name.partition(".")[0] for name in spec.stored if "." in name and "*" not in name}
    for name, child in adapter.children(module):
        held = set(_parameters_inside(adapter, child, name)) if name in named else set()
        if held and held.isdisjoint(spec.stored):
            return True
    return False


def _parameters_inside(adapter: Adapter, module: Any, path: str) -> Iterator[str]:
    for name, _ in adapter.own_parameters(module):
        yield f"{path}.{name}"
    for name, child in adapter.children(module):
        yield from _parameters_inside(adapter, child, f"{path}.{name}")


def class_of(adapter: Adapter, module: Any) -> type:
    """The class that a module was written as; a compiler may have put another in its place."""
    ask = getattr(adapter, "written_as", None)
    found: type | None = ask(module) if ask is not None else None
    return found or type(module)


def has_code(adapter: Adapter, module: Any) -> bool:
    """Whether a module's forward is not the framework's own: its class is the user's, or somebody has given a layer of
    the framework's another forward. What a compiler made has none where its lines are lost."""
    ask = getattr(adapter, "keeps_lines", None)
    if ask is not None and not ask(module):
        return False
    if class_of(adapter, module).__module__.partition(".")[0] != adapter.name:
        return True
    return own_forward(adapter, module)


def own_forward(adapter: Adapter, module: Any) -> bool:
    """Whether the forward that a module has was not written by the framework."""
    forward = getattr(module, "forward", None)
    home = getattr(getattr(forward, "__func__", forward), "__module__", None)
    return home is not None and home.partition(".")[0] not in (adapter.name, "padiff", "functools")


def codes_of(module: Any) -> Iterator[CodeType]:
    """The code of a module's forward, as far as it can be read: its own, and that of decorators around it."""
    function = getattr(module, "forward", None)
    while function is not None:
        code = getattr(function, "__code__", None)
        if isinstance(code, CodeType):
            yield code
        function = getattr(function, "__wrapped__", None)


@functools.lru_cache(maxsize=4096)
def class_named(name: str, base: type) -> type:
    """The class of that qualified name where it has been imported; else one that shares nothing with it but the name.

    ``base`` is what all modules of the framework derive from."""
    owner, _, last = name.rpartition(".")
    words = name.split(".")
    for cut in range(len(words) - 1, 0, -1):
        found: Any = sys.modules.get(".".join(words[:cut]))
        if found is not None:
            for word in words[cut:]:
                found = getattr(found, word, None)
            if isinstance(found, type):
                return found
            break
    return type(last or "Module", (base,), {"__module__": owner or "__main__"})
