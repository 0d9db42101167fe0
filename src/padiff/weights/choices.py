"""What names, shapes and order leave open: the order of fused parts, interleaving by heads, a square's orientation."""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from padiff.frameworks.tree import LiveTree
from padiff.records import Choice, ModuleTree, WeightEntry, WeightSource
from padiff.weights.compose import compose
from padiff.weights.fitting import UnitPair, in_part_order, merges, part_role, tells_order, turned_merge
from padiff.weights.joining import out_size
from padiff.weights.sets import OpenSet, permuted
from padiff.weights.units import UNKNOWN, Atom, Unit

_LISTS = ("module_list", "module_dict", "parameter_list", "parameter_dict")
_MOST_PERMUTED = 5
_MOST_SWAPPED = 8
"""Sets up to the one size are tried in every order, up to the other with two exchanged; larger ones stay open."""
_MOST_ADDED = 3
"""Parts that each take a stretch of the inputs are tried in every order up to here: more would be many runs."""
_USUAL_HEADS = (2, 3, 4, 6, 8, 12, 16, 32)
_KEY_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_kv_head", "kv_heads", "num_query_groups")
_HEADS = ("num_heads", "num_attention_heads", "n_head", "n_heads", "nhead", "heads", "num_attention_head")


@dataclass(frozen=True)
class Option:
    """One way to fill some tensors, and the pairs that it says belong together, by number."""

    label: str
    entries: tuple[WeightEntry, ...]
    pairs: Mapping[int, UnitPair] = field(default_factory=dict)


@dataclass(frozen=True)
class Question:
    """What is open, with its options; the first is the default."""

    what: str
    options: tuple[Option, ...]
    place: tuple[str, str]
    """Paths in base and raw around the first place that it is about."""

    def choice(self) -> Choice:
        return Choice(self.what, tuple((option.label, option.entries) for option in self.options), place=self.place)


def questions_of(
    pairs: Sequence[UnitPair], sets: Sequence[OpenSet], base: LiveTree, raw: LiveTree
) -> tuple[Question, ...]:
    """One question per kind of place: what holds for one block holds for its likes."""
    families: dict[tuple[str, str, int, int], list[int]] = defaultdict(list)
    for number, pair in enumerate(pairs):
        kind = _open(pair)
        if kind:
            families[kind, _starred(pair.along or pair.raw[0].path), len(pair.base), len(pair.raw)].append(number)
    found = [_which_is_which(pairs, one) for one in sets if len(one.raw) <= _MOST_SWAPPED]
    for (kind, place, *_), numbers in families.items():
        family = {number: pairs[number] for number in numbers}
        options = _turned(family) if kind == "orientation" else _orders(family, base, raw)
        if len(options) > 1:
            leader = pairs[_first_to_tell(pairs, numbers, options)].raw[0].path
            first = [pair for pair in family.values() if leader in (pair.raw[0].path, pair.along)]
            found.append(Question(f"{kind} of {place}", tuple(options), _place(pairs, first)))
    return tuple(
        replace(one, place=(called_around(base.tree, one.place[0]), called_around(raw.tree, one.place[1])))
        for one in found
    )


def _first_to_tell(pairs: Sequence[UnitPair], numbers: Sequence[int], options: Sequence[Option]) -> int:
    """The first of some pairs that each of the options fills otherwise: where there is one head, all heads one after
    the other are no other layout."""
    for number in numbers:
        paths = {atom.held.path for atom in _raw_atoms(pairs[number])}
        filled = [[entry for entry in option.entries if entry.path in paths] for option in options]
        if all(one != other for one, other in itertools.combinations(filled, 2)):
            return number
    return numbers[0]


def called_around(tree: ModuleTree, place: str) -> str:
    """The innermost module around a place that is called: a list is not."""
    nodes = tree.by_path()
    while place and (place not in nodes or nodes[place].layer in _LISTS):
        place = place.rpartition(".")[0]
    return place


def _which_is_which(pairs: Sequence[UnitPair], one: OpenSet) -> Question:
    """The members of a set in every order; of a large one, two exchanged or all reversed."""
    count = len(one.raw)
    usual = tuple(range(count))
    orders: list[tuple[int, ...]] = list(itertools.permutations(usual))
    if count > _MOST_PERMUTED:
        swaps = [tuple(b if p == a else a if p == b else p for p in usual) for a, b in itertools.combinations(usual, 2)]
        orders = [usual, usual[::-1], *swaps]
    tensors = {_identity(atom) for block in one.blocks for part in block for n in part for atom in _raw_atoms(pairs[n])}
    beside = [n for n, pair in enumerate(pairs) if any(_identity(atom) in tensors for atom in _raw_atoms(pair))]
    options = []
    for order in orders:
        changed = permuted(pairs, one, order)
        entries = tuple(entry for _, _, entry in compose([changed.get(n, pairs[n]) for n in beside]))
        label = ", ".join(f"{raw} from {one.base[source]}" for raw, source in zip(one.raw, order, strict=True))
        options.append(Option(label, entries, changed))
    where = f" in {one.around}" if one.around else ""
    first = [pairs[number] for part in one.blocks[0] for number in part]
    return Question(f"which of {', '.join(one.raw)}{where} is which", tuple(options), _place(pairs, first))


def _place(pairs: Sequence[UnitPair], first: Sequence[UnitPair]) -> tuple[str, str]:
    """Where in base and in raw something is made of what some pairs make."""
    base, raw = ([unit.path for pair in first for unit in side(pair)] for side in (_base, _raw))
    alone = [len({id(unit) for unit in side(first[0])}) == 1 and _one_layer(first) for side in (_base, _raw)]
    return (
        _around(base, [u.path for pair in pairs for u in pair.base], alone[0]),
        _around(raw, [u.path for pair in pairs for u in pair.raw], alone[1]),
    )


def _base(pair: UnitPair) -> tuple[Unit, ...]:
    return pair.base


def _raw(pair: UnitPair) -> tuple[Unit, ...]:
    return pair.raw


def _one_layer(first: Sequence[UnitPair]) -> bool:
    """Whether all but the first go along with it."""
    return all(pair.along for pair in first[1:])


def _around(paths: Sequence[str], every: Sequence[str], one: bool) -> str:
    """The module around some paths; around ``one`` layer, a kernel with its norm say, the one around its wrapper."""
    parts = [path.split(".")[:-1] for path in paths]
    alike = itertools.takewhile(lambda names: len(set(names)) == 1, zip(*parts, strict=False))
    place = ".".join(names[0] for names in alike)
    while one and place and all(path in paths for path in every if path.startswith(f"{place}.")):  # a wrapper
        place = place.rpartition(".")[0]
    return place


def _raw_atoms(pair: UnitPair) -> list[Atom]:
    return [atom for unit in pair.raw for atom in unit.atoms.values()]


def _identity(atom: Atom) -> int:
    return atom.held.spec.identity


def _open(pair: UnitPair) -> str:
    if pair.stacked:
        (stack,), members = (pair.base, pair.raw) if len(pair.base) == 1 else (pair.raw, pair.base)
        count, *sizes = stack.main.shape
        return "orientation" if len(sizes) == 2 and sizes[0] == sizes[1] and len(members) == count else ""
    if pair.numbered or (pair.added and len(_parts(pair)) > _MOST_ADDED):
        return ""
    if len(pair.base) > 1 or len(pair.raw) > 1:
        return "order of parts"
    one, two = pair.base[0].main, pair.raw[0].main
    square = len(one.shape) == len(two.shape) == 2 and one.shape[0] == one.shape[1]
    either = merges(one.shape, two.shape) and turned_merge(one.shape, two.shape) is not None
    return "orientation" if either or (square and UNKNOWN in (one.axes, two.axes)) else ""


def _starred(path: str) -> str:
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", path)


def _turned(family: Mapping[int, UnitPair]) -> list[Option]:
    as_they_are = tuple(entry for _, _, entry in compose(list(family.values())))
    shapes = {atom.held.path: atom.shape for pair in family.values() for u in pair.base for atom in u.atoms.values()}
    other = tuple(_other_way(entry, shapes) for entry in as_they_are)
    return [Option("as stored", as_they_are), Option("turned", other)]


def _other_way(entry: WeightEntry, shapes: Mapping[str, tuple[int, ...]]) -> WeightEntry:
    """The same with inputs and outputs in each other's place; what is no matrix stays as it is."""
    whole = not entry.stack and all(source.index is None for source in entry.sources)
    orders = [turned_merge(shapes[source.path], entry.shape) if whole else None for source in entry.sources]
    if len(entry.shape) == 2 or entry.stack:
        orders = [order or (1, 0) for order in orders]
    if None in orders:
        return entry
    turned = (replace(s, permute=None if s.permute else order) for s, order in zip(entry.sources, orders, strict=True))
    return replace(entry, sources=tuple(turned))


def _orders(family: Mapping[int, UnitPair], base: LiveTree, raw: LiveTree) -> list[Option]:
    """Parts one after the other, head by head, or element by element; in another order where no name tells it."""
    first = next(iter(family.values()))
    parts = _parts(first)
    equal = len({part.main.shape for part in parts}) == 1
    orders = [tuple(range(len(parts)))]
    if first.added or (equal and not _order_told(first)):  # nobody says in which order inputs are put together
        orders = list(itertools.permutations(orders[0]))
    whole = [] if first.added else family.values()
    interleavings = _in_common([_interleavings(_parts(pair), pair, base, raw) for pair in whole])
    names = [part_role(part) or part.path.rpartition(".")[2] for part in parts]
    options: list[Option] = []
    for order in orders:
        changed = {number: _reordered(pair, order) for number, pair in family.items()}
        plain = tuple(entry for _, _, entry in compose(list(changed.values())))
        label = " then ".join(names[place] for place in order)
        options.append(Option(label, plain, changed))
        places = [{entry.path for _, _, entry in compose([pair])} for pair in changed.values()]
        for heads, how in interleavings:
            of_path = {path: own for own, paths in zip(heads, places, strict=True) for path in paths}
            entries = tuple(_by_head(entry, of_path[entry.path], len(first.base) > 1) for entry in plain)
            options.append(Option(how if order == orders[0] else f"{label}, {how}", entries, changed))
    return sorted(options, key=lambda option: "by" in option.label.split())


def _order_told(pair: UnitPair) -> bool:
    """Both the parts' names and the fused one's say in which order they come."""
    whole = pair.raw[0] if len(pair.base) > 1 else pair.base[0]
    parts = _parts(pair)
    return in_part_order(parts, whole)[1] and tells_order(whole)


def _interleavings(
    parts: Sequence[Unit], pair: UnitPair, base: LiveTree, raw: LiveTree
) -> dict[tuple[str, int], tuple[int, str]]:
    """Numbers of heads to interleave by, with what to call it: as the attention says, or such as are usual; by what is
    the same for blocks of other widths."""
    whole = pair.raw[0] if len(pair.base) > 1 else pair.base[0]
    sizes = [out_size(part.main, whole.main) for part in parts]
    least = math.gcd(*sizes)
    equal = min(sizes) == max(sizes)
    attends = len(parts) == 3  # query, key and value, whatever they are called
    heads = (not equal and _said(pair, base, raw, _KEY_HEADS)) or _said(pair, base, raw, _HEADS)
    said = {n for n in heads if least % n == 0}
    usual = [n for n in _USUAL_HEADS if least % n == 0 and n < least] if attends and not said else []
    found = {("said", place): (count, f"head by head, {count} heads") for place, count in enumerate(sorted(said))}
    found |= {("usual", count): (count, f"head by head, {count} heads") for count in usual}
    if equal and least not in said:
        found["elements", 0] = (least, "element by element")
    return found


def _in_common(found: Sequence[dict[tuple[str, int], tuple[int, str]]]) -> list[tuple[tuple[int, ...], str]]:
    """What is possible in every block: its number of heads in each, and what it is called in the first that has
    several."""
    shared = [sort for sort in (found[0] if found else {}) if all(sort in other for other in found)]
    several = {sort: next((one[sort][1] for one in found if one[sort][0] > 1), "") for sort in shared}
    return [(tuple(one[sort][0] for one in found), several[sort]) for sort in shared if several[sort]]


def _by_head(entry: WeightEntry, heads: int, fuses: bool) -> WeightEntry:
    """The same from, or into, a layout in which each head has all parts."""
    if heads == 1:
        return entry
    if fuses:
        return replace(entry, heads=heads)
    return replace(entry, sources=tuple(_of_each_head(source, heads) for source in entry.sources))


def _of_each_head(source: WeightSource, heads: int) -> WeightSource:
    if source.start is None or source.stop is None:
        return source
    stretch = (heads, source.start // heads, source.stop // heads)
    return replace(source, start=None, stop=None, interleaved=stretch)


def _parts(pair: UnitPair) -> tuple[Unit, ...]:
    return pair.base if len(pair.base) > 1 else pair.raw


def _reordered(pair: UnitPair, order: Sequence[int]) -> UnitPair:
    parts = tuple(_parts(pair)[place] for place in order)
    return replace(pair, base=parts) if len(pair.base) > 1 else replace(pair, raw=parts)


def _said(pair: UnitPair, base: LiveTree, raw: LiveTree, names: Sequence[str]) -> list[int]:
    """The number of heads, as the attention around the parts knows it."""
    for live, unit in ((raw, pair.raw[0]), (base, pair.base[0])):
        node = unit.node
        while node.parent >= 0:
            node = live.tree.nodes[node.parent]
            module = live.modules[node.index]
            for name in names:
                value = getattr(module, name, None)
                if isinstance(value, int) and value > 0:
                    return [value]
    return []
