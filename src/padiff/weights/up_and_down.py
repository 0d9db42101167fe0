"""Up and down: a feed-forward goes up first, as ``fc1``; an adapter goes down first, and its up is no ``fc1``."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from padiff.weights.units import Unit

_TOKEN = re.compile(r"(?<![a-z])(up|down)(?![a-z])", re.IGNORECASE)


def without_synonyms(*sides: Sequence[Unit]) -> list[list[Unit]]:
    """The units of both models under labels in which the two words mean what they say, where either model goes down
    first in a module; of the same name in the other one, too: who uses them in the wrong order must not have them
    exchanged."""
    names = {_name(parent) for units in sides for parent in _going_down_first(units)}
    return [[_renamed(unit) if _name(_parent(unit)) in names else unit for unit in units] for units in sides]


def _going_down_first(units: Sequence[Unit]) -> Iterator[str]:
    orders: dict[str, dict[str, int]] = defaultdict(dict)
    for unit in units:
        for word in _TOKEN.findall(unit.label.rpartition(".")[2]):
            orders[_parent(unit)].setdefault(word.lower(), unit.order)
    for parent, order in orders.items():
        if len(order) > 1 and order["down"] < order["up"]:
            yield parent


def _parent(unit: Unit) -> str:
    return unit.label.rpartition(".")[0]


def _name(parent: str) -> str:
    """Of blocks that repeat the same."""
    return re.sub(r"\d+", "#", parent)


def _renamed(unit: Unit) -> Unit:
    parent, dot, name = unit.label.rpartition(".")
    return replace(unit, label=parent + dot + _TOKEN.sub(r"\1wards", name))
