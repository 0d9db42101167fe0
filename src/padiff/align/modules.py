"""Which module of base belongs to which of raw, before anything runs.

User rules come first, then names where they are sure, then the order of leaves:

    base            raw                  leaves of base   fc1  act  fc2
    net             net                                    |    |    |
    +- fc1          +- body (wrapper)    leaves of raw    fc1  act  fc2
    +- act          |  +- fc1
    +- fc2          |  +- act            A module that has children belongs to the one that holds the same
                    +- fc2               paired leaves; a wrapper present on one side only stays alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from padiff.align.likeness import Leaf, LeafRows, Sizes, inner_likeness, kind_key, leaf_likeness, same_kind, sizes_of
from padiff.align.nodes import alone, chains, contents, leaves, left_out
from padiff.align.sequences import align_sequences
from padiff.records import Anchors, ModuleNode, ModulePairs, ModuleTree, Rules

Nodes = Sequence[ModuleNode]


def pair_modules(
    base: ModuleTree,
    raw: ModuleTree,
    rules: Rules | None = None,
    *,
    inside: bool = False,
    anchors: Anchors | None = None,
) -> ModulePairs:
    """Pair the modules of two models; what has no partner is listed.

    Modules that a rule pairs are units, and what is below them is left alone; with ``inside`` it is paired as
    well, each unit for itself: weights have to go somewhere.
    """
    rules = rules or Rules()
    if anchors is not None:
        return _anchored(base, raw, rules, anchors)
    if _identify(raw) < _identify(base):  # ties are broken by who comes first: not by who is base
        found = pair_modules(raw, base, _swapped(rules), inside=inside)
        pairs = tuple(sorted((base_index, raw_index) for raw_index, base_index in found.pairs))
        return ModulePairs(pairs, found.raw_alone, found.base_alone)
    pairing = _Pairing(base, raw, rules)
    pairing.by_rules(inside)
    pairing.by_leaves()
    pairing.by_content()
    pairing.by_parents()
    pairing.by_places()
    return pairing.result()


def _anchored(base: ModuleTree, raw: ModuleTree, rules: Rules, anchors: Anchors) -> ModulePairs:
    """Pair what the tensors have not paired: by content, and in the order of calls."""
    pairing = _Pairing(base, raw, rules, anchors)
    pairing.by_rules(inside=False)
    for base_index, raw_index in anchors.pairs:
        if base_index not in pairing.base_out and raw_index not in pairing.raw_out:
            pairing.put(base.nodes[base_index], raw.nodes[raw_index])
    pairing.by_content(nested_alike=True)
    pairing.by_calls()
    pairing.by_content()
    pairing.by_content(bare=False)
    pairing.by_parents()
    pairing.by_places()
    return replace(pairing.result(), groups=anchors.groups)


class _Pairing:
    def __init__(self, base: ModuleTree, raw: ModuleTree, rules: Rules, anchors: Anchors | None = None) -> None:
        self.base, self.raw, self.rules = base, raw, rules
        self.anchors = anchors or Anchors()
        self.partner: dict[int, int] = {}
        self.taken: dict[int, int] = {}
        self.base_out = left_out(base, rules.base_skip, rules.skip_parameterless, rules.base_only)
        self.raw_out = left_out(raw, rules.raw_skip, rules.skip_parameterless, rules.raw_only)
        self.base_sizes, self.raw_sizes = sizes_of(base), sizes_of(raw)

    def put(self, base: ModuleNode, raw: ModuleNode) -> None:
        """Pair two nodes, and the children of two layers matched as one thing, where they have the same names."""
        if base.index in self.partner or raw.index in self.taken:
            return
        self.partner[base.index] = raw.index
        self.taken[raw.index] = base.index
        if base.atomic or raw.atomic:
            names = {self.raw.nodes[child].name: self.raw.nodes[child] for child in raw.children}
            self._put_below(base, names)

    def _put_below(self, base: ModuleNode, names: dict[str, ModuleNode]) -> None:
        for child in (self.base.nodes[index] for index in base.children):
            other = names.get(child.name)
            if other is not None and child.index not in self.partner and other.index not in self.taken:
                self.partner[child.index] = other.index
                self.taken[other.index] = child.index
                self._put_below(child, {self.raw.nodes[c].name: self.raw.nodes[c] for c in other.children})

    # --- rules

    def by_rules(self, inside: bool) -> None:
        for base_kind, raw_kind in sorted(self.rules.alike):
            left = [node for node in self.base.nodes if node.kind == base_kind]
            right = [node for node in self.raw.nodes if node.kind == raw_kind]
            if len(left) == len(right):
                for one, other in zip(left, right, strict=True):
                    self.put(one, other)
        base_paths, raw_paths = self.base.by_path(), self.raw.by_path()
        units: list[tuple[set[int], set[int]]] = []
        for base_path, raw_path in self.rules.pairs:
            base, raw = base_paths[base_path], raw_paths[raw_path]
            self.partner[base.index] = raw.index
            self.taken[raw.index] = base.index
            units.append((set(self.base.subtree(base.index)[1:]), set(self.raw.subtree(raw.index)[1:])))
        for base_unit, raw_unit in units:
            if inside:
                base_leaves, raw_leaves = self._leaves()
                self._pair_leaves(
                    [node for node in base_leaves if node.index in base_unit],
                    [node for node in raw_leaves if node.index in raw_unit],
                )
            else:
                self.base_out |= base_unit
                self.raw_out |= raw_unit

    # --- leaves

    def by_leaves(self) -> None:
        self._pair_leaves(*self._leaves())

    def _leaves(self) -> tuple[list[ModuleNode], list[ModuleNode]]:
        return (
            leaves(self.base, self.base_out, self.partner, self.anchors.base_order),
            leaves(self.raw, self.raw_out, self.taken, self.anchors.raw_order),
        )

    def by_calls(self) -> None:
        """Leaves without tensors, between the paired leaves they are called between."""
        base = leaves(self.base, self.base_out, (), self.anchors.base_order)
        raw = leaves(self.raw, self.raw_out, (), self.anchors.raw_order)
        for left, right in self._gaps(base, raw):
            self._in_order(*self._open(left, right, with_parameters=False))

    def _pair_leaves(self, base: Nodes, raw: Nodes) -> None:
        self._equal_paths(base, raw)
        self._unique(base, raw, _named)
        self._in_order(*self._open(base, raw, with_parameters=True))
        self._mend(base, raw)
        for left, right in self._gaps(base, raw):
            self._in_order(left, right)

    def _open(self, base: Nodes, raw: Nodes, with_parameters: bool) -> tuple[list[ModuleNode], list[ModuleNode]]:
        """Leaves still without partner; those that hold tensors say more about themselves, and go first."""
        return (
            [n for n in base if n.index not in self.partner and bool(self.base_sizes[n.index]) == with_parameters],
            [n for n in raw if n.index not in self.taken and bool(self.raw_sizes[n.index]) == with_parameters],
        )

    def _equal_paths(self, base: Nodes, raw: Nodes) -> None:
        """Equal names under equal names are the best evidence at rest, unless what they name is of another kind."""
        by_path = {node.path: node for node in raw}
        for node in base:
            other = by_path.get(node.path)
            if other is None or not same_kind(node, other):
                continue
            if self._same_positions(node, other):
                self.put(node, other)

    def _same_positions(self, node: ModuleNode, other: ModuleNode) -> bool:
        """A number in a path is a position: it shifts when one side has one more."""
        while node.parent >= 0 and other.parent >= 0:
            above, other_above = self.base.nodes[node.parent], self.raw.nodes[other.parent]
            if node.name.isdigit() and len(above.children) != len(other_above.children):
                return False
            node, other = above, other_above
        return True

    def _unique(self, base: Nodes, raw: Nodes, key: Callable[[ModuleNode, Sizes], Hashable]) -> None:
        """Pair the open leaves that hold tensors and whose key occurs once on each side."""
        left, right = self._open(base, raw, with_parameters=True)
        ones = _once(left, [key(node, self.base_sizes[node.index]) for node in left])
        others = _once(right, [key(node, self.raw_sizes[node.index]) for node in right])
        for text, node in ones.items():
            if text in others:
                self.put(node, others[text])

    def _in_order(self, base: Nodes, raw: Nodes) -> None:
        keys = (
            [kind_key(node, self.base_sizes[node.index]) for node in base],
            [kind_key(node, self.raw_sizes[node.index]) for node in raw],
        )
        if keys[0] == keys[1]:
            found = list(zip(base, raw, strict=True))
        else:
            left = [(node, self.base_sizes[node.index]) for node in base]
            right = [(node, self.raw_sizes[node.index]) for node in raw]
            aligned = align_sequences(left, right, leaf_likeness, _key, LeafRows(left, right))
            found = [(one, other) for (one, _), (other, _) in aligned]
        for one, other in found:
            self.put(one, other)

    def _mend(self, base: Nodes, raw: Nodes) -> None:
        """Where order paired leaves of unequal sizes, prefer partners of equal sizes defined elsewhere."""
        doubtful = [
            (left.index, right)
            for left in base
            if (right := self.partner.get(left.index)) is not None
            and self.base_sizes[left.index] != self.raw_sizes[right]
            and self.base.nodes[left.index].path != self.raw.nodes[right].path
        ]
        for left_index, right in doubtful:
            del self.partner[left_index], self.taken[right]
        self._unique(base, raw, kind_key)
        for left_index, right in doubtful:
            self.put(self.base.nodes[left_index], self.raw.nodes[right])
        if doubtful:
            self._in_order(*self._open(base, raw, with_parameters=True))

    def _gaps(self, base: Nodes, raw: Nodes) -> list[tuple[list[ModuleNode], list[ModuleNode]]]:
        """Open leaves without tensors, by the paired leaf that comes before them."""
        gaps: dict[int, tuple[list[ModuleNode], list[ModuleNode]]] = defaultdict(lambda: ([], []))
        for side, nodes, label in (
            (0, base, {index: index for index in self.partner}),
            (1, raw, self.taken),
        ):
            last = -1
            for node in nodes:
                if node.index in label:
                    last = label[node.index]
                else:
                    gaps[last][side].append(node)
        return list(gaps.values())

    # --- modules that hold others

    def by_content(self, *, nested_alike: bool = False, bare: bool = True) -> None:
        """Inner modules that hold the same paired leaves; several on one branch, from the outside in.

        ``nested_alike``: only where both sides have as many, since what they call besides may tell them apart later;
        ``bare`` says whether leaves without tensors count."""
        counts = [
            {index for index in paired if bare or tree.nodes[index].parameters or tree.nodes[index].children}
            for tree, paired in ((self.base, self.partner), (self.raw, self.taken))
        ]
        base_labels = {**{index: index for index in counts[0]}, **self.anchors.base_holds}
        raw_labels = {**{index: self.taken[index] for index in counts[1]}, **self.anchors.raw_holds}
        base_sets = contents(self.base, _weighty(self.base, base_labels))
        raw_sets = contents(self.raw, _weighty(self.raw, raw_labels))
        base_chains = chains(self.base, base_sets, self.partner, self.base_out)
        raw_chains = chains(self.raw, raw_sets, self.taken, self.raw_out)
        self.put(self.base.nodes[0], self.raw.nodes[0])
        for key, chain in base_chains.items():
            left = [node for node in chain if node.index not in self.partner]
            right = [node for node in raw_chains.get(key, ()) if node.index not in self.taken]
            if key[0] == 0:
                paths = {node.path: node for node in right}
                left = [node for node in left if node.path in paths]
                right = [paths[node.path] for node in left]
            if nested_alike and len(left) != len(right):
                continue
            for one, other in align_sequences(left, right, inner_likeness, lambda node: (node.kind, node.path)):
                self.put(one, other)

    def by_places(self) -> None:
        """What is left and has one name in two paired modules: a layer that one side has put another in the place of,
        such as a quantised one, which keeps its tensors where nobody sees them."""
        grouped = {index for group in self.anchors.groups for index in group.base}
        grouped_raw = {index for group in self.anchors.groups for index in group.raw}
        for node in self.base.nodes:
            above = self.partner.get(node.parent, -1)
            if node.index in self.partner or node.index in self.base_out or above < 0 or node.name.isdigit():
                continue
            children = (self.raw.nodes[child] for child in self.raw.nodes[above].children)
            other = next((child for child in children if child.name == node.name), None)
            if other is None or other.index in self.taken or other.index in self.raw_out:
                continue
            ours, theirs = {*self.base.subtree(node.index)}, {*self.raw.subtree(other.index)}
            if not ours & (grouped | self.partner.keys()) and not theirs & (grouped_raw | self.taken.keys()):
                self.put(node, other)

    def by_parents(self) -> None:
        """Leaves without tensors that order left over, among the children of paired parents."""
        base, raw = self._open(*self._leaves(), with_parameters=False)
        families: dict[int, tuple[list[ModuleNode], list[ModuleNode]]] = defaultdict(lambda: ([], []))
        for node in base:
            if node.parent in self.partner:
                families[node.parent][0].append(node)
        for node in raw:
            if node.parent in self.taken:
                families[self.taken[node.parent]][1].append(node)
        for left, right in families.values():
            self._in_order(left, right)

    def result(self) -> ModulePairs:
        return ModulePairs(
            pairs=tuple(sorted(self.partner.items())),
            base_alone=alone(self.base, self.partner, self.base_out),
            raw_alone=alone(self.raw, self.taken, self.raw_out),
        )


def _weighty(tree: ModuleTree, labels: Mapping[int, Any]) -> dict[int, Any]:
    """Without modules that hold nothing but buffers: a table is kept once here, and in every block there."""
    return {
        index: label for index, label in labels.items() if tree.nodes[index].parameters or not tree.nodes[index].buffers
    }


def _identify(tree: ModuleTree) -> tuple[object, ...]:
    shapes = [[(spec.name, spec.shape) for spec in node.parameters] for node in tree.nodes]
    return tree.framework, tree.name, [(node.path, node.kind, node.layer or "") for node in tree.nodes], shapes


def _swapped(rules: Rules) -> Rules:
    return replace(
        rules,
        pairs=tuple((raw, base) for base, raw in rules.pairs),
        alike=frozenset((raw, base) for base, raw in rules.alike),
        base_only=rules.raw_only,
        raw_only=rules.base_only,
        base_skip=rules.raw_skip,
        raw_skip=rules.base_skip,
    )


def _key(leaf: Leaf) -> Hashable:
    return kind_key(*leaf), leaf[0].name


def _named(node: ModuleNode, sizes: Sizes) -> Hashable:
    """Kind and the name that somebody gave; a number is none."""
    return None if node.name.isdigit() else (node.name, kind_key(node, sizes))


def _once(nodes: Nodes, keys: Sequence[Hashable]) -> dict[Hashable, ModuleNode]:
    """Nodes by key, those whose key no other has; None is no key."""
    found: dict[Hashable, list[ModuleNode]] = defaultdict(list)
    for node, key in zip(nodes, keys, strict=True):
        found[key].append(node)
    return {key: group[0] for key, group in found.items() if len(group) == 1 and key is not None}
