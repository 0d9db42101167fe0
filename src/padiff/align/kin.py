"""Modules that one side has once, under several paths, and the other several times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from padiff.records import Call, ModulePairs, ModuleTree


@dataclass
class Kin:
    """Modules of which one stands for several on the other side: their calls pair in order."""

    calls: list[Call]
    """Of base."""
    seen: int = 0
    """How many calls of raw there have been."""


def kin_of(
    base: ModuleTree, raw: ModuleTree, modules: ModulePairs, base_of: Mapping[int, int], calls: Sequence[Call]
) -> dict[int, Kin]:
    """Raw node to its kin, for modules that one side has once under several paths and the other several times."""
    first_base, first_raw = _first(base), _first(raw)
    bases: dict[int, set[int]] = defaultdict(set)
    raws: dict[int, set[int]] = defaultdict(set)
    for base_index, raw_index in modules.pairs:
        one, other = first_base[base.nodes[base_index].identity], first_raw[raw.nodes[raw_index].identity]
        bases[other].add(one)
        raws[one].add(other)
    found: dict[int, Kin] = {}
    for node, partner in base_of.items():
        if node in found or (len(bases[node]) <= 1 and len(raws[partner]) <= 1):
            continue
        kin = Kin([call for call in calls if call.node in bases[node]])
        found |= dict.fromkeys(raws[partner] & base_of.keys(), kin)
    return found


def by_identity(base: ModuleTree, raw: ModuleTree, modules: ModulePairs) -> dict[int, int]:
    """Raw node to base node, for the first path of each module: that is the one calls are recorded under."""
    first_base, first_raw = _first(base), _first(raw)
    found: dict[int, int] = {}
    for base_index, raw_index in modules.pairs:
        found.setdefault(first_raw[raw.nodes[raw_index].identity], first_base[base.nodes[base_index].identity])
    return found


def _first(tree: ModuleTree) -> dict[int, int]:
    """Identity of a module to the node of its first path."""
    found: dict[int, int] = {}
    for node in tree.nodes:
        found.setdefault(node.identity, node.index)
    return found
