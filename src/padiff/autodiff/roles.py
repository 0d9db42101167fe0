"""Which of two models is base, in the documented door."""

from __future__ import annotations

from typing import Any

from padiff.frameworks import adapter_of_model, module_tree
from padiff.frameworks.tree import LiveTree


def live_model(model: Any, argument: str) -> LiveTree:
    return module_tree(adapter_of_model(model, argument), model)


def first_is_base(first: LiveTree, second: LiveTree) -> bool:
    """The first, except in the first generation's order: a paddle layer, then the torch module it is a port of."""
    return not (first.adapter.name == "paddle" and second.adapter.name == "torch")


def by_position(first: Any, second: Any) -> tuple[LiveTree, LiveTree]:
    """Two models given by position as (base, raw)."""
    one, two = live_model(first, "the first model"), live_model(second, "the second model")
    return (one, two) if first_is_base(one, two) else (two, one)
