"""Layers of one model that correspond, in order, to layers of the other: a layer map in two halves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from padiff.errors import ArgumentError
from padiff.frameworks.tree import LiveTree
from padiff.weights.special import special_classes

PLACES = ("base", "raw")


def read_layer_list(live: LiveTree, layers: Any) -> list[Any]:
    """What ``set_layer_map`` was given."""
    several = [layers] if live.adapter.is_model(layers) else layers
    if isinstance(several, str) or not isinstance(several, Iterable):
        raise ArgumentError(
            f"layers is a {type(layers).__name__}, expected a list of layers of {live.tree.name}",
            "the other model is given as many, in the same order",
        )
    known = live.node_of()
    found = list(several)
    for layer in found:
        if id(layer) not in known:
            raise ArgumentError(f"layers holds a {type(layer).__name__} that is no layer of {live.tree.name}")
    return found


def found_layers(live: LiveTree, model_place: Any) -> list[Any]:
    """Layers that are matched as one thing: by the tables, or by a function of the user's (``add_special_init``)."""
    if not isinstance(model_place, str) or model_place not in PLACES:
        raise ArgumentError(f"model_place is {model_place!r}, expected 'base' or 'raw'")
    special = special_classes(live.adapter.name, model_place == "base")
    found: list[Any] = []
    inside: set[int] = set()
    for node, module in zip(live.tree.nodes, live.modules, strict=True):
        if node.parent in inside:
            inside.add(node.index)
        elif node.atomic or node.kind in special:
            inside.add(node.index)
            if all(module is not known for known in found):
                found.append(module)
    return found


@dataclass
class Mapped:
    """One half: layers in order, and whether somebody chose them or they were found."""

    layers: list[Any] = field(default_factory=list)
    chosen: bool = True

    def paths(self, live: LiveTree) -> tuple[str, ...]:
        """Where the layers are; those that were taken out of the model since are not mentioned."""
        nodes = live.node_of()
        return tuple(live.tree.nodes[nodes[id(layer)]].path for layer in self.layers if id(layer) in nodes)


def paired(base: Sequence[str], raw: Sequence[str], *, chosen: bool) -> tuple[tuple[str, str], ...]:
    """Paths of both halves, one by one. Halves of unequal length that were found, not chosen, say nothing."""
    if len(base) == len(raw):
        return tuple(zip(base, raw, strict=True))
    if chosen:
        raise ArgumentError(
            f"layer map: base names {len(base)} layers, raw {len(raw)}, expected as many",
            "set_layer_map takes the layers of both models in the same order",
        )
    return ()
