"""A model at rest as a plain record, and the modules and tensors behind it."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from padiff.frameworks.environment import environment_of
from padiff.frameworks.layers import LayerSpec
from padiff.frameworks.lookup import class_of, own_forward, spec_of
from padiff.frameworks.protocol import Adapter
from padiff.frameworks.settings import settings_of
from padiff.records import ModuleNode, ModuleTree, TensorSpec

T = TypeVar("T")


@dataclass(frozen=True)
class LiveTree:
    """The record, and by node index the module it describes."""

    adapter: Adapter
    model: Any
    tree: ModuleTree
    modules: tuple[Any, ...]
    _known: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def node_of(self) -> dict[int, int]:
        """Identity of a module to the node of its first path."""
        found: dict[int, int] = {}
        for index, module in enumerate(self.modules):
            found.setdefault(id(module), index)
        return found

    def layer_spec(self, index: int) -> LayerSpec | None:
        return spec_of(self.adapter, self.modules[index])

    def parameters(self) -> dict[str, Any]:
        """Every parameter under its first path."""
        return self._read("parameters")

    def buffers(self) -> dict[str, Any]:
        """Every buffer under its first path."""
        return self._read("buffers")

    def tensors(self) -> dict[str, Any]:
        """Every parameter and buffer under each of its paths."""
        return self._read("tensors")

    def forget(self) -> None:
        """Read the tensors anew next time: somebody may have put others in their place."""
        self._known.clear()

    def once(self, what: str, find: Callable[[LiveTree], T]) -> T:
        """What was found out about the model, and holds until it is read anew."""
        if what not in self._known:
            self._known[what] = find(self)
        found: T = self._known[what]
        return found

    def _read(self, what: str) -> dict[str, Any]:
        if what not in self._known:
            tensors: dict[str, Any] = {}
            firsts: dict[str, dict[str, Any]] = {"parameters": {}, "buffers": {}}
            seen: set[tuple[str, int]] = set()
            own = (("parameters", self.adapter.own_parameters), ("buffers", self.adapter.own_buffers))
            for node, module in zip(self.tree.nodes, self.modules, strict=True):
                for role, named in own:
                    for name, tensor in named(module):
                        path = join(node.path, name)
                        tensors[path] = tensor
                        if (role, id(tensor)) not in seen:
                            seen.add((role, id(tensor)))
                            firsts[role][path] = tensor
            self._known.update(firsts, tensors=tensors)
        found: dict[str, Any] = self._known[what]
        return found


def join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def main_dtype(live: LiveTree) -> str | None:
    """The floating dtype that most numbers of a model's parameters have; None where it has none."""
    sizes: Counter[str] = Counter()
    specs = {spec.identity: spec for node in live.tree.nodes for spec in node.parameters}
    for spec in specs.values():
        if spec.dtype.startswith(("float", "bfloat")):
            sizes[spec.dtype] += math.prod(spec.shape)
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
    spec = spec_of(adapter, module)
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
        varied=spec is not None and own_forward(adapter, module),
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
