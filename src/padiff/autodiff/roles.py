"""Which of two models is base, in the documented door."""

from __future__ import annotations

from typing import Any

from padiff.autodiff.proxy import ProxyModel, live_proxy
from padiff.errors import ArgumentError
from padiff.frameworks import adapter_of_model, module_tree
from padiff.frameworks.tree import LiveTree

PLACES = ("#1", "#2")
"""Names under which the models given by position wait to be read."""
KEYWORDS = (("base_model", "raw_model"), ("layer", "module"))
"""Both generations' names of the first and the second model. In the first generation the module is base."""


def live_model(model: Any, argument: str) -> LiveTree:
    """The modules of a model, or of the one that a proxy stands for."""
    if isinstance(model, ProxyModel):
        return live_proxy(model)
    return module_tree(adapter_of_model(model, argument), model)


def first_is_base(first: LiveTree, second: LiveTree) -> bool:
    """The first, except in the first generation's order: a paddle layer, then the torch module it is a port of."""
    return not (first.adapter.name == "paddle" and second.adapter.name == "torch")


def by_position(first: Any, second: Any) -> tuple[LiveTree, LiveTree]:
    """Two models given by position as (base, raw)."""
    one, two = live_model(first, "the first model"), live_model(second, "the second model")
    return (one, two) if first_is_base(one, two) else (two, one)


def take_models(given: dict[str, Any], call: str) -> tuple[LiveTree, LiveTree, bool]:
    """Take both models out of the arguments, in the order given, and say whether the first of them is base.

    Keywords say it outright; a model given by position beside one keyword is the other of the two.
    """
    named = [pair for pair in KEYWORDS if any(name in given for name in pair)]
    if len(named) > 1:
        first, second = (next(name for name in pair if name in given) for pair in named)
        raise ArgumentError(f"{call} is given both {first}= and {second}=", "name the models base_model and raw_model")
    by_place = [given.pop(place) for place in PLACES if place in given]
    if not named:
        one, two = _both(("the first model", "the second model"), by_place, call)
        first_live, second_live = live_model(one, "the first model"), live_model(two, "the second model")
        return first_live, second_live, first_is_base(first_live, second_live)
    names = named[0]
    found = [given.pop(name) if name in given else (by_place.pop(0) if by_place else None) for name in names]
    if by_place:
        raise ArgumentError(f"{call} is given {len(by_place) + 2} models, expected two: {names[0]} and {names[1]}")
    one, two = _both(names, found, call)
    return live_model(one, names[0]), live_model(two, names[1]), names == KEYWORDS[0]


def _both(names: tuple[str, str], models: list[Any], call: str) -> tuple[Any, Any]:
    for place, name in enumerate(names):
        if len(models) <= place or models[place] is None:
            hint = f"write it as {call}(base_model, raw_model, ...)"
            raise ArgumentError(f"{call}: {name} is missing, expected two models", hint)
    return models[0], models[1]
