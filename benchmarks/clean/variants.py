"""States that models are met in: other weights, other sizes of numbers, dtypes, modes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.localise.either import array, is_floating, is_torch, is_trained, modules_of, own_tensors, write

Models = tuple[Any, Any, Any]
Change = Callable[[Models, np.random.Generator], Models]


@dataclass(frozen=True)
class Variant:
    """One state; both sides are in it."""

    name: str
    change: Change


def _parameters(model: Any) -> list[tuple[str, Any]]:
    found: dict[int, tuple[str, Any]] = {}
    for path, module in modules_of(model).items():
        for name, tensor in own_tensors(module).items():
            if is_trained(tensor) and is_floating(tensor):
                found.setdefault(id(tensor), (f"{path}.{name}", tensor))
    return list(found.values())


def other_weights(models: Models, generator: np.random.Generator) -> Models:
    """Base's parameters wobble by a third; what is positive stays so."""
    for _, tensor in _parameters(models[0]):
        write(tensor, array(tensor) * np.exp(0.3 * generator.standard_normal(tuple(tensor.shape))))
    return models


def other_inputs(models: Models, generator: np.random.Generator, rows: int | None = None) -> Models:
    """New numbers, as many rows as wanted."""
    base, raw, inputs = models
    return base, raw, _each(inputs, lambda name, values: _drawn(name, values, generator, rows))


def _each(inputs: Any, change: Callable[[str, np.ndarray], np.ndarray]) -> Any:
    if isinstance(inputs, tuple):
        one = _each(inputs[0], change)
        # Both sides have the same numbers under names of their own.
        return one, dict(zip(inputs[1], one.values(), strict=True))
    if isinstance(inputs, Mapping):
        return {name: change(name, values) for name, values in inputs.items()}
    return change("", inputs)


def _drawn(name: str, values: np.ndarray, generator: np.random.Generator, rows: int | None) -> np.ndarray:
    count = rows or values.shape[0]
    tiled = np.concatenate([values] * (count // values.shape[0] + 1))[:count]
    if any(word in name for word in ("position", "mask", "kept")):
        return tiled
    if values.dtype.kind == "f":
        return (generator.standard_normal(tiled.shape) * values.std() + values.mean()).astype(values.dtype)
    return generator.choice(values.ravel(), tiled.shape)


# ------------------------------------------------------------------ sizes of numbers


def heavy_tails(models: Models, generator: np.random.Generator) -> Models:
    """As after training: some channels ten times the others, weights with far outliers."""
    for _, tensor in _parameters(models[0]):
        values = array(tensor)
        if values.ndim >= 2:
            values = values * generator.standard_t(3, values.shape).clip(-20, 20) * 0.6
        else:
            values = values * np.where(generator.random(values.shape) < 0.05, 10.0, 1.0)
        write(tensor, values)
    return models


def large_activations(models: Models, generator: np.random.Generator) -> Models:
    """A thousand times larger from the start: the input, or what the first table of words returns."""
    base, raw, inputs = models
    if not isinstance(inputs, (tuple, Mapping)) and inputs.dtype.kind == "f":
        return base, raw, (inputs * 1000).astype(inputs.dtype)
    first = next(tensor for _, tensor in _parameters(base) if tensor.ndim >= 2)
    write(first, array(first) * 1000)
    return models


def small_weights(models: Models, generator: np.random.Generator) -> Models:
    """Matrices at a hundredth: everything fades."""
    for _, tensor in _parameters(models[0]):
        if tensor.ndim >= 2:
            write(tensor, array(tensor) * 0.01)
    return models


def large_weights(models: Models, generator: np.random.Generator) -> Models:
    """Matrices three times as large: attention sharpens, errors grow."""
    for _, tensor in _parameters(models[0]):
        if tensor.ndim >= 2:
            write(tensor, array(tensor) * 3)
    return models


# ------------------------------------------------------------------ modes and dtypes


CHANCES = ("p", "drop_prob", "drop_rate", "dropout", "attention_dropout", "attn_dropout", "activation_dropout")
"""Attributes that hold the chance of a dropout, in a module for it or in one that drops by a function."""


def training(models: Models, generator: np.random.Generator) -> Models:
    """In training, with nothing left to chance."""
    for model in models[:2]:
        model.train()
        for module in modules_of(model).values():
            drops = "drop" in type(module).__name__.lower() or type(module).__name__ == "StochasticDepth"
            for name in CHANCES if drops else CHANCES[1:]:
                if isinstance(vars(module).get(name), float):
                    vars(module)[name] = 0.0
    return models


def in_dtype(dtype: str) -> Change:
    def change(models: Models, generator: np.random.Generator) -> Models:
        import torch

        base, raw, inputs = models
        cast = []
        for model in (base, raw):
            cast.append(model.to(getattr(torch, dtype)) if is_torch(model) else model.to(dtype=dtype) or model)
        return cast[0], cast[1], _each(inputs, lambda name, values: _as(values, dtype))

    return change


def raw_in_dtype(dtype: str) -> Change:
    """Raw alone, as somebody has it who changes precision."""

    def change(models: Models, generator: np.random.Generator) -> Models:
        import torch

        import padiff

        base, raw, inputs = models
        narrow = raw.to(getattr(torch, dtype)) if is_torch(raw) else raw.to(dtype=dtype) or raw
        own, others = inputs if isinstance(inputs, tuple) else (inputs, inputs)
        cast = _each(others, lambda name, values: _as(values, dtype))
        if not isinstance(own, Mapping):
            own, cast = padiff.Inputs(own), padiff.Inputs(cast)
        return base, narrow, (own, cast)

    return change


def _as(values: np.ndarray, dtype: str) -> np.ndarray:
    if values.dtype.kind != "f":
        return values
    if dtype == "bfloat16":
        import ml_dtypes

        return values.astype(ml_dtypes.bfloat16)
    return values.astype(dtype)


def rows(count: int) -> Change:
    return lambda models, generator: other_inputs(models, generator, count)


VARIANTS: tuple[Variant, ...] = (
    Variant("as built", lambda models, generator: models),
    Variant("other weights", other_weights),
    Variant("heavy tails", heavy_tails),
    Variant("activations x 1000", large_activations),
    Variant("weights x 0.01", small_weights),
    Variant("weights x 3", large_weights),
    Variant("in training", training),
    Variant("one row", rows(1)),
    Variant("seven rows", rows(7)),
    Variant("float64", in_dtype("float64")),
    Variant("bfloat16", in_dtype("bfloat16")),
    Variant("float16", in_dtype("float16")),
    Variant("raw in bfloat16", raw_in_dtype("bfloat16")),
    Variant("raw in float16", raw_in_dtype("float16")),
)
