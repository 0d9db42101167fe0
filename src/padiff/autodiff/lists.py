"""Black and white lists: which layers of a model are recorded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from padiff.align.nodes import left_out
from padiff.autodiff.environment import skips_wrap_layers
from padiff.errors import ArgumentError
from padiff.frameworks.tree import LiveTree

MODES = ("self", "sublayers", "all")


@dataclass
class Lists:
    """Layers with the mode each was listed in. A white list says what is recorded; else it is all but the black one.

    The model itself is always recorded, unless it is on the black list itself.
    """

    black: list[tuple[Any, str]] = field(default_factory=list)
    white: list[tuple[Any, str]] | None = None
    """None until something, be it nothing, was put on it."""

    def recorded(self, live: LiveTree) -> frozenset[int]:
        """Nodes of the layers that are recorded."""
        return self._wanted(live) - left_out(live.tree, frozenset(), skips_wrap_layers())

    def _wanted(self, live: LiveTree) -> frozenset[int]:
        black = _nodes(live, self.black)
        if self.white is None:
            return frozenset(index for index in range(len(live.modules)) if index not in black)
        white = _nodes(live, self.white)
        return frozenset(white if 0 in black else {0, *white})

    def left_out(self, live: LiveTree) -> frozenset[str]:
        """Paths of the layers that are not recorded."""
        kept = self.recorded(live)
        return frozenset(node.path for node in live.tree.nodes if node.index not in kept)

    def unfilled(self, live: LiveTree) -> frozenset[str]:
        """Paths of the layers whose weights are left alone: the black list, less what is on the white one."""
        kept = _nodes(live, self.white or ())
        return frozenset(live.tree.nodes[index].path for index in _nodes(live, self.black) - kept)


def read_layers(live: LiveTree, layers: Any, mode: Any, call: str) -> list[tuple[Any, str]]:
    """What a call puts on a list: one layer or several, each of the model at hand."""
    check_mode(mode, call)
    several = [layers] if live.adapter.is_model(layers) else layers
    if isinstance(several, str) or not isinstance(several, Iterable):
        raise ArgumentError(f"{call}: layers is a {type(layers).__name__}, expected layers of the model", _HINT)
    known = live.node_of()
    found = []
    for layer in several:
        if id(layer) not in known:
            raise ArgumentError(f"{call}: {_what(layer)} is no layer of {live.tree.name}", _HINT)
        found.append((layer, mode))
    return found


def read_class(live: LiveTree, layer_class: Any, mode: Any, call: str) -> list[tuple[Any, str]]:
    """What a call by class puts on a list: every layer of the model that is an instance."""
    check_mode(mode, call)
    classes = tuple(layer_class) if isinstance(layer_class, (tuple, list, set, frozenset)) else (layer_class,)
    if not classes or not all(isinstance(one, type) for one in classes):
        raise ArgumentError(f"{call}: layer_class is {layer_class!r}, expected a class, e.g. torch.nn.Linear")
    distinct = {id(module): module for module in live.modules}
    return [(module, mode) for module in distinct.values() if isinstance(module, classes)]


def check_mode(mode: Any, call: str) -> None:
    if not isinstance(mode, str) or mode not in MODES:
        raise ArgumentError(f"{call}: mode is {mode!r}, expected {', '.join(map(repr, MODES))}")


_HINT = "pass layer objects taken from the very model, e.g. model.encoder or [model.fc1, model.fc2]"


def _nodes(live: LiveTree, listed: Iterable[tuple[Any, str]]) -> set[int]:
    """Nodes that a list covers; a layer under several paths is covered under all of them."""
    modes: dict[int, set[str]] = {}
    for layer, mode in listed:
        modes.setdefault(id(layer), set()).add(mode)
    covered: set[int] = set()
    inside: set[int] = set()
    for node, module in zip(live.tree.nodes, live.modules, strict=True):  # parents before children
        mine = modes.get(id(module), set())
        if node.parent in inside or mine & {"self", "all"}:
            covered.add(id(module))
        if node.parent in inside or mine & {"sublayers", "all"}:
            inside.add(node.index)
    return {index for index, module in enumerate(live.modules) if id(module) in covered}


def _what(layer: Any) -> str:
    return f"{layer!r}" if isinstance(layer, str) else f"a {type(layer).__name__}"
