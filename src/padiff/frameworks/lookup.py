"""Which row of a framework's layer table speaks for a class."""

from __future__ import annotations

import functools
from collections.abc import Callable
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
