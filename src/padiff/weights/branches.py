"""Branches of one block, in an order that does not depend on which of them is computed first.

    base  x -> conv1x1, bn            raw  x -> conv3x3, bn
            -> conv3x3, bn                   -> conv1x1, bn

Order of use pairs what is used one after the other. Of branches that are given the same tensor, each author computes
first which he likes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from padiff.weights.units import Unit


def branches_sorted(units: Sequence[Unit]) -> list[Unit]:
    """Units in order of use, branches that begin with the same tensor sorted by what they hold."""
    found = list(units)
    heads: dict[int, list[Unit]] = defaultdict(list)
    for unit in units:
        if unit.ready:
            heads[unit.ready].append(unit)
    for ready in sorted(heads, reverse=True):  # branches inside of others first
        if len(heads[ready]) > 1:
            _sort(found, heads[ready], ready)
    return found


def _sort(units: list[Unit], heads: Sequence[Unit], ready: int) -> None:
    """Put the branches that begin with ``heads`` in order, in place."""
    around = _around(heads)
    if not around:
        return
    places = {id(unit): place for place, unit in enumerate(units)}
    starts = sorted(places[id(head)] for head in heads)
    end = starts[-1] + 1
    while end < len(units) and units[end].ready >= ready and units[end].path.startswith(around):
        end += 1
    branches = [units[start:stop] for start, stop in zip(starts, [*starts[1:], end], strict=True)]
    units[starts[0] : end] = [unit for branch in sorted(branches, key=_held) for unit in branch]


def _around(heads: Sequence[Unit]) -> str:
    """The path of the innermost module that holds them all, with its dot; "" where that is the model itself."""
    names = [head.path.split(".")[:-1] for head in heads]
    common: list[str] = []
    for level in zip(*names, strict=False):
        if len(set(level)) > 1:
            break
        common.append(level[0])
    return ".".join(common) + "." if common else ""


def _held(branch: Sequence[Unit]) -> list[tuple[int, ...]]:
    return sorted((unit.main.neutral for unit in branch), reverse=True)
