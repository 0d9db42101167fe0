"""Whether several units make up one: one after the other along what they return, or along what they are given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from padiff.weights.fitting import first_role, numbered_alike, parent, part_role, return_as_much, turned_stack
from padiff.weights.units import UNKNOWN, Atom, Unit
from padiff.weights.words import likeness, words_of

OUTPUT = frozenset({"out", "output"})
"""Names of what comes after attention."""
ATTENTION = frozenset({"query", "key", "value"})
FEED_FORWARD = frozenset({"fc1", "fc2", "gate"})
MOST_JOINED = 4
MOST_ADDED = 16
CHANNELWISE = frozenset({"batch_norm", "instance_norm", "group_norm", "prelu"})
"""Layers that do to each channel, or to each group of them, what no other channel has a part in."""


def joins(parts: Sequence[Unit], whole: Unit) -> bool:
    """Whether the parts, one after the other along their outputs, make up the whole."""
    main = whole.main
    if len(main.shape) == 1:
        told = len({part_role(part) for part in parts} - {""}) == len(parts)
        flat = all(len(part.main.shape) == 1 for part in parts)
        return (told or channelwise(parts, whole)) and flat and _adds_up([part.main for part in parts], main)
    if any(part.required != whole.required for part in parts) or _a_table_among_others(parts, whole):
        return False
    if len(main.shape) != 2 or any(len(part.main.shape) != 2 for part in parts) or whole.layer == "embedding":
        return _kernels_join(parts, whole)
    if main.axes == UNKNOWN:
        return any(_sums(parts, shape) for shape in (main.shape, main.shape[::-1]))
    return _sums(parts, main.neutral)


def channelwise(parts: Sequence[Unit], whole: Unit) -> bool:
    """Whether all of them are layers of one sort that may be cut between channels."""
    return whole.layer in CHANNELWISE and all(part.layer == whole.layer for part in parts)


def _a_table_among_others(parts: Sequence[Unit], whole: Unit) -> bool:
    layers = {whole.layer, *(part.layer for part in parts)}
    return "embedding" in layers and len(layers) > 1


def _sums(parts: Sequence[Unit], whole: tuple[int, ...]) -> bool:
    return all(p.main.neutral[1] == whole[1] for p in parts) and sum(p.main.neutral[0] for p in parts) == whole[0]


def _kernels_join(parts: Sequence[Unit], whole: Unit) -> bool:
    """Kernels, tables and tensors of more axes: every tensor of theirs adds up along its outputs."""
    if not whole.main.shape or not return_as_much(parts, whole):
        return False
    known = whole.made and all(part.made for part in parts)
    if not known and any(part.strides != whole.strides for part in parts):
        return False
    return all(_adds_up([part.atoms[role] for part in parts], whole.atoms[role]) for role in whole.required)


def _adds_up(parts: Sequence[Atom], whole: Atom) -> bool:
    *parts, whole = lettered([*parts, whole])
    cuts = [cut_of(part, whole) for part in parts]
    full = cut_of(whole, whole)
    if full is None or any(cut is None or cut[1] != full[1] for cut in cuts):
        ranks = {len(part.shape) for part in (*parts, whole)}
        return len(ranks) > 1 and _matrices_join(parts, whole)
    return sum(cut[0] for cut in cuts if cut is not None) == full[0]


def lettered(atoms: Sequence[Atom]) -> list[Atom]:
    """Parts and their whole, somewhere among them, as they are; or, if nobody names the axes of any, with ``o`` for the
    first axis along which they add up."""
    shapes = [atom.shape for atom in atoms]
    rank = len(shapes[0])
    if rank < 2 or any(atom.axes or len(atom.shape) != rank for atom in atoms):
        return list(atoms)
    axis = _adding_up(shapes)
    if axis is not None:
        return [replace(atom, axes=_letters(rank, axis)) for atom in atoms]
    whole = max(range(len(shapes)), key=lambda place: math.prod(shapes[place]))  # may lie the other way round
    axis = _adding_up([turned_stack(one) if place == whole else one for place, one in enumerate(shapes)])
    if axis is None or rank != 3:
        return list(atoms)
    parts, turned = _letters(rank, axis), "".join(turned_stack(tuple(_letters(rank, axis))))
    return [replace(atom, axes=turned if place == whole else parts) for place, atom in enumerate(atoms)]


def _adding_up(shapes: Sequence[tuple[int, ...]]) -> int | None:
    """The first axis along which all but one make up that one."""
    for axis in range(len(shapes[0])):
        lengths = [shape[axis] for shape in shapes]
        if len({(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}) == 1 and 2 * max(lengths) == sum(lengths):
            return axis
    return None


def _letters(rank: int, axis: int) -> str:
    return "".join("o" if place == axis else str(place) for place in range(rank))


def _matrices_join(parts: Sequence[Atom], whole: Atom) -> bool:
    """A kernel over single places, or over all that there is, against linear layers."""
    wide, narrow = whole.matrix, [part.matrix for part in parts]
    if wide is None or any(one is None or one[1] != wide[1] for one in narrow):
        return False
    return sum(one[0] for one in narrow if one is not None) == wide[0]


def cut_of(atom: Atom, like: Atom) -> tuple[int, tuple[int, ...]] | None:
    """How long a tensor is along its outputs, and its other lengths by letter; one whose axes nobody names lies as the
    other does."""
    axes = atom.axes if len(atom.axes) == len(atom.shape) else like.axes
    axes = axes if len(axes) == len(atom.shape) and UNKNOWN not in axes else ""
    if not atom.shape:
        return None
    out = axes.index("o") if "o" in axes else 0
    rest = [(axes[place] if axes else str(place), size) for place, size in enumerate(atom.shape) if place != out]
    return atom.shape[out], tuple(size for _, size in sorted(rest))


def out_size(part: Atom, whole: Atom) -> int:
    """How much of the whole's output axis a part takes."""
    if len(part.shape) == 2 and part.axes == UNKNOWN:
        return part.shape[0]
    cut = cut_of(part, whole)
    return 1 if cut is None else cut[0]


def adds(parts: Sequence[Unit], whole: Unit) -> bool:
    """Whether the parts, one after the other along their inputs, make up the whole: what each returns is added up."""
    main, layers = whole.main, {whole.layer, *(part.layer for part in parts)}
    if in_axis(main) is None or ("embedding" in layers and len(layers) > 1):
        return False
    if any(part.required != whole.required or len(part.main.shape) != len(main.shape) for part in parts):
        return False
    wide, narrow = part_of(main, main), [part_of(part.main, main) for part in parts]
    return all(rest == wide[0] for rest, _ in narrow) and sum(into for _, into in narrow) == wide[1]


def in_axis(atom: Atom) -> int | None:
    """The axis of a matrix or kernel along which it takes its inputs; of a table, its rows."""
    known = len(atom.axes) == len(atom.shape) > 1
    return next((atom.axes.index(letter) for letter in "in" if known and letter in atom.axes), None)


def part_of(part: Atom, whole: Atom) -> tuple[tuple[int, ...], int]:
    """All lengths but that of the inputs, and that; one whose layout is not known lies as the whole does."""
    axes = part.axes if in_axis(part) is not None else whole.axes
    sizes = dict(zip(axes, part.shape, strict=True))
    into = "i" if "i" in sizes else "n"
    return tuple(size for letter, size in sorted(sizes.items()) if letter != into), sizes[into]


def join_score(parts: Sequence[Unit], whole: Unit) -> float:
    alike = max(likeness(parent(part), parent(whole)) for part in parts)
    together = 1.0 if len({parent(part) for part in parts}) == 1 else 0.5 if _cousins(parts) else -2.0
    told = 2.0 * alike + together + _roles_told(parts) + numbered_alike(parts[0], whole)
    return 0.0 if _follows_another(parts) or _says_otherwise(parts, whole) else len(parts) * 3.5 + told


def _follows_another(parts: Sequence[Unit]) -> bool:
    """Whether one is given what attention makes of the others: nobody does these at once."""
    roles = [first_role(part) for part in parts]  # kv_proj is no output
    names = [words_of(part.label.rpartition(".")[2]) for part in parts]
    last = [not role and bool(OUTPUT.intersection(words)) for role, words in zip(roles, names, strict=True)]
    return any(last) and any(role in ATTENTION for role in roles)


def _says_otherwise(parts: Sequence[Unit], whole: Unit) -> bool:
    """Whether a unit's name says that it is no whole of query, key or value: a feed-forward's layer; or of these alone,
    where there is something else among its parts."""
    roles = {first_role(part) for part in parts}
    if not roles & ATTENTION:
        return False
    name = words_of(whole.label.rpartition(".")[2])
    return bool(FEED_FORWARD.intersection(name)) or ("qkv" in name and not roles <= ATTENTION)


def _cousins(parts: Sequence[Unit]) -> bool:
    """Of one name each, in modules beside each other: ``left.conv`` and ``right.conv``."""
    return len({(tuple(part.label.split(".")[:-2]), part.label.rpartition(".")[2]) for part in parts}) == 1


def _roles_told(parts: Sequence[Unit]) -> float:
    """Parts that name themselves query, key and value, or gate and up, are meant to be joined."""
    return 1.0 if len({role for part in parts if (role := first_role(part))}) == len(parts) else 0.0
