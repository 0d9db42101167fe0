"""Which adapter speaks for an object. Nothing is imported that the object's own class has not imported already."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from padiff.errors import UnknownFrameworkError
from padiff.frameworks.protocol import Adapter

GROUP = "padiff.frameworks"
BUILT_IN = {
    "torch": "padiff.frameworks.torch:TorchAdapter",
    "paddle": "padiff.frameworks.paddle:PaddleAdapter",
}


def known_frameworks() -> tuple[str, ...]:
    """Names of the frameworks that have an adapter, installed or not."""
    return tuple(sorted({*BUILT_IN, *_entry_points()}))


def adapter_named(name: str) -> Adapter:
    """The adapter of the framework with that package name."""
    if name not in BUILT_IN and name not in _entry_points():
        raise UnknownFrameworkError(
            f"framework {name!r} is not known; known are {', '.join(known_frameworks())}",
            f"another framework can be added through the entry point group {GROUP!r}",
        )
    try:
        return _load(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != name:
            raise
        raise UnknownFrameworkError(f"{name} is not installed", f"pip install 'padiff[{name}]'") from error


def adapter_of_model(model: Any, argument: str) -> Adapter:
    """The adapter whose framework ``model`` belongs to; ``argument`` is how the caller names it."""
    adapter = _adapter_of(model)
    if adapter is None or not adapter.is_model(model):
        known = " or ".join(f"a {name} model" for name in known_frameworks())
        raise UnknownFrameworkError(
            f"{argument} is of type {_qualified(type(model))}, no model of a known framework; expected {known}",
            "pass the model object itself (torch.nn.Module, paddle.nn.Layer), not a class, a function or a state dict",
        )
    return adapter


def adapter_of_tensor(value: Any) -> Adapter | None:
    """The adapter whose framework the tensor ``value`` belongs to; None for anything else."""
    adapter = _adapter_of(value)
    return adapter if adapter is not None and adapter.is_tensor(value) else None


def adapter_of_optimizer(value: Any) -> Adapter | None:
    """The adapter whose framework the optimizer ``value`` belongs to; None for anything else."""
    adapter = _adapter_of(value)
    return adapter if adapter is not None and adapter.is_optimizer(value) else None


def _adapter_of(thing: Any) -> Adapter | None:
    return _adapter_of_class(type(thing))


def _look_up(cls: type) -> Adapter | None:
    names = dict.fromkeys(base.__module__.partition(".")[0] for base in cls.__mro__)
    for name in names:
        if name in BUILT_IN or (name not in _NEVER and name in _entry_points()):
            return adapter_named(name)
    return None


_adapter_of_class: Callable[[Any], Adapter | None] = functools.lru_cache(maxsize=4096)(_look_up)
_NEVER = frozenset({"builtins", "numpy", "collections", "abc", "typing"})


@functools.cache
def _load(name: str) -> Adapter:
    target = BUILT_IN.get(name) or _entry_points()[name]
    module, _, attribute = target.partition(":")
    adapter: Adapter = getattr(importlib.import_module(module), attribute)()
    return adapter


@functools.cache
def _entry_points() -> dict[str, str]:
    import importlib.metadata  # 18 ms that most imports of padiff don't need

    return {entry.name: entry.value for entry in importlib.metadata.entry_points(group=GROUP)}


def _qualified(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
