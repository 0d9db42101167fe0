"""What pairs of units say about the modules that hold them: which belong together, one with one or several with one."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from padiff.frameworks.tree import LiveTree
from padiff.records import Anchors, Group, ModuleNode, ModuleTree, Usage
from padiff.weights.fitting import UnitPair
from padiff.weights.joining import CHANNELWISE, out_size
from padiff.weights.units import Unit


def anchors_of(pairs: Sequence[UnitPair], base: LiveTree, raw: LiveTree, base_use: Usage, raw_use: Usage) -> Anchors:
    """What pairs of units say about modules."""
    direct: list[tuple[int, int]] = []
    groups: list[Group] = []
    base_holds: dict[int, list[int]] = defaultdict(list)
    raw_holds: dict[int, list[int]] = defaultdict(list)
    loose: list[tuple[ModuleNode, ModuleNode]] = []
    number = 0
    summands = _summands(pairs)
    for pair in pairs:
        count = max(len(pair.base), len(pair.raw))
        numbers = [-1 - number - place for place in range(count)]
        number += count
        for units, holds in ((pair.base, base_holds), (pair.raw, raw_holds)):
            for place, unit in enumerate(units):
                holds[unit.node.index] += numbers if len(units) == 1 else [numbers[place]]
        if count == 1 and (pair.base[0].node.index in summands[0] or pair.raw[0].node.index in summands[1]):
            continue
        if count == 1 and _are_layers(pair) and not _a_cell_of(pair):
            direct.append((pair.base[0].node.index, pair.raw[0].node.index))
        elif count > 1 and _is_group(pair):
            groups.append(_group(pair, base))
        elif count == 1:
            loose.append((pair.base[0].node, pair.raw[0].node))
    direct += _by_all_they_hold(loose, direct)
    around = _Around((base.tree, base_holds, base_use.calls), (raw.tree, raw_holds, raw_use.calls))
    return Anchors(
        pairs=tuple(around.holding_as_much(one, other) for one, other in direct),
        groups=(*groups, *around.groups(groups)),
        base_holds={index: tuple(held) for index, held in base_holds.items()},
        raw_holds={index: tuple(held) for index, held in raw_holds.items()},
        base_order=dict(base_use.calls),
        raw_order=dict(raw_use.calls),
    )


def _summands(pairs: Sequence[UnitPair]) -> tuple[frozenset[int], frozenset[int]]:
    """Nodes of base's and of raw's layers of which several are added up to what one does: the one of them that keeps
    the bias is not the whole."""
    added = [pair for pair in pairs if pair.added]
    base = frozenset(unit.node.index for pair in added for unit in pair.base if len(pair.base) > 1)
    return base, frozenset(unit.node.index for pair in added for unit in pair.raw if len(pair.raw) > 1)


def _by_all_they_hold(
    loose: Sequence[tuple[ModuleNode, ModuleNode]], known: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Leaves of no table whose tensors come one by one, all from the same leaf."""
    partners: tuple[dict[int, set[int]], ...] = (defaultdict(set), defaultdict(set))
    for base, raw in loose:
        partners[0][base.index].add(raw.index)
        partners[1][raw.index].add(base.index)
    taken = {base for base, _ in known}, {raw for _, raw in known}
    found: dict[tuple[int, int], None] = {}
    for base, raw in loose:
        alone = len(partners[0][base.index]) == len(partners[1][raw.index]) == 1
        free = base.index not in taken[0] and raw.index not in taken[1]
        if alone and free and not base.children and not raw.children:
            found[base.index, raw.index] = None
    return list(found)


def _is_group(pair: UnitPair) -> bool:
    """Whether what the parts return, one after the other, is what the whole does."""
    return not (pair.stacked or pair.added) and all(_whole(unit) for unit in (*pair.base, *pair.raw))


def _a_cell_of(pair: UnitPair) -> bool:
    """A recurrent layer against a cell: the one is called once for all that the other does step by step."""
    layers = {pair.base[0].layer or "", pair.raw[0].layer or ""}
    return len(layers) == 2 and any(layer.endswith("_cell") for layer in layers)


def _are_layers(pair: UnitPair) -> bool:
    """Both units are their modules. A model with parts is none, whatever its own tensors are called: models belong to
    each other."""
    one, other = pair.base[0], pair.raw[0]
    parted = [unit.node.parent < 0 and bool(unit.node.children) for unit in (one, other)]
    return _whole(one) and _whole(other) and parted[0] == parted[1]


def _whole(unit: Unit) -> bool:
    """The unit is its module, not a part of it; children without tensors (a norm's own activation) don't count."""
    return unit.path == unit.node.path


def _group(pair: UnitPair, base: LiveTree) -> Group:
    parts, whole = (pair.base, pair.raw[0]) if len(pair.base) > 1 else (pair.raw, pair.base[0])
    sizes = tuple(out_size(part.main, whole.main) for part in parts)
    nodes = tuple(u.node.index for u in pair.base), tuple(u.node.index for u in pair.raw)
    return Group(*nodes, sizes, axis=_channels(base, pair.base[0]))


class _Around:
    """Finds modules around those that are paired, or around the one of a group and each of its several, that hold the
    same: kernels with their norms, layers with their adapters."""

    def __init__(self, *sides: tuple[ModuleTree, Mapping[int, Sequence[int]], Mapping[int, int]]) -> None:
        self._trees, self._calls = [side[0] for side in sides], [side[2] for side in sides]
        self._content = [_content(tree, holds) for tree, holds, _ in sides]

    def holding_as_much(self, base: int, raw: int) -> tuple[int, int]:
        """Two modules that hold a layer each; where one has more in it (an adapter's tensors in the layer that it
        adapts), the module around the other that has the same."""
        pair = [base, raw]
        for side, other in ((0, 1), (1, 0)):
            wanted = self._content[other][pair[other]]
            if self._content[side][pair[side]] < wanted:
                above = (one for one in self._above(side, pair[side]) if self._content[side][one] == wanted)
                pair[side] = next(above, pair[side])
        return pair[0], pair[1]

    def groups(self, groups: Sequence[Group]) -> list[Group]:
        found: dict[tuple[int, ...], Group] = {}
        for group in groups:
            side = 1 if len(group.base) > 1 else 0  # of the one
            (whole,), parts = (group.base, group.raw) if side == 0 else (group.raw, group.base)
            around = self._around(side, whole, parts)
            if around is not None:
                one, several = around
                nodes = ((one,), several) if side == 0 else (several, (one,))
                found.setdefault(several, replace(group, base=nodes[0], raw=nodes[1]))
        return list(found.values())

    def _around(self, side: int, whole: int, parts: Sequence[int]) -> tuple[int, tuple[int, ...]] | None:
        content, others = self._content[side], self._content[1 - side]
        outer = list(self._above(side, whole))
        for above in outer:
            wanted = content[above]
            around = [[node for node in self._above(1 - side, part) if others[node] <= wanted] for part in parts]
            if not all(around):
                continue
            several = tuple(nodes[-1] for nodes in around)
            if len(set(several)) == len(parts) and frozenset().union(*(others[node] for node in several)) == wanted:
                return next(node for node in reversed(outer) if content[node] == wanted), several
        return None

    def _above(self, side: int, node: int) -> Iterator[int]:
        """Called modules around one, from the inside out, without the model itself."""
        above = self._trees[side].nodes[node].parent
        while above > 0:
            if above in self._calls[side]:
                yield above
            above = self._trees[side].nodes[above].parent


def _content(tree: ModuleTree, holds: Mapping[int, Sequence[int]]) -> list[frozenset[int]]:
    """Per node the numbers of the parts that lie in it."""
    found: list[set[int]] = [set(holds.get(node.index, ())) for node in tree.nodes]
    for node in reversed(tree.nodes):
        if node.parent >= 0:
            found[node.parent] |= found[node.index]
    return [frozenset(one) for one in found]


def _channels(live: LiveTree, unit: Unit) -> int:
    """The axis of what a layer returns along which its outputs lie."""
    module = live.modules[unit.node.index]
    order = getattr(module, "_data_format", None) or getattr(module, "data_format", None)
    spatial = re.search(r"conv\w*?(\d)d", unit.layer or "")
    if isinstance(order, str) and order.endswith("C") and len(order) > 2:
        return -1
    return -1 - int(spatial[1]) if spatial else 1 if unit.layer in CHANNELWISE else -1
