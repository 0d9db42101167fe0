"""How well two modules fit by what they are: kind, sizes of their parameters, name."""

from __future__ import annotations

import math
from collections.abc import Sequence

from padiff.records import ModuleNode, ModuleTree

_ACTIVATIONS = """
    relu relu6 gelu silu sigmoid tanh softmax log_softmax leaky_relu elu celu selu hardswish hardsigmoid hardtanh mish
    softplus softsign prelu glu swish log_sigmoid tanhshrink softshrink hardshrink threshold rrelu maxout
"""
ACTIVATIONS = frozenset(_ACTIVATIONS.split())
PASSIVE = frozenset({"identity", "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout"})
CONTAINERS = frozenset({"sequential", "module_list", "module_dict"})

Sizes = tuple[object, ...]
Leaf = tuple[ModuleNode, Sizes]


def own_sizes(node: ModuleNode) -> Sizes:
    """Shapes of its own parameters, axes sorted: the same for a weight and its transpose."""
    return tuple(sorted(tuple(sorted(spec.shape)) for spec in node.parameters))


def sizes_of(tree: ModuleTree) -> list[Sizes]:
    """Per node its own sizes; for a layer matched as one thing the number of elements: each cuts them its own way."""
    return [("elements", _elements(tree, node.index)) if node.atomic else own_sizes(node) for node in tree.nodes]


def _elements(tree: ModuleTree, index: int) -> int:
    specs = {spec.identity: spec for inner in tree.subtree(index) for spec in tree.nodes[inner].parameters}
    return sum(math.prod(spec.shape) for spec in specs.values())


def kind_key(node: ModuleNode, sizes: Sizes) -> tuple[str, Sizes]:
    """Equal for leaves that nothing but their names tells apart."""
    return node.layer or node.kind.lower(), sizes


def same_kind(base: ModuleNode, raw: ModuleNode) -> bool:
    """Whether two modules of one path may belong together."""
    if base.layer is not None and raw.layer is not None:
        return base.layer == raw.layer or (base.layer in ACTIVATIONS and raw.layer in ACTIVATIONS)
    if base.layer is None and raw.layer is None:
        return base.kind.lower() == raw.kind.lower() or own_sizes(base) == own_sizes(raw)
    return own_sizes(base) == own_sizes(raw) and bool(own_sizes(base))


def leaf_likeness(base_leaf: Leaf, raw_leaf: Leaf) -> float:
    """How well two leaves fit; 0 when they cannot belong together."""
    score = _likeness(base_leaf, raw_leaf)
    return score + 0.5 * (base_leaf[0].path == raw_leaf[0].path) if score else 0.0


def _likeness(base_leaf: Leaf, raw_leaf: Leaf) -> float:
    """The same without a look at their paths."""
    (base, base_sizes), (raw, raw_sizes) = base_leaf, raw_leaf
    same_sizes = base_sizes == raw_sizes
    if base.layer is not None and base.layer == raw.layer:
        score = 4.0 if same_sizes else 2.5
    elif base.layer is not None and raw.layer is not None:
        both_active = base.layer in ACTIVATIONS and raw.layer in ACTIVATIONS
        alike = both_active or (same_sizes and bool(base.parameters)) or same_name(base, raw)
        passive = (base.layer in PASSIVE) != (raw.layer in PASSIVE)
        score = 1.5 if alike and not passive else 0.0
    elif same_sizes and base.parameters:
        score = 3.0
    elif base.kind.lower() == raw.kind.lower() and same_sizes:
        score = 2.0
    else:
        score = 1.0 if same_name(base, raw) else 0.0
    if score == 0.0:
        return 0.0
    return score + 0.5 * same_name(base, raw)


class LeafRows:
    """The same for a leaf and a stretch of others: most are of few kinds, and two kinds are held together once."""

    def __init__(self, leaves: Sequence[Leaf], others: Sequence[Leaf]) -> None:
        self._others = others
        self._names = {node.name for node, _ in leaves} & {node.name for node, _ in others}
        """Those that either side has; another is as good as none."""
        numbers: dict[object, int] = {}
        self._kinds = [numbers.setdefault(self._kind(other), len(numbers)) for other in others]
        self._places = {other[0].path: place for place, other in enumerate(others)}
        self._known: dict[object, dict[int, float]] = {}
        """Kind of a leaf to how well each kind of the others fits."""

    def __call__(self, leaf: Leaf, start: int, stop: int) -> list[float]:
        known, kinds = self._known.setdefault(self._kind(leaf), {}), self._kinds[start:stop]
        for place, kind in enumerate(kinds, start):
            if kind not in known:
                known[kind] = _likeness(leaf, self._others[place])
        found = [known[kind] for kind in kinds]
        place = self._places.get(leaf[0].path, -1)
        if start <= place < stop:
            found[place - start] = leaf_likeness(leaf, self._others[place])
        return found

    def _kind(self, leaf: Leaf) -> object:
        """Equal for leaves that fit the same others, their paths aside."""
        node, sizes = leaf
        return (
            node.layer,
            node.kind.lower(),
            sizes,
            bool(node.parameters),
            node.name if node.name in self._names else "",
        )


def inner_likeness(base: ModuleNode, raw: ModuleNode) -> float:
    """How well two modules with the same content fit."""
    contained = (base.layer in CONTAINERS) == (raw.layer in CONTAINERS)
    holds_the_same = bool(base.parameters) and own_sizes(base) == own_sizes(raw)
    return (
        1.0
        + 2.0 * contained
        + 3.0 * (base.kind.lower() == raw.kind.lower())
        + 3.0 * holds_the_same
        + 1.0 * same_name(base, raw)
        + 1.0 * (base.path == raw.path)
    )


def same_name(base: ModuleNode, raw: ModuleNode) -> bool:
    """A number is a position, not a name."""
    return bool(base.name) and base.name == raw.name and not base.name.isdigit()
