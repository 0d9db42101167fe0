"""A model at rest as a plain record, and the modules and tensors behind it."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from padiff.frameworks.environment import environment_of
from padiff.frameworks.layers import LayerSpec
from padiff.frameworks.lookup import class_of, layer_spec
from padiff.frameworks.protocol import Adapter
from padiff.frameworks.settings import settings_of
from padiff.records import ModuleNode, ModuleTree, TensorSpec


@dataclass(frozen=True)
class LiveTree:
    """The record, and by node index the module it describes."""

    adapter: Adapter
    model: Any
    tree: ModuleTree
    modules: tuple[Any, ...]
    _known: dict[str, dict[str, Any]] = field(default_factory=dict, compare=False, repr=False)

    def node_of(self) -> dict[int, int]:
        """Identity of a module to the node of its first path."""
        found: dict[int, int] = {}
        for index, module in enumerate(self.modules):
            found.setdefault(id(module), index)
        return found

    def layer_spec(self, index: int) -> LayerSpec | None:
        return layer_spec(self.adapter, class_of(self.adapter, self.modules[index]))

    def parameters(self) -> dict[str, Any]:
        """Every parameter under its first path."""
        return self._read("parameters", self.adapter.own_parameters)

    def buffers(self) -> dict[str, Any]:
        """Every buffer under its first path."""
        return self._read("buffers", self.adapter.own_buffers)

    def tensors(self) -> dict[str, Any]:
        """Every parameter and buffer under each of its paths."""
        if "tensors" not in self._known:
            found: dict[str, Any] = {}
            for node, module in zip(self.tree.nodes, self.modules, strict=True):
                for name, tensor in (*self.adapter.own_parameters(module), *self.adapter.own_buffers(module)):
                    found[join(node.path, name)] = tensor
            self._known["tensors"] = found
        return self._known["tensors"]

    def forget(self) -> None:
        """Read the tensors anew next time: somebody may have put others in their place."""
        self._known.clear()

    def _read(self, what: str, own: Callable[[Any], list[tuple[str, Any]]]) -> dict[str, Any]:
        if what not in self._known:
            seen: set[int] = set()
            found: dict[str, Any] = {}
            for node, module in zip(self.tree.nodes, self.modules, strict=True):
                for name, tensor in own(module):
                    if id(tensor) not in seen:
                        seen.add(id(tensor))
                        found[join(node.path, name)] = tensor
            self._known[what] = found
        return self._known[what]


def join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def main_dtype(live: LiveTree) -> str | None:
    """The floating dtype that most numbers of a model's parameters have; None where it has none."""
    sizes: Counter[str] = Counter()
    for parameter in live.parameters().values():
        dtype = live.adapter.dtype(parameter)
        if dtype.startswith(("float", "bfloat")):
            sizes[dtype] += math.prod(live.adapter.shape(parameter))
    return max(sizes, key=lambda dtype: sizes[dtype]) if sizes else None


def module_tree(adapter: Adapter, model: Any, name: str | None = None) -> LiveTree:
    """Read the modules of ``model`` in definition order; one under two paths appears under both."""
    found: list[tuple[ModuleNode, Any]] = []
    unpacked = getattr(adapter, "model_of", None)
    model = model if unpacked is None else unpacked(model)
    _visit(adapter, model, "", -1, frozenset(), found)
    tree = ModuleTree(
        adapter.name,
        name or class_of(adapter, model).__name__,
        tuple(node for node, _ in found),
        environment_of(adapter, model),
    )
    return LiveTree(adapter, model, tree, tuple(module for _, module in found))


def _visit(
    adapter: Adapter,
    module: Any,
    path: str,
    parent: int,
    above: frozenset[int],
    found: list[tuple[ModuleNode, Any]],
) -> int:
    """Add a module and all below it; returns its number. A function within a function that calls itself would be a
    cycle, and keep the model alive until Python's collector comes by."""
    index = len(found)
    node = _node(adapter, module, index, path, parent)
    found.append((node, module))
    children = tuple(
        _visit(adapter, child, join(path, child_name), index, above | {id(module)}, found)
        for child_name, child in adapter.children(module)
        if id(child) not in above and child is not module
    )
    object.__setattr__(node, "children", children)
    return index


def _node(adapter: Adapter, module: Any, index: int, path: str, parent: int) -> ModuleNode:
    cls = class_of(adapter, module)
    spec = layer_spec(adapter, cls)
    return ModuleNode(
        index=index,
        path=path,
        kind=cls.__name__,
        layer=spec.layer if spec else None,
        parent=parent,
        children=(),
        parameters=tuple(_specs(adapter, adapter.own_parameters(module))),
        buffers=tuple(_buffer_specs(adapter, module, spec)),
        identity=id(module),
        text=functools.partial(adapter.describe, module),
        atomic=spec.atomic if spec else False,
        settings=functools.partial(settings_of, adapter, module),
    )


def _buffer_specs(adapter: Adapter, module: Any, spec: LayerSpec | None) -> list[TensorSpec]:
    """Buffers; what no table knows as state, and is either left out of saved states or holds no floats, is computed."""
    known = spec.stored if spec is not None else {}
    found: list[TensorSpec] = []
    for one in _specs(adapter, adapter.own_buffers(module)):
        constant = not one.dtype.startswith(("float", "bfloat", "complex"))
        computed = one.name not in known and (constant or adapter.is_computed(module, one.name))
        found.append(replace(one, computed=computed))
    return found


def _specs(adapter: Adapter, named: list[tuple[str, Any]]) -> list[TensorSpec]:
    return [TensorSpec(name, adapter.shape(t), adapter.dtype(t), id(t)) for name, t in named]
