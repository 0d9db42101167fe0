"""Nested containers of tensors: finding the tensors with their places, and rebuilding with other tensors."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import optree


def flatten(tree: Any, is_tensor: Callable[[Any], bool]) -> list[tuple[str, Any]]:
    """Tensors inside ``tree`` with their places joined by dots; a lone tensor has the place ""."""
    if is_tensor(tree):
        return [("", tree)]
    found: list[tuple[str, Any]] = []
    _collect(tree, "", is_tensor, found)
    return found


def _collect(tree: Any, prefix: str, is_tensor: Callable[[Any], bool], found: list[tuple[str, Any]]) -> None:
    named = _named_fields(tree)
    if named is not None:
        for name, value in named:
            _visit(value, f"{prefix}{name}", is_tensor, found)
        return
    paths, leaves, _ = optree.tree_flatten_with_path(tree, is_leaf=lambda x: _named_fields(x) is not None)
    for path, leaf in zip(paths, leaves, strict=True):
        if path:
            _visit(leaf, prefix + ".".join(map(str, path)), is_tensor, found)


def _visit(value: Any, place: str, is_tensor: Callable[[Any], bool], found: list[tuple[str, Any]]) -> None:
    if is_tensor(value):
        found.append((place, value))
    elif value is not None:
        _collect(value, place + ".", is_tensor, found)


def _named_fields(value: Any) -> list[tuple[str, Any]] | None:
    """Names and values of containers whose places have names: any mapping, dataclass instances, namedtuples.

    optree sorts the keys of plain dicts and takes unregistered classes (transformers' ModelOutput, a user's
    dataclass) for leaves, so these are read here, in their own order and without registering anything.
    """
    if isinstance(value, Mapping):
        return [(str(key), item) for key, item in value.items()]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value) if hasattr(value, f.name)]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    return None


def once_each(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same change, made once for each thing: one tensor that is passed under two names stays one."""
    made: dict[int, tuple[Any, Any]] = {}

    def changed(leaf: Any) -> Any:
        if id(leaf) not in made:
            made[id(leaf)] = leaf, change(leaf)
        return made[id(leaf)][1]

    return changed


def map_leaves(tree: Any, change: Callable[[Any], Any]) -> Any:
    """``tree`` rebuilt with ``change`` applied to everything that is no container."""
    if isinstance(tree, dict) and type(tree) is not dict:
        twin = copy.copy(tree)  # their own ``copy`` may not know what their constructors ask for
        for key, value in tree.items():
            twin[key] = map_leaves(value, change)
        return twin
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        values = {f.name: map_leaves(getattr(tree, f.name), change) for f in dataclasses.fields(tree) if f.init}
        return dataclasses.replace(tree, **values)

    def one(leaf: Any) -> Any:
        odd = (isinstance(leaf, dict) or dataclasses.is_dataclass(leaf)) and not isinstance(leaf, type)
        return map_leaves(leaf, change) if odd and leaf is not tree else change(leaf)

    return optree.tree_map(one, tree, none_is_leaf=True)
