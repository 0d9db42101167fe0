"""Paired units in the bundles that move together: what one module of base and one of raw both hold, coarse to fine.

base  block.x0.conv  block.x0.bn  block.x1.conv  block.x1.bn
raw   block.near.0   block.near.1 block.far.0    block.far.1      bundles of (block, block): x0 - near, x1 - far
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from padiff.weights.fitting import UnitPair, signature
from padiff.weights.units import Unit

Content = tuple[int, int]
_LEAF = "\0"


@dataclass(frozen=True)
class Bundle:
    """Pairs whose units lie in one place of base and in one place of raw, and nothing else does."""

    base: str
    raw: str
    """Its paths."""
    pairs: tuple[int, ...]
    """Numbers of the pairs; those of its likes in the same order."""


@dataclass(frozen=True)
class Likes:
    """Bundles beside each other that shapes do not tell apart."""

    base: str
    raw: str
    """Paths of the place around them."""
    bundles: tuple[Bundle, ...]

    def names(self) -> tuple[list[str], list[str]]:
        """What the bundles are called, from the place around them on."""
        return (
            [_below(bundle.base, self.base) for bundle in self.bundles],
            [_below(bundle.raw, self.raw) for bundle in self.bundles],
        )


def likes_among(pairs: Sequence[UnitPair]) -> list[Likes]:
    """All sets of bundles that fit each other's places, outer ones first."""
    tree = _Tree(pairs)
    found: list[Likes] = []
    for around, inside in tree.children.items():
        base, raw = tree.paths[around]
        for bundles in _alike(pairs, [tree.bundle(content) for content in inside]):
            found.append(Likes(base, raw, tuple(bundles)))
    return found


class _Tree:
    """Places of base and raw that hold the same units, and which lies next inside which."""

    def __init__(self, pairs: Sequence[UnitPair]) -> None:
        base, raw = _contents(pairs, 0), _contents(pairs, 1)
        deepest = {content: prefix for prefix, content in sorted(raw.items(), key=lambda item: len(item[0]))}
        self.paths: dict[Content, tuple[str, str]] = {}
        for prefix, content in sorted(base.items(), key=lambda item: len(item[0])):
            if content in deepest:
                self.paths[content] = (_path(prefix), _path(deepest[content]))
        self.children: dict[Content, dict[Content, None]] = defaultdict(dict)
        self._pairs: dict[Content, list[int]] = defaultdict(list)
        for number, pair in enumerate(pairs):
            inner: Content | None = None
            for prefix in reversed(_prefixes(pair.base[0])):
                content = base[prefix]
                if content not in self.paths or content == inner:
                    continue
                self._pairs[content].append(number)
                if inner is not None:
                    self.children[content][inner] = None
                inner = content

    def bundle(self, content: Content) -> Bundle:
        return Bundle(*self.paths[content], tuple(self._pairs[content]))


def _contents(pairs: Sequence[UnitPair], side: int) -> dict[tuple[str, ...], Content]:
    """Per place how many units lie in it, and a sum that tells sets of them apart."""
    draw = random.Random(0)
    found: dict[tuple[str, ...], Content] = {}
    for pair in pairs:
        numbers = [draw.getrandbits(60) for _ in range(max(len(pair.base), len(pair.raw)))]
        units = (pair.base, pair.raw)[side]
        for place, unit in enumerate(units):
            held = numbers if len(units) == 1 else [numbers[place]]
            for prefix in _prefixes(unit):
                count, total = found.get(prefix, (0, 0))
                found[prefix] = (count + len(held), total + sum(held))
    return found


def _prefixes(unit: Unit) -> list[tuple[str, ...]]:
    """Places around a unit from the outside in; what begins alike, branch1_conv and branch1_bn, lies together too."""
    parts = (*re.split(r"(?=[._])", unit.path), _LEAF)
    return [parts[:length] for length in range(len(parts) + 1)]


def _path(prefix: tuple[str, ...]) -> str:
    return "".join(part for part in prefix if part != _LEAF)


def _alike(pairs: Sequence[UnitPair], bundles: Sequence[Bundle]) -> list[list[Bundle]]:
    """Bundles in groups that hold the same shapes under the same inner names, of base or else of raw."""
    found: list[list[Bundle]] = []
    rest = list(bundles)
    for side in (0, 1):
        groups: dict[object, list[Bundle]] = defaultdict(list)
        for bundle in rest:
            inside = {_inner(pairs[number], bundle, side): number for number in bundle.pairs}
            ordered = tuple(inside[key] for key in sorted(inside))
            key = (len(bundle.pairs), tuple((name, _shapes(pairs[inside[name]])) for name in sorted(inside)))
            groups[key].append(Bundle(bundle.base, bundle.raw, ordered))
        found += [group for group in groups.values() if len(group) > 1]
        rest = [group[0] for group in groups.values() if len(group) == 1]
    return found


def _inner(pair: UnitPair, bundle: Bundle, side: int) -> tuple[str, ...]:
    units, path = ((pair.base, bundle.base), (pair.raw, bundle.raw))[side]
    return tuple(_below(unit.path, path) for unit in units)


def _shapes(pair: UnitPair) -> Mapping[str, object] | object:
    return tuple(signature(unit) for unit in pair.base), tuple(signature(unit) for unit in pair.raw), pair.stacked


def _below(path: str, around: str) -> str:
    return path[len(around) :].lstrip("._")
