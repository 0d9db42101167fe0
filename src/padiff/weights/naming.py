"""Whether names tell the members of two equal sets apart: by words, abbreviations, numbers and places.

    base   gate_proj   up_proj            base   input_layernorm   post_attention_layernorm
    raw    wg          wu                 raw    n1                n2

What all members of one side have in common says nothing; what is left of each name does.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, permutations

from padiff.weights.words import canonical, synonyms_of

_BEFORE = frozenset({"before", "pre", "input", "in", "begin", "start"})
_AFTER = frozenset({"after", "post", "output", "end"})
_ORDINALS = {"first": 1.0, "second": 3.0, "third": 5.0, "final": 9.0, "last": 9.0}
_PARTS_OF_A_BLOCK = {"cross": 2.0, "attention": 1.0, "mlp": 3.0}
"""Where a block's attentions and its feed-forward stand, among its norms."""
_LONGEST_ABBREVIATION = 4
_MOST_NUMBERS = 4


@dataclass(frozen=True)
class _Name:
    words: frozenset[str]
    """In their common form."""
    spelt: frozenset[str]
    """As they are written."""
    numbers: tuple[int, ...]
    listed: tuple[bool, ...] = ()
    """Of each number whether it is a place in a list, or part of a word."""


def told(
    base: Sequence[str], raw: Sequence[str], *, norms: bool = False, idle: frozenset[str] = frozenset()
) -> dict[int, int]:
    """Places in raw to the places in base that names pair them with; empty where they say nothing.

    ``base`` and ``raw`` are equally long; a last pair is told by the others. Words that are ``idle`` don't count.
    """
    ours, theirs = _distinct(base, idle), _distinct(raw, idle)
    found = _all_equal(ours, theirs)
    if not found and norms:
        found = dict(enumerate(_ranked(ours, theirs, norms)))
    found = found or _by_words(ours, theirs)
    taken = set(found.values())
    left = [place for place in range(len(ours)) if place not in taken]
    right = [place for place in range(len(theirs)) if place not in found]
    if len(left) == 1 and found:
        return {**found, right[0]: left[0]}
    ranked = _ranked([ours[i] for i in left], [theirs[j] for j in right], norms) if len(left) > 1 else []
    found |= {right[place]: left[other] for place, other in enumerate(ranked)}
    return found or _abbreviated(ours, theirs)


def said_by_all(kinds: Sequence[str]) -> frozenset[str]:
    """Words that are in the names of all of some classes."""
    return frozenset.intersection(*(_read(re.sub(r"[123][dD]$", "", kind)).words for kind in kinds))


def either_way(base: Sequence[str], raw: Sequence[str]) -> frozenset[str]:
    """Words that say nothing where only one side speaks of up and down: a feed-forward goes up first, an adapter and
    a squeeze down."""
    says = [any(_read(path).spelt & {"up", "down"} for path in paths) for paths in (base, raw)]
    return frozenset({canonical("up"), canonical("down")}) if says[0] != says[1] else frozenset()


def _distinct(paths: Sequence[str], idle: frozenset[str]) -> list[_Name]:
    """What each name says that not all of its set say."""
    read = [_read(path) for path in paths]
    words = idle | frozenset.intersection(*(name.words for name in read))
    spelt = frozenset.intersection(*(name.spelt for name in read))
    return [replace(name, words=name.words - words, spelt=name.spelt - spelt) for name in read]


def _read(path: str) -> _Name:
    words: set[str] = set()
    spelt: set[str] = set()
    numbers: list[int] = []
    listed: list[bool] = []
    for component in path.split("."):
        text = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", component).lower()
        joined = re.sub(r"[^a-z0-9]", "", text)
        whole = canonical(joined) or canonical(joined.rstrip("0123456789"))
        if whole:
            words.add(whole)
        tokens = re.findall(r"[a-z0-9]+", text)
        if not whole and any(canonical(one + other) == "cross" for one, other in pairwise(tokens)):
            words.add("cross")  # encoder_attn_layer_norm
        for token in tokens:
            stem = token.rstrip("0123456789")
            if stem != token:
                numbers.append(int(token[len(stem) :]))
                listed.append(component.isdigit())
            if stem:
                spelt.add(stem)
                if not whole:
                    words.add(canonical(token) or canonical(stem) or stem)
    return _Name(frozenset(words), frozenset(spelt), tuple(numbers), tuple(listed))


def _all_equal(ours: Sequence[_Name], theirs: Sequence[_Name]) -> dict[int, int]:
    """Every name of one side is a name of the other."""
    places = {(name.words, name.numbers): place for place, name in enumerate(ours)}
    keys = [(name.words, name.numbers) for name in theirs]
    if len(places) == len(ours) and set(keys) == places.keys():
        return {place: places[key] for place, key in enumerate(keys)}
    return {}


def _by_words(ours: Sequence[_Name], theirs: Sequence[_Name]) -> dict[int, int]:
    """Words, and sets of words, that one member of each side has and no other."""
    owners: list[dict[Hashable, list[int]]] = []
    for names in (ours, theirs):
        having: dict[Hashable, list[int]] = defaultdict(list)
        for place, name in enumerate(names):
            keys: list[Hashable] = [*name.words, name.words]
            for key in keys:
                having[key].append(place)
        owners.append(having)
    votes: dict[int, set[int]] = defaultdict(set)
    for key, places in owners[0].items():
        others = owners[1].get(key, [])
        if key and len(places) == len(others) == 1:
            votes[others[0]].add(places[0])
    clear = {theirs_place: next(iter(found)) for theirs_place, found in votes.items() if len(found) == 1}
    return clear if len(set(clear.values())) == len(clear) == len(votes) else {}


def _abbreviated(ours: Sequence[_Name], theirs: Sequence[_Name]) -> dict[int, int]:
    """Each name is short for one of the other side, and for no other: all of them, or it is chance."""
    if len(ours) > 16:
        return {}
    found: dict[int, int] = {}
    for place, name in enumerate(theirs):
        fitting = [i for i, other in enumerate(ours) if _short_for(name, other) or _short_for(other, name)]
        if len(fitting) != 1:
            return {}
        found[place] = fitting[0]
    return found if len(set(found.values())) == len(ours) else {}


def _short_for(one: _Name, other: _Name) -> bool:
    texts = {text for word in other.words for text in (word, *synonyms_of(word))} | other.spelt
    for word in one.spelt:
        for short in {word, word[1:] if len(word) == 2 and word[0] == "w" else word}:
            if len(short) <= _LONGEST_ABBREVIATION and any(text.startswith(short) for text in texts):
                return True
    return False


def _ranked(ours: Sequence[_Name], theirs: Sequence[_Name], norms: bool) -> list[int]:
    """Both sides are numbered, or say before and after: the first with the first, wherever counting begins."""
    one, two = _ordinals(ours, norms), _ordinals(theirs, norms)
    if not one or not two:
        return []
    two = _in_order_of(one, two)
    first = sorted(range(len(one)), key=one.__getitem__)
    ranks = {place: rank for rank, place in enumerate(sorted(range(len(two)), key=two.__getitem__))}
    return [first[ranks[place]] for place in range(len(two))]


def _in_order_of(ours: Sequence[tuple[float, ...]], theirs: Sequence[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """Of names with several numbers, their numbers in our order: ``blocks.3.norm1`` is ``n1_3`` to other authors."""
    width = len(ours[0])
    if width != len(theirs[0]) or not 1 < width <= _MOST_NUMBERS:
        return list(theirs)
    one, two = ([set(column) for column in zip(*names, strict=True)] for names in (ours, theirs))

    def agreeing(order: Sequence[int]) -> tuple[int, int]:
        pairs = [(mine, two[column]) for mine, column in zip(one, order, strict=True)]
        return sum(len(a) == len(b) for a, b in pairs), sum(a == b for a, b in pairs)

    order = max(permutations(range(width)), key=agreeing)  # of equals the first, which is as it was
    return [tuple(name[column] for column in order) for name in theirs]


def _ordinals(names: Sequence[_Name], norms: bool) -> list[tuple[float, ...]]:
    """What orders the names; empty where not all say it, or two say the same."""
    letters = [next(iter(name.spelt)) if len(name.spelt) == 1 else "" for name in names]
    if sorted(letters) == [chr(ord("a") + place) for place in range(len(names))]:
        return [(float(ord(letter)),) for letter in letters]
    places = [_place(name, norms) for name in names]
    if norms and len(names) == 2:  # attention.output.norm and output.norm
        places = [place or (() if name.words else (2.0,)) for place, name in zip(places, names, strict=True)]
    counted = [tuple(map(float, name.numbers)) for name in names]
    if len({name.listed for name in names}) > 1:  # rgb1, rgbs.0, rgbs.1: each counts for itself
        counted = []
    for ordinals in (counted, places):
        if (
            ordinals
            and all(ordinals)
            and len(set(ordinals)) == len(ordinals)
            and len({len(one) for one in ordinals}) == 1
        ):
            return ordinals
    return []


def _place(name: _Name, norms: bool) -> tuple[float, ...]:
    """Before and after, first and second; of a block's norms, what each stands before or after."""
    ordinal = next((_ORDINALS[word] for word in name.spelt if word in _ORDINALS), None)
    around = next((place for word, place in _PARTS_OF_A_BLOCK.items() if norms and word in name.words), None)
    if name.spelt & _BEFORE:
        return ((around or 1.0) - 0.5,)
    if name.spelt & _AFTER:
        return ((around + 0.5) if around else 4.0,)
    if around is not None:
        return (around,)
    return () if ordinal is None else (ordinal,)
