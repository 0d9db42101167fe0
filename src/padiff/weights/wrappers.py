"""Which module around a layer belongs to its partner, where the layer itself is only a part of that."""

from __future__ import annotations

from dataclasses import replace

from padiff.frameworks.tree import LiveTree
from padiff.records import ModuleNode, Usage
from padiff.weights.fitting import UnitPair
from padiff.weights.units import Unit


def at_wrapper(pair: UnitPair, lives: tuple[LiveTree, LiveTree], uses: tuple[Usage, Usage]) -> UnitPair:
    """Where a layer returns more or less than its partner, and a wrapper around it just as much (it pads, the wrapper
    crops), the wrapper is the partner; and so is the one around parts whose results it adds up."""
    if pair.added:
        return _around_parts(pair, lives, uses)
    if len(pair.base) != 1 or len(pair.raw) != 1:
        return pair
    if (pair.base[0].layer is None) != (pair.raw[0].layer is None):
        return _around_a_part(pair, lives, uses)
    if not pair.base[0].made or not pair.raw[0].made:
        return pair
    one, other = pair.base[0], pair.raw[0]
    if one.made == other.made:
        return pair
    base, raw = _wrapper(one, other.made, lives[0], uses[0]), _wrapper(other, one.made, lives[1], uses[1])
    if raw is not None:
        return replace(pair, raw=(raw,))
    return pair if base is None else replace(pair, base=(base,))


def _around_a_part(pair: UnitPair, lives: tuple[LiveTree, LiveTree], uses: tuple[Usage, Usage]) -> UnitPair:
    """A module that keeps a tensor itself beside one that has a layer for it: where the layer is given or returns other
    things than the module, the partner is who calls the layer, takes as much and returns as much (a codebook that looks
    up what is nearest beside one that has an embedding)."""
    side = 0 if pair.base[0].layer is None else 1  # of the module that keeps it itself
    keeper, layer = (pair.base[0], pair.raw[0]) if side == 0 else (pair.raw[0], pair.base[0])
    if not uses[0].made or not uses[1].made or keeper.node.index not in uses[side].calls or keeper.node.parent < 0:
        return pair
    whole = _amounts(keeper.node, uses[side])
    tree, node = lives[1 - side].tree, layer.node
    inside = set(tree.subtree(node.index))  # a weight kept by size and direction lies in a module of the layer's
    while whole != _amounts(node, uses[1 - side]):
        if node.parent <= 0:  # the model itself has its partner
            return pair
        node = tree.nodes[node.parent]
        below = [tree.nodes[index] for index in tree.subtree(node.index)]
        if any(one.parameters for one in below if one.index not in inside):
            return pair
    if node is layer.node:
        return pair
    ends = (replace(keeper, path=keeper.node.path),), (replace(layer, node=node, path=node.path),)
    return replace(pair, base=ends[side], raw=ends[1 - side])


def _amounts(node: ModuleNode, use: Usage) -> tuple[int | None, int | None]:
    """How many elements its first call was given first, and returned where that was one tensor."""
    return use.given.get(node.index), use.made.get(node.index)


def _around_parts(pair: UnitPair, lives: tuple[LiveTree, LiveTree], uses: tuple[Usage, Usage]) -> UnitPair:
    side = 0 if len(pair.base) > 1 else 1
    parts, tree, called = (pair.base, pair.raw)[side], lives[side].tree, uses[side].calls
    inside = {part.node.index for part in parts}
    node, found = parts[0].node, None
    while node.parent >= 0:
        node = tree.nodes[node.parent]
        below = [tree.nodes[index] for index in tree.subtree(node.index)]
        if any(one.parameters for one in below if one.index not in inside):
            break
        if node.index in called and inside <= {one.index for one in below}:
            found = node
    if found is None:
        return pair
    around = (replace(parts[0], node=found, path=found.path),)
    return replace(pair, base=around, added=False) if side == 0 else replace(pair, raw=around, added=False)


def _wrapper(unit: Unit, made: int, live: LiveTree, use: Usage) -> Unit | None:
    node = unit.node
    while node.parent >= 0 and len(live.tree.nodes[node.parent].children) == 1:
        node = live.tree.nodes[node.parent]
        if use.made.get(node.index) == made:
            return replace(unit, node=node, path=node.path)
    return None
