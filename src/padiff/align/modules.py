"""Which module of base belongs to which of raw, before anything runs.

User rules come first, then equal paths, then the order of leaves:

    base            raw                  leaves of base   fc1  act  fc2
    net             net                                    |    |    |
    +- fc1          +- body (wrapper)    leaves of raw    fc1  act  fc2
    +- act          |  +- fc1
    +- fc2          |  +- act            A module that has children belongs to the one that holds the same
                    +- fc2               paired leaves; a wrapper present on one side only stays alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from padiff.align.sequences import align_sequences
from padiff.records import ModuleNode, ModulePairs, ModuleTree, Rules

ACTIVATIONS = frozenset(
    "relu relu6 gelu silu sigmoid tanh softmax log_softmax leaky_relu elu celu selu hardswish hardsigmoid hardtanh mish "
    "softplus softsign prelu glu swish log_sigmoid tanhshrink softshrink hardshrink threshold rrelu maxout".split()
)
PASSIVE = frozenset({"identity", "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout"})
CONTAINERS = frozenset({"sequential", "module_list", "module_dict"})


def pair_modules(base: ModuleTree, raw: ModuleTree, rules: Rules | None = None, *, inside: bool = False) -> ModulePairs:
    """Pair the modules of two models; what has no partner is listed.

    Modules that a rule pairs are units, and what is below them is left alone; with ``inside`` it is paired as
    well, each unit for itself: weights have to go somewhere.
    """
    rules = rules or Rules()
    pairing = _Pairing(base, raw, rules)
    pairing.by_rules(inside)
    pairing.by_leaves()
    pairing.by_content()
    return pairing.result()


class _Pairing:
    def __init__(self, base: ModuleTree, raw: ModuleTree, rules: Rules) -> None:
        self.base, self.raw, self.rules = base, raw, rules
        self.partner: dict[int, int] = {}
        self.taken: set[int] = set()
        self.base_out = _left_out(base, rules.base_skip, rules.skip_parameterless)
        self.raw_out = _left_out(raw, rules.raw_skip, rules.skip_parameterless)

    def put(self, base: int, raw: int) -> None:
        if base not in self.partner and raw not in self.taken:
            self.partner[base] = raw
            self.taken.add(raw)

    def by_rules(self, inside: bool) -> None:
        base_paths, raw_paths = self.base.by_path(), self.raw.by_path()
        units: list[tuple[set[int], set[int]]] = []
        for base_path, raw_path in self.rules.pairs:
            base_index, raw_index = base_paths[base_path].index, raw_paths[raw_path].index
            self.put(base_index, raw_index)
            units.append((set(self.base.subtree(base_index)[1:]), set(self.raw.subtree(raw_index)[1:])))
        for base_unit, raw_unit in units:
            if inside:
                self._pair_leaves(
                    [n for n in self._leaves(self.base, self.base_out, self.partner) if n.index in base_unit],
                    [n for n in self._leaves(self.raw, self.raw_out, self.taken) if n.index in raw_unit],
                )
            else:
                self.base_out |= base_unit
                self.raw_out |= raw_unit

    def by_leaves(self) -> None:
        base = self._leaves(self.base, self.base_out, self.partner)
        raw = self._leaves(self.raw, self.raw_out, self.taken)
        self._equal_paths(base, raw)
        self._pair_leaves(base, raw)

    def _pair_leaves(self, base: list[ModuleNode], raw: list[ModuleNode]) -> None:
        base = [node for node in base if node.index not in self.partner]
        raw = [node for node in raw if node.index not in self.taken]
        for left, right in align_sequences(base, raw, leaf_likeness, _leaf_key):
            self.put(left.index, right.index)
            self._inside(left, right)

    def _leaves(
        self, tree: ModuleTree, out: set[int], done: Sequence[int] | set[int] | dict[int, int]
    ) -> list[ModuleNode]:
        """Nodes without children that count, and layers matched as one thing, in definition order."""
        found: list[ModuleNode] = []
        hidden: set[int] = set()
        for node in tree.nodes:
            if node.parent in hidden or node.index in out:
                if node.parent in hidden:
                    hidden.add(node.index)
                continue
            if node.atomic:
                hidden.add(node.index)
            if (node.atomic or not node.children) and node.index not in done:
                found.append(node)
        return found

    def _equal_paths(self, base: list[ModuleNode], raw: list[ModuleNode]) -> None:
        """Equal names under equal names are the best evidence at rest, unless what they name is of another kind."""
        by_path = {node.path: node for node in raw}
        for node in base:
            other = by_path.get(node.path)
            if other is None or not _same_kind(node, other):
                continue
            if node.name.isdigit() and not self._same_width(node, other):
                continue  # a number is a position: it shifts when one side has one more
            self.put(node.index, other.index)
            self._inside(node, other)

    def _same_width(self, node: ModuleNode, other: ModuleNode) -> bool:
        if node.parent < 0 or other.parent < 0:
            return True
        return len(self.base.nodes[node.parent].children) == len(self.raw.nodes[other.parent].children)

    def _inside(self, base: ModuleNode, raw: ModuleNode) -> None:
        """Children of two layers matched as one thing, where they have the same names."""
        names = {self.raw.nodes[child].name: child for child in raw.children}
        for child in base.children:
            partner = names.get(self.base.nodes[child].name)
            if partner is not None:
                self.put(child, partner)
                self._inside(self.base.nodes[child], self.raw.nodes[partner])

    def by_content(self) -> None:
        """Inner modules that hold the same paired leaves; several on one branch, from the outside in."""
        base_sets = _contents(self.base, {b: b for b in self.partner})
        raw_sets = _contents(self.raw, {r: b for b, r in self.partner.items()})
        base_chains, raw_chains = defaultdict(list), defaultdict(list)
        for chains, sets, tree, done, out in (
            (base_chains, base_sets, self.base, set(self.partner), self.base_out),
            (raw_chains, raw_sets, self.raw, self.taken, self.raw_out),
        ):
            for node in tree.nodes:
                if node.children and node.index not in done and node.index not in out:
                    chains[sets[node.index]].append(node)
        if 0 not in self.partner and 0 not in self.taken:
            self.put(0, 0)
        for key, chain in base_chains.items():
            left = [node for node in chain if node.index not in self.partner]
            right = [node for node in raw_chains.get(key, ()) if node.index not in self.taken]
            if key[0] == 0:
                self._by_path_only(left, right)
                continue
            for one, other in align_sequences(left, right, inner_likeness, lambda node: (node.kind, node.name)):
                self.put(one.index, other.index)

    def _by_path_only(self, left: list[ModuleNode], right: list[ModuleNode]) -> None:
        paths = {node.path: node for node in right}
        for node in left:
            if node.path in paths:
                self.put(node.index, paths[node.path].index)

    def result(self) -> ModulePairs:
        return ModulePairs(
            pairs=tuple(sorted(self.partner.items())),
            base_alone=tuple(
                n.index for n in self.base.nodes if n.index not in self.partner and n.index not in self.base_out
            ),
            raw_alone=tuple(
                n.index for n in self.raw.nodes if n.index not in self.taken and n.index not in self.raw_out
            ),
        )


def _left_out(tree: ModuleTree, skipped: frozenset[str], parameterless: bool) -> set[int]:
    out = {node.index for node in tree.nodes if node.path in skipped}
    if parameterless:
        holds = [bool(node.parameters) for node in tree.nodes]
        for node in reversed(tree.nodes):
            if holds[node.index] and node.parent >= 0:
                holds[node.parent] = True
        out.update(node.index for node in tree.nodes if not holds[node.index] and node.index != 0)
    return out


def _contents(tree: ModuleTree, labels: dict[int, int]) -> list[tuple[int, int]]:
    """Per node how many paired leaves lie below it and a sum that tells sets of them apart."""
    found = [
        (1, hash((label, "leaf")) & 0xFFFFFFFFFFFF) if (label := labels.get(n.index)) is not None else (0, 0)
        for n in tree.nodes
    ]
    for node in reversed(tree.nodes):
        if node.parent >= 0:
            count, total = found[node.parent]
            found[node.parent] = (count + found[node.index][0], total + found[node.index][1])
    return found


def _same_kind(base: ModuleNode, raw: ModuleNode) -> bool:
    if base.layer is not None and raw.layer is not None:
        return base.layer == raw.layer or (base.layer in ACTIVATIONS and raw.layer in ACTIVATIONS)
    if base.layer is None and raw.layer is None:
        return base.kind.lower() == raw.kind.lower() or _sizes(base) == _sizes(raw)
    return _sizes(base) == _sizes(raw) and bool(_sizes(base))


def _sizes(node: ModuleNode) -> tuple[tuple[int, ...], ...]:
    """Shapes of its parameters, axes sorted: the same for a weight and its transpose."""
    return tuple(sorted(tuple(sorted(spec.shape)) for spec in node.parameters))


def _leaf_key(node: ModuleNode) -> object:
    return (node.layer or node.kind.lower(), _sizes(node))


def leaf_likeness(base: ModuleNode, raw: ModuleNode) -> float:
    """How well two leaves fit; 0 when they cannot belong together."""
    same_sizes = _sizes(base) == _sizes(raw)
    if base.layer is not None and base.layer == raw.layer:
        score = 4.0 if same_sizes else 2.5
    elif base.layer is not None and raw.layer is not None:
        both_active = base.layer in ACTIVATIONS and raw.layer in ACTIVATIONS
        alike = both_active or (same_sizes and bool(base.parameters)) or _same_name(base, raw)
        passive = (base.layer in PASSIVE) != (raw.layer in PASSIVE)
        score = 1.5 if alike and not passive else 0.0
    elif same_sizes and base.parameters:
        score = 3.0
    else:
        score = 2.0 if base.kind.lower() == raw.kind.lower() and same_sizes else (1.0 if _same_name(base, raw) else 0.0)
    if score == 0.0:
        return 0.0
    return score + 0.5 * _same_name(base, raw) + 0.5 * (base.path == raw.path)


def inner_likeness(base: ModuleNode, raw: ModuleNode) -> float:
    """How well two modules with the same content fit."""
    contained = (base.layer in CONTAINERS) == (raw.layer in CONTAINERS)
    return (
        1.0
        + 2.0 * contained
        + 1.0 * (base.kind.lower() == raw.kind.lower())
        + 1.0 * _same_name(base, raw)
        + 1.0 * (base.path == raw.path)
        + 0.5 * (_sizes(base) == _sizes(raw))
    )


def _same_name(base: ModuleNode, raw: ModuleNode) -> bool:
    return bool(base.name) and base.name == raw.name
