"""Which parameters of raw nothing of base fills, module by module, and where base would have them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import compress

from padiff.frameworks.tree import join
from padiff.records import ModuleNode, ModuleTree, Side, WeightProblem
from padiff.weights import problems
from padiff.weights.fitting import UnitPair
from padiff.weights.rows import Held
from padiff.weights.units import Unit


def without_partner(
    base: ModuleTree, raw: ModuleTree, pairs: Sequence[UnitPair], missing: Sequence[Held], base_left: Sequence[Unit]
) -> list[WeightProblem]:
    """What is missing in base for parameters of raw, and what of base has no home in raw."""
    partly = _partly_biased(pairs, missing, base_left)
    found = _unfilled(base, raw, pairs, missing, base_left, partly)
    return found + _homeless(raw, pairs, base_left, partly)


_Partly = Mapping[tuple[Side, str], ModuleNode | None]
"""Biases by side and path, to the module of the other side that lacks one; None where that is told of another."""


def _partly_biased(pairs: Sequence[UnitPair], missing: Sequence[Held], base_left: Sequence[Unit]) -> _Partly:
    """Biases left over of a layer that is several in the other model, of which some have a bias, and of these."""
    left = {("raw", held.path) for held in missing} | {("base", unit.path) for unit in base_left}
    found: dict[tuple[Side, str], ModuleNode | None] = {}
    for pair in pairs:
        if pair.stacked or pair.added or len(pair.base) == len(pair.raw):
            continue
        sides: tuple[Side, Side] = ("base", "raw")
        side, other = sides if len(pair.base) == 1 else sides[::-1]
        whole, parts = (pair.base[0], pair.raw) if side == "base" else (pair.raw[0], pair.base)
        biased = [(other, join(part.path, "bias")) in left for part in parts]
        own = side, join(whole.path, "bias")
        if own in left and any(biased) and not all(biased):
            found[own] = parts[biased.index(False)].node
            found.update(((other, join(part.path, "bias")), None) for part in compress(parts, biased))
    return found


def _unfilled(
    base: ModuleTree,
    raw: ModuleTree,
    pairs: Sequence[UnitPair],
    missing: Sequence[Held],
    base_left: Sequence[Unit],
    partly: _Partly,
) -> list[WeightProblem]:
    """One problem for each module of raw that base has nothing for, or for each parameter that a partner lacks."""
    sources: dict[int, list[str]] = defaultdict(list)
    for pair in pairs:
        for unit in pair.raw:
            node: ModuleNode | None = unit.node
            while node is not None:
                sources[node.index] += [one.node.path for one in pair.base]
                node = raw.nodes[node.parent] if node.parent >= 0 else None
    groups: dict[int, list[Held]] = defaultdict(list)
    lacking: list[tuple[Held, ModuleNode]] = []
    for held in missing:
        if ("raw", held.path) not in partly:
            groups[_coarsest(raw, held.owner, sources)].append(held)
        elif part := partly["raw", held.path]:
            lacking.append((held, part))
    waiting = list({unit.node.index: unit.node for unit in base_left if unit.required}.values())
    found: list[WeightProblem] = []
    for index, tensors in groups.items():
        node = raw.nodes[index]
        near = _around(base, sources[index] or sources[node.parent] if node.parent >= 0 else [])
        if sources[index]:
            lacking += [(held, near) for held in tensors]
        else:
            inside = [replace(held, owner=node, name=_below(held.path, node.path)) for held in tensors]
            found.append(problems.no_module("raw", node, inside, near, waiting))
    return [problems.no_tensors("raw", lacking), *found] if lacking else found


class Beside:
    """Which of raw's tensors lie beside one layer of base's, in a module that wraps it: adapters of low rank, say."""

    def __init__(self, raw: ModuleTree, pairs: Sequence[UnitPair]) -> None:
        self._raw = raw
        self._sources: dict[int, set[int]] = defaultdict(set)
        self._layers: set[int] = set()
        for pair in pairs:
            self._layers.update(one.node.index for one in pair.base if not one.node.children)
            for unit in pair.raw:
                node = unit.node
                while True:
                    self._sources[node.index].update(one.node.index for one in pair.base)
                    if node.parent < 0:
                        break
                    node = raw.nodes[node.parent]

    def one_layer(self, unit: Unit) -> bool:
        """Whether the innermost module around it that base fills at all holds one layer of base's, and no more."""
        node = unit.node
        while node.parent >= 0 and not self._sources[node.index]:
            node = self._raw.nodes[node.parent]
        found = self._sources[node.index]
        return node.parent >= 0 and node.index != unit.node.index and len(found) == 1 and found <= self._layers


def _homeless(
    raw: ModuleTree, pairs: Sequence[UnitPair], base_left: Sequence[Unit], partly: _Partly
) -> list[WeightProblem]:
    """Parameters of base whose module has found its place in raw, where there is none for them: a bias too many."""
    partners: dict[int, list[str]] = defaultdict(list)
    for pair in pairs:
        for unit in pair.base:
            partners[unit.node.index] += [one.node.path for one in pair.raw]
    left = [
        (u, atom.held) for u in base_left for atom in u.atoms.values() if not atom.held.lenient and u.use < math.inf
    ]
    lacking: list[tuple[Held, ModuleNode]] = []
    for unit, held in left:
        if ("base", unit.path) not in partly:
            lacking += [(held, _around(raw, partners[unit.node.index]))] if _lacks(unit, partners) else []
        elif part := partly["base", unit.path]:
            lacking.append((held, part))
    return [problems.no_tensors("base", lacking)] if lacking else []


def _lacks(unit: Unit, partners: dict[int, list[str]]) -> bool:
    return unit.path == join(unit.node.path, "bias") and bool(partners[unit.node.index])


def _coarsest(tree: ModuleTree, node: ModuleNode, sources: dict[int, list[str]]) -> int:
    """The outermost module around a tensor of which nothing is filled, or the owner, of which something is."""
    while node.parent >= 0 and not sources[node.index] and not sources[node.parent]:
        node = tree.nodes[node.parent]
    return node.index


def _around(tree: ModuleTree, paths: Sequence[str]) -> ModuleNode:
    """The innermost module that holds all of the paths."""
    if not paths:
        return tree.nodes[0]
    shared = paths[0].split(".")
    for path in paths[1:]:
        parts = path.split(".")
        count = 0
        while count < min(len(shared), len(parts)) and shared[count] == parts[count]:
            count += 1
        shared = shared[:count]
    return tree.by_path().get(".".join(shared), tree.nodes[0])


def _below(path: str, around: str) -> str:
    return path.removeprefix(around).lstrip(".")
