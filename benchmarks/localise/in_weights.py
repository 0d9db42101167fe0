"""Mistakes in what a module holds: weights, biases, running statistics."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.localise import plant
from benchmarks.localise.bug import FAINT, Bug, Kind
from benchmarks.localise.either import array, is_torch, is_trained, own_tensors
from benchmarks.localise.stage import Stage

Edit = Callable[[np.ndarray, int, np.random.Generator], np.ndarray]
"""Values, the axis of what is made, a generator."""


def off(values: np.ndarray, axis: int, generator: np.random.Generator) -> np.ndarray:
    return values * (1 + 1e-3 * generator.standard_normal(values.shape))


def row_wrong(values: np.ndarray, axis: int, generator: np.random.Generator) -> np.ndarray:
    found = np.moveaxis(values.copy(), axis, 0)
    place = int(generator.integers(len(found)))
    found[place] = generator.standard_normal(found[place].shape) * found.std()
    return np.moveaxis(found, 0, axis)


def rows_swapped(values: np.ndarray, axis: int, generator: np.random.Generator) -> np.ndarray:
    found = np.moveaxis(values.copy(), axis, 0)
    one, other = generator.choice(len(found), 2, replace=False)
    found[[one, other]] = found[[other, one]]
    return np.moveaxis(found, 0, axis)


def transposed(values: np.ndarray, axis: int, generator: np.random.Generator) -> np.ndarray:
    return values.T


def thirds_swapped(values: np.ndarray, axis: int, generator: np.random.Generator) -> np.ndarray:
    one, two, three = np.split(values, 3, axis)
    return np.concatenate([two, one, three], axis)


def scaled(values: np.ndarray, axis: int, generator: np.random.Generator) -> np.ndarray:
    return values * 1.3


def missing(values: np.ndarray, axis: int, generator: np.random.Generator) -> np.ndarray:
    return np.zeros_like(values)


def one_wrong(values: np.ndarray, axis: int, generator: np.random.Generator) -> np.ndarray:
    found = values.copy()
    found.flat[int(generator.integers(found.size))] += 0.5 + np.abs(found).mean()
    return found


def _matrices(module: Any, name: str, tensor: Any) -> bool:
    return is_trained(tensor) and tensor.ndim >= 2 and tensor.shape[_made(module, tensor)] > 1


def _squares(module: Any, name: str, tensor: Any) -> bool:
    return is_trained(tensor) and tensor.ndim == 2 and tensor.shape[0] == tensor.shape[1]


def _threefold(module: Any, name: str, tensor: Any) -> bool:
    return _matrices(module, name, tensor) and tensor.shape[_made(module, tensor)] % 3 == 0


def _biases(module: Any, name: str, tensor: Any) -> bool:
    return is_trained(tensor) and tensor.ndim == 1 and "bias" in name


def _variances(module: Any, name: str, tensor: Any) -> bool:
    return name in ("running_var", "_variance") and not module.training


def _kind(
    name: str, wanted: Callable[[Any, str, Any], bool], edit: Edit, causes: tuple[str, ...] = (), last: str = ""
) -> Kind:
    def places(stage: Stage) -> Iterator[Bug]:
        calls = stage.first_calls()
        for place, call in enumerate(calls):
            module = stage.modules[call.path]
            if last and not any(word in call.path.rpartition(".")[2] for word in last.split()):
                continue
            for key, tensor in own_tensors(module).items():
                if not wanted(module, key, tensor):
                    continue
                owners = stage.owners(tensor)
                yield Bug(
                    kind=name,
                    place=call.path,
                    expected=tuple(dict.fromkeys(path for owner in owners for path in stage.expected(owner))),
                    plant=_planting(tensor, edit, _made(module, tensor), f"{name} {call.path} {key}"),
                    causes=causes,
                    weights="keep",
                    floor=1e-4 if edit is off else FAINT * 100,
                    depth=place / len(calls),
                )

    return places


def _planting(tensor: Any, edit: Edit, axis: int, seed: str) -> Callable[[], Any]:
    def planted() -> Any:
        return plant.values(tensor, edit(array(tensor), axis, np.random.default_rng(zlib.crc32(seed.encode()))))

    return planted


def _made(module: Any, tensor: Any) -> int:
    """The axis along which a weight's outputs lie; of an embedding the one that every word has."""
    if tensor.ndim < 2:
        return 0
    kind = type(module).__name__.lower()
    if "embedding" in kind:
        return int(tensor.ndim) - 1
    own = own_tensors(module)
    bias = next((held for key, held in own.items() if "bias" in key and held.ndim == 1), None)
    if bias is not None:
        fitting = [axis for axis in (0, 1) if tensor.shape[axis] == bias.shape[0]]
        if len(fitting) == 1:
            return fitting[0]
    return 1 if not is_torch(module) and tensor.ndim == 2 else 0


FUSED = "qkv c_attn in_proj"
"""Words in the names of layers that make query, key and value at once."""

KINDS: tuple[Kind, ...] = (
    _kind("weight: off by 1e-3", _matrices, off),
    _kind("weight: one row wrong", _matrices, row_wrong),
    _kind("weight: two rows swapped", _matrices, rows_swapped),
    _kind("weight: transposed", _squares, transposed, ("transpos",)),
    _kind(
        "weight: parts of a fused one swapped",
        _threefold,
        thirds_swapped,
        ("order", "head", "qkv"),
        "qkv c_attn in_proj",
    ),
    _kind("bias: one value wrong", _biases, one_wrong),
    _kind("bias: missing", _biases, missing, ("bias",)),
    _kind("statistics: variance wrong", _variances, scaled),
)
