"""Tensors and modules of torch and of paddle, handled alike: what planting and watching need, and no more."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import paddle
import torch

Change = Callable[[Any], Any]


def is_tensor(thing: Any) -> bool:
    return isinstance(thing, (torch.Tensor, paddle.Tensor))


def is_torch(thing: Any) -> bool:
    return isinstance(thing, (torch.Tensor, torch.nn.Module))


def is_floating(tensor: Any) -> bool:
    return bool(tensor.is_floating_point())


def array(tensor: Any) -> np.ndarray:
    """The elements, in memory of their own; floats as float64."""
    found = tensor.detach()
    if is_floating(found):
        found = found.double() if is_torch(found) else found.astype("float64")
    return np.array(found.numpy())


def like(values: np.ndarray, tensor: Any) -> Any:
    """A tensor of the other's framework and dtype."""
    if is_torch(tensor):
        return torch.as_tensor(np.array(values)).to(tensor.dtype)
    return paddle.to_tensor(np.array(values)).astype(tensor.dtype)


def write(tensor: Any, values: np.ndarray) -> None:
    """Overwrite a parameter or buffer in place."""
    values = np.asarray(values).reshape(tuple(tensor.shape))
    if is_torch(tensor):
        with torch.no_grad():
            tensor.copy_(torch.as_tensor(np.array(values)))
    else:
        tensor.set_value(like(values, tensor))


def roll(tensor: Any, by: int, axis: int) -> Any:
    return torch.roll(tensor, by, axis) if is_torch(tensor) else paddle.roll(tensor, by, axis)


def where(condition: Any, one: Any, other: Any) -> Any:
    return torch.where(condition, one, other) if is_torch(condition) else paddle.where(condition, one, other)


def through(tensor: Any, dtype: str) -> Any:
    """Rounded to a narrower dtype and back."""
    if is_torch(tensor):
        return tensor.to(getattr(torch, dtype)).to(tensor.dtype)
    return tensor.astype(dtype).astype(tensor.dtype)


def scaled_gradient(tensor: Any, factor: float) -> Any:
    """The same values, whose gradient is scaled on its way back."""
    rest = tensor.detach()
    return rest + (tensor - rest) * factor


# ------------------------------------------------------------------ containers


def tensors_in(tree: Any) -> Iterator[Any]:
    """Every tensor of nested tuples, lists, dicts and dataclasses, in order."""
    if is_tensor(tree):
        yield tree
    elif isinstance(tree, Mapping):
        for value in tree.values():
            yield from tensors_in(value)
    elif isinstance(tree, (tuple, list)):
        for value in tree:
            yield from tensors_in(value)
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        for field in dataclasses.fields(tree):
            yield from tensors_in(getattr(tree, field.name))


def change_first(tree: Any, change: Change, wanted: Callable[[Any], bool] | None = None) -> tuple[Any, bool]:
    """The tree with its first floating tensor (of those wanted) changed, and whether there was one."""
    if is_tensor(tree):
        fits = wanted(tree) if wanted is not None else is_floating(tree) and tree.ndim > 0
        return (change(tree), True) if fits else (tree, False)
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            changed, done = change_first(value, change, wanted)
            if done:
                found = _copied(tree)
                found[key] = changed
                return found, True
    if isinstance(tree, (tuple, list)):
        for place, value in enumerate(tree):
            changed, done = change_first(value, change, wanted)
            if done:
                items = [*tree[:place], changed, *tree[place + 1 :]]
                if hasattr(tree, "_fields"):
                    return type(tree)(*items), True
                return type(tree)(items), True
    return tree, False


def _copied(tree: Any) -> Any:
    """A mapping of the same class; a library's own output class takes what it holds by keyword."""
    try:
        return type(tree)(**tree)
    except TypeError:
        return dict(tree)


# ------------------------------------------------------------------ modules


def modules_of(model: Any) -> dict[str, Any]:
    """Every module under its first path; the model itself is ""."""
    if is_torch(model):
        return dict(model.named_modules())
    return dict(model.named_sublayers(include_self=True))


def paths_of(model: Any) -> dict[int, tuple[str, ...]]:
    """Every path of each module, by identity: one module may stand in several places."""
    found: dict[int, list[str]] = {}

    def visit(module: Any, path: str, above: frozenset[int]) -> None:
        found.setdefault(id(module), []).append(path)
        for name, child in children_of(module).items():
            if child is not None and id(child) not in above:
                visit(child, f"{path}.{name}" if path else name, above | {id(child)})

    visit(model, "", frozenset({id(model)}))
    return {key: tuple(paths) for key, paths in found.items()}


def children_of(module: Any) -> dict[str, Any]:
    """The framework's own table of children: writing into it replaces a child."""
    return module._modules if is_torch(module) else module._sub_layers


def own_tensors(module: Any) -> dict[str, Any]:
    """Parameters and buffers of the module itself."""
    found = {name: tensor for name, tensor in module._parameters.items() if tensor is not None}
    found |= {name: tensor for name, tensor in module._buffers.items() if is_tensor(tensor)}
    if not is_torch(module):
        # Recurrent layers keep a dropout state without memory: there is nothing to read or write.
        found = {name: tensor for name, tensor in found.items() if tensor._is_initialized()}
    return found


def is_trained(tensor: Any) -> bool:
    return bool(tensor.requires_grad) if is_torch(tensor) else not tensor.stop_gradient


def state_of(model: Any) -> list[tuple[Any, np.ndarray]]:
    """Every tensor of a model with its present values."""
    found: dict[int, tuple[Any, np.ndarray]] = {}
    for module in modules_of(model).values():
        for tensor in own_tensors(module).values():
            found.setdefault(id(tensor), (tensor, np.array(_native(tensor))))
    return list(found.values())


def put_back(state: list[tuple[Any, np.ndarray]]) -> None:
    """Write what has changed since."""
    for tensor, values in state:
        if not np.array_equal(_native(tensor), values):
            write(tensor, values)


def _native(tensor: Any) -> np.ndarray:
    found = tensor.detach()
    if str(found.dtype).endswith("bfloat16"):
        found = found.float() if is_torch(found) else found.astype("float32")
    return np.asarray(found.numpy())
