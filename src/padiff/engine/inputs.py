"""What the models are called with: one set for both or one each, converted, never shared between two runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from padiff.capture.one_step import Arguments
from padiff.errors import ArgumentError
from padiff.frameworks import adapter_of_tensor
from padiff.frameworks.containers import map_leaves, once_each
from padiff.frameworks.tree import LiveTree, main_dtype

Fresh = Callable[[], tuple[Arguments, Arguments]]
"""Gives both models' arguments anew: a model may write into what it is given."""


class Inputs:
    """Positional and keyword arguments for a model: ``Inputs(x, mask=m)``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args
        self.kwargs = kwargs

    def __repr__(self) -> str:
        parts = [type(a).__name__ for a in self.args] + [f"{k}={type(v).__name__}" for k, v in self.kwargs.items()]
        return f"Inputs({', '.join(parts)})"


def one_or_two(inputs: Any, base: LiveTree, raw: LiveTree) -> tuple[Inputs, Inputs]:
    """The native door's forms: one set for both models, or a pair of sets."""
    if isinstance(inputs, (tuple, list)) and len(inputs) == 2 and _is_pair(inputs, base, raw):
        return _one_set(inputs[0]), _one_set(inputs[1])
    if isinstance(inputs, list):
        raise ArgumentError(
            f"inputs is a list of {len(inputs)}, expected one set of inputs (a tensor, a tuple of positional "
            "arguments, a dict of keyword arguments, padiff.Inputs) or a pair of sets",
            "for several positional arguments pass a tuple",
        )
    once = _one_set(inputs)
    return once, once


def pair_of_dicts(inputs: Any, first: LiveTree, second: LiveTree) -> tuple[Inputs, Inputs, bool]:
    """The documented door's form: two sets in the order of the models; True when they came the other way round."""
    if not isinstance(inputs, (tuple, list)) or len(inputs) != 2:
        what = f"a {type(inputs).__name__}" + (f" of {len(inputs)}" if isinstance(inputs, (tuple, list)) else "")
        raise ArgumentError(
            f"inputs is {what}, expected a pair: the first model's inputs and the second model's, each a dict",
            'write it as ({"x": input_of_the_first}, {"x": input_of_the_second})',
        )
    for place, value in enumerate(inputs):
        if not isinstance(value, (Mapping, Inputs, tuple, np.ndarray)) and adapter_of_tensor(value) is None:
            raise ArgumentError(
                f"inputs[{place}] is a {type(value).__name__}, expected a dict of forward's parameters to values",
                'write it as {"x": input}',
            )
    one, two = _one_set(inputs[0]), _one_set(inputs[1])
    swapped = (
        first.adapter.name != second.adapter.name
        and _only_from(one, second.adapter.name)
        and _only_from(two, first.adapter.name)
    )
    return (two, one, True) if swapped else (one, two, False)


def fresh_arguments(base: LiveTree, raw: LiveTree, base_inputs: Inputs, raw_inputs: Inputs) -> Fresh:
    """A function that converts and copies both sets each time it is called.

    One set for two models of different dtypes is in the one's: it is cast for the other."""
    dtypes = main_dtype(base), main_dtype(raw)
    casts: list[tuple[str, str] | None] = [None, None]
    if base_inputs is raw_inputs and None not in dtypes and dtypes[0] != dtypes[1]:
        casts = [(dtypes[1], dtypes[0]), (dtypes[0], dtypes[1])]  # type: ignore[list-item]

    def build() -> tuple[Arguments, Arguments]:
        return _native(base, base_inputs, casts[0]), _native(raw, raw_inputs, casts[1])

    return build


def _is_pair(inputs: Any, base: LiveTree, raw: LiveTree) -> bool:
    first, second = inputs
    for kind in (Mapping, Inputs):
        if isinstance(first, kind) and isinstance(second, kind):
            return True
    if type(first) is tuple and type(second) is tuple:
        return True
    one, two = adapter_of_tensor(first), adapter_of_tensor(second)
    return (
        one is not None
        and two is not None
        and base.adapter.name != raw.adapter.name
        and {one.name, two.name} == {base.adapter.name, raw.adapter.name}
    )


def _one_set(inputs: Any) -> Inputs:
    if isinstance(inputs, Inputs):
        return inputs
    if isinstance(inputs, Mapping):
        bad = [key for key in inputs if not isinstance(key, str)]
        if bad:
            raise ArgumentError(
                f"inputs: the key {bad[0]!r} is no string, expected the name of one of forward's parameters"
            )
        return Inputs(**inputs)
    if isinstance(inputs, tuple):
        return Inputs(*inputs)
    return Inputs(inputs)


def _native(live: LiveTree, inputs: Inputs, cast: tuple[str, str] | None = None) -> Arguments:
    """Converted for a model; ``cast`` says which dtype is to become which."""

    @once_each
    def convert(leaf: Any) -> Any:
        tensor = unchanged(leaf)
        if cast is None or not live.adapter.is_tensor(tensor) or live.adapter.dtype(tensor) != cast[0]:
            return tensor
        array = live.adapter.to_numpy(tensor).astype(getattr(ml_dtypes, cast[1], None) or np.dtype(cast[1]))
        return live.adapter.to_native(array, like=live.model, requires_grad=live.adapter.requires_grad(tensor))

    def unchanged(leaf: Any) -> Any:
        source = adapter_of_tensor(leaf)
        if source is None:
            return live.adapter.to_native(leaf, like=live.model) if isinstance(leaf, np.ndarray) else leaf
        flows = source.requires_grad(leaf)
        value = leaf
        if source.name != live.adapter.name:
            value = source.clone(leaf)
            if not hasattr(value, "__dlpack__"):
                value = source.to_numpy(value)
        return live.adapter.to_native(value, like=live.model, requires_grad=flows)

    return Arguments(
        tuple(map_leaves(value, convert) for value in inputs.args),
        {name: map_leaves(value, convert) for name, value in inputs.kwargs.items()},
    )


def _only_from(inputs: Inputs, framework: str) -> bool:
    """All tensors in the set, and at least one, belong to that framework."""
    names: set[str] = set()

    def look(leaf: Any) -> Any:
        adapter = adapter_of_tensor(leaf)
        if adapter is not None:
            names.add(adapter.name)
        return leaf

    map_leaves((inputs.args, dict(inputs.kwargs)), look)
    return names == {framework}
