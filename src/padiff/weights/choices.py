"""What names, shapes and order leave open: the order of fused parts, interleaving by heads, a square's orientation."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from padiff.frameworks.tree import LiveTree
from padiff.records import Choice, WeightEntry
from padiff.weights.compose import compose
from padiff.weights.fitting import UnitPair, in_part_order, part_role
from padiff.weights.units import UNKNOWN, Unit
from padiff.weights.words import words_of

_USUAL_HEADS = (2, 3, 4, 6, 8, 12, 16, 32)
_HEADS = ("num_heads", "num_attention_heads", "n_head", "n_heads", "nhead", "heads", "num_attention_head")


def choices_of(pairs: Sequence[UnitPair], base: LiveTree, raw: LiveTree) -> tuple[Choice, ...]:
    """One choice per kind of place: what holds for one block holds for its likes."""
    families: dict[tuple[str, str], list[UnitPair]] = defaultdict(list)
    for pair in pairs:
        kind = _open(pair)
        if kind:
            families[(kind, _starred(pair.raw[0].path))].append(pair)
    found: list[Choice] = []
    for (kind, place), family in families.items():
        options = _turned(family) if kind == "orientation" else _orders(family, base, raw)
        if len(options) > 1:
            found.append(Choice(f"{kind} of {place}", tuple(options)))
    return tuple(found)


def _open(pair: UnitPair) -> str:
    if pair.stacked:
        return ""
    if len(pair.base) > 1 or len(pair.raw) > 1:
        return "order of parts"
    one, two = pair.base[0].main, pair.raw[0].main
    square = len(one.shape) == len(two.shape) == 2 and one.shape[0] == one.shape[1]
    return "orientation" if square and UNKNOWN in (one.axes, two.axes) else ""


def _starred(path: str) -> str:
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", path)


def _turned(family: Sequence[UnitPair]) -> list[tuple[str, tuple[WeightEntry, ...]]]:
    as_they_are = tuple(entry for _, _, entry in compose(family))
    other = tuple(
        replace(entry, sources=tuple(replace(s, permute=None if s.permute else (1, 0)) for s in entry.sources))
        if len(entry.shape) == 2
        else entry
        for entry in as_they_are
    )
    return [("as stored", as_they_are), ("turned", other)]


def _orders(family: Sequence[UnitPair], base: LiveTree, raw: LiveTree) -> list[tuple[str, tuple[WeightEntry, ...]]]:
    parts = _parts(family[0])
    whole = family[0].raw[0] if len(family[0].base) > 1 else family[0].base[0]
    told = in_part_order(parts)[1] and bool({"qkv", "gateup"} & set(words_of(whole.label)))
    default = tuple(entry for _, _, entry in compose(family))
    names = [part_role(part) or part.path.rpartition(".")[2] for part in parts]
    options = [(" then ".join(names), default)]
    equal = len({part.main.shape for part in parts}) == 1
    attends = {"query", "key", "value"} <= {part_role(part) for part in parts}
    known = _heads(family[0], base, raw)
    size = parts[0].main.neutral[0]
    for heads in [known] if known else [n for n in _USUAL_HEADS if size % n == 0] if attends else []:
        if equal:
            by_head = tuple(_by_head(entry, heads, len(parts), len(family[0].base) > 1) for entry in default)
            options.append((f"head by head, {heads} heads", by_head))
    if not told and equal:
        for order in itertools.permutations(range(len(parts))):
            if list(order) != sorted(order):
                label = " then ".join(names[place] for place in order)
                options.append((label, tuple(e for _, _, e in compose([_reordered(p, order) for p in family]))))
    return options


def _by_head(entry: WeightEntry, heads: int, parts: int, fuses: bool) -> WeightEntry:
    """The same from, or into, a layout in which each head has all parts."""
    if fuses:
        return replace(entry, heads=heads)
    source = entry.sources[0]
    if source.start is None or source.stop is None:
        return entry
    place = source.start // (source.stop - source.start)
    return replace(entry, sources=(replace(source, start=None, stop=None, interleaved=(heads, parts, place)),))


def _parts(pair: UnitPair) -> tuple[Unit, ...]:
    return pair.base if len(pair.base) > 1 else pair.raw


def _reordered(pair: UnitPair, order: Sequence[int]) -> UnitPair:
    parts = tuple(_parts(pair)[place] for place in order)
    return replace(pair, base=parts) if len(pair.base) > 1 else replace(pair, raw=parts)


def _heads(pair: UnitPair, base: LiveTree, raw: LiveTree) -> int:
    """The number of heads, as the attention around the parts knows it."""
    for live, unit in ((raw, pair.raw[0]), (base, pair.base[0])):
        node = unit.node
        while node.parent >= 0:
            node = live.tree.nodes[node.parent]
            module = live.modules[node.index]
            for name in _HEADS:
                value = getattr(module, name, None)
                if isinstance(value, int) and value > 1:
                    return value
    return 0
