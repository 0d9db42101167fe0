"""The nodes of one module tree, seen in the ways that pairing needs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence

from padiff.records import ModuleNode, ModuleTree


def left_out(
    tree: ModuleTree, skipped: frozenset[str], parameterless: bool, only: frozenset[str] | None = None
) -> set[int]:
    """Nodes that rules keep out: a white list wins over a black one."""
    if only is not None:
        return {node.index for node in tree.nodes if node.path not in only and node.index != 0}
    out = {node.index for node in tree.nodes if node.path in skipped}
    if parameterless:
        holds = [bool(node.parameters) for node in tree.nodes]
        for node in reversed(tree.nodes):
            if holds[node.index] and node.parent >= 0:
                holds[node.parent] = True
        out.update(node.index for node in tree.nodes if not holds[node.index] and node.index != 0)
    return out


def leaves(
    tree: ModuleTree, out: Collection[int], done: Collection[int], order: Mapping[int, int] | None = None
) -> list[ModuleNode]:
    """Nodes without children that count, and layers matched as one thing, in the order given, else of definition."""
    found: list[ModuleNode] = []
    hidden: set[int] = set()
    for node in tree.nodes:
        if node.parent in hidden:
            hidden.add(node.index)
            continue
        if node.index in out:
            continue
        if node.atomic:
            hidden.add(node.index)
        if (node.atomic or not node.children) and node.index not in done:
            found.append(node)
    if order:
        found.sort(key=lambda node: (order.get(node.index, len(tree.nodes) * 1000), node.index))
    return found


def contents(tree: ModuleTree, labels: Mapping[int, Hashable | tuple[Hashable, ...]]) -> list[tuple[int, int]]:
    """Per node how many things known on both sides lie below it and a sum that tells sets of them apart."""
    found = []
    for node in tree.nodes:
        label = labels.get(node.index, ())
        held = label if isinstance(label, tuple) else (label,)
        # As text: in Python -1 and -2 have the same hash.
        found.append((len(held), sum(hash(f"label {one}") & 0xFFFFFFFFFFFF for one in held)))
    for node in reversed(tree.nodes):
        if node.parent >= 0:
            count, total = found[node.parent]
            found[node.parent] = (count + found[node.index][0], total + found[node.index][1])
    return found


def chains(
    tree: ModuleTree, contents: Sequence[tuple[int, int]], done: Collection[int], out: Collection[int]
) -> dict[tuple[int, int], list[ModuleNode]]:
    """Inner modules by what they hold, those with the same content from the outside in; and modules that keep several
    tensors themselves, for which others have layers."""
    found: dict[tuple[int, int], list[ModuleNode]] = defaultdict(list)
    for node in tree.nodes:
        inner = bool(node.children) or (node.layer is None and contents[node.index][0] > 1)
        if inner and node.index not in done and node.index not in out:
            found[contents[node.index]].append(node)
    return found


def alone(tree: ModuleTree, done: Collection[int], out: Collection[int]) -> tuple[int, ...]:
    return tuple(node.index for node in tree.nodes if node.index not in done and node.index not in out)
