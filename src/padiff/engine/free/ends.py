"""Calls whose output differs because their authors draw the line elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from padiff.align import CallPairing
from padiff.records import Call, Comparison, ModuleTree

Pairs = Sequence[tuple[Call, Call]]
"""Calls of base and raw that belong together, in the order in which they end: children come before their parents."""


def ending_elsewhere(
    pairs: Pairs, comparisons: Iterable[Comparison], tree: ModuleTree, pairing: CallPairing
) -> set[int]:
    """Calls of modules that hold others, or of classes that nobody knows to be the same, whose output differs while all
    that was paired inside agrees; where the model's own output does, too."""
    wrong = {one.raw_call for one in _wrong_outputs(comparisons)}
    parent = {call.index: call.parent for _, call in pairs}
    faulty_inside: set[int] = set()
    found: set[int] = set()
    for base, call in pairs:
        node = tree.nodes[base.node]
        unknown = node.layer is None or pairing.bare_of_its_own(call) or pairing.adds_up(base, call)
        unknown = unknown or pairing.varied(base, call)
        loose = bool(node.children) or (unknown and not pairing.grouped(call))
        if call.index in wrong and loose and call.index not in faulty_inside and call.parent >= 0:
            found.add(call.index)
        elif call.index in wrong:
            faulty_inside.add(call.index)
        if call.index in faulty_inside:
            faulty_inside.add(parent[call.index])
    return found


def made_after(pairs: Pairs, comparisons: Iterable[Comparison], tree: ModuleTree, met: Collection[int]) -> set[int]:
    """Calls of modules that hold others whose output differs, while base's is what raw made beside a call inside of
    base's (a dropout inside of an attention here, and after it there). ``met`` are raw's tensors that stand beside one
    of base's which agrees with some tensor of raw. Nothing comes after what the models themselves return."""
    wrong = _wrong_outputs(comparisons)
    returned = {one.tensor for one in wrong if one.raw_path == ""}
    holds = {call.index for base, call in pairs if tree.nodes[base.node].children}
    later = [one for one in wrong if one.tensor in met and one.tensor not in returned]
    return {one.raw_call for one in later if one.raw_call in holds}


def _wrong_outputs(comparisons: Iterable[Comparison]) -> list[Comparison]:
    return [one for one in comparisons if (one.phase, one.role) == ("forward", "output") and not one.agrees]
