"""From paired units to entries: which stretch of which tensor of base, turned how, goes where in raw."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from padiff.records import WeightEntry, WeightSource
from padiff.weights.fitting import UnitPair, merges, turned_merge, turned_stacks
from padiff.weights.joining import in_axis, lettered, out_size, part_of
from padiff.weights.rows import Held
from padiff.weights.units import UNKNOWN, Atom


@dataclass(frozen=True)
class Filled:
    """What goes into one part of one tensor of raw."""

    atom: Atom
    sources: tuple[WeightSource, ...]
    base: Held
    pair: UnitPair
    stack: int = 0
    role: str = "weight"


def compose(pairs: Sequence[UnitPair]) -> list[tuple[Held, Held, WeightEntry]]:
    """(a tensor of base, the tensor of raw, its entry) for all that the pairs fill; incomplete tensors are left out."""
    by_tensor: dict[int, list[Filled]] = defaultdict(list)
    for pair in pairs:
        for filled in _stacked(pair) if pair.stacked else _plain(pair):
            by_tensor[filled.atom.held.spec.identity].append(filled)
    entries = []
    for parts in by_tensor.values():
        parts = _whole(parts)
        if parts:
            entries.append(_entry(parts))
    return entries


def _plain(pair: UnitPair) -> list[Filled]:
    roles = [role for role in pair.raw[0].atoms if all(role in unit.atoms for unit in (*pair.base, *pair.raw))]
    if len(pair.base) == len(pair.raw) == 1:  # a table computed on one side in another size is left as it is
        base_atoms, raw_atoms = pair.base[0].atoms, pair.raw[0].atoms
        roles = [r for r in roles if math.prod(base_atoms[r].shape) == math.prod(raw_atoms[r].shape)]
    found: list[Filled] = []
    if pair.added:
        return _added(pair)
    for role in roles:
        base = [unit.atoms[role] for unit in pair.base]
        raw = [unit.atoms[role] for unit in pair.raw]
        if len(base) + len(raw) > 2:
            named = lettered([*base, *raw])
            base, raw = named[: len(base)], named[len(base) :]
        if not base[0].shape:  # a count, not cut
            found += [Filled(atom, (_source(base[0], atom),), base[0].held, pair, role=role) for atom in raw]
            continue
        if len(raw) == 1:
            turned = [_source(atom, raw[0], joined=len(base) > 1) for atom in base]
            found.append(Filled(raw[0], tuple(turned), base[0].held, pair, role=role))
            continue
        start = 0
        for atom in raw:
            size = out_size(atom, base[0])
            source = _source(base[0], atom, start=start, size=size)
            found.append(Filled(atom, (source,), base[0].held, pair, role=role))
            start += size
    return found


def _added(pair: UnitPair) -> list[Filled]:
    """Parts that are cut along their inputs."""
    base, raw = [unit.main for unit in pair.base], [unit.main for unit in pair.raw]
    if len(raw) == 1:
        turned = tuple(WeightSource(one.held.path, _by_letters(one.axes, raw[0].axes)) for one in base)
        return [Filled(raw[0], turned, base[0].held, pair)]
    whole, start = base[0], 0
    found: list[Filled] = []
    for atom in raw:
        size = part_of(atom, whole)[1]
        permute = _by_letters(whole.axes, atom.axes)
        source = WeightSource(whole.held.path, permute, in_axis(whole) or 0, start, start + size)
        found.append(Filled(atom, (source,), whole.held, pair))
        start += size
    return found


def _source(base: Atom, raw: Atom, *, joined: bool = False, start: int | None = None, size: int = 0) -> WeightSource:
    permute = turn(base, raw, joined or start is not None)
    first = base.start if base.parts > 1 else None
    last = base.start + base.size if base.parts > 1 else None
    if start is not None:
        first, last = (first or 0) + start, (first or 0) + start + size
    return WeightSource(base.held.path, permute, base.out_axis, first, last)


def turn(base: Atom, raw: Atom, partial: bool) -> tuple[int, ...] | None:
    """The permutation that brings base's matrix into raw's layout; None where none is needed."""
    matrices = base.matrix == raw.matrix or (partial and None not in (base.matrix, raw.matrix))
    if len(base.shape) != len(raw.shape) and matrices and raw.matrix is not None:
        return _flattened(base.axes, raw.axes)
    if len(base.shape) != len(raw.shape) and not partial and not merges(base.shape, raw.shape):
        return turned_merge(base.shape, raw.shape)
    if turned_stacks(base, raw) and not partial:
        return 0, 2, 1
    if len(base.shape) != 2 or len(raw.shape) != 2:
        return _by_letters(base.axes, raw.axes) if len(base.axes) == len(raw.axes) == len(base.shape) else None
    known = UNKNOWN not in (base.axes, raw.axes) and bool(base.axes) and bool(raw.axes)
    if known:
        order = _by_letters(base.axes, raw.axes)
        return None if not partial and order is not None and _fit_unturned(base, raw) else order
    if partial:
        return None if base.shape[1 - base.out_axis] == raw.shape[1 - base.out_axis] else (1, 0)
    return None if base.shape == raw.shape else (1, 0)


def _fit_unturned(base: Atom, raw: Atom) -> bool:
    """Whether two matrices fit as they are and not the way their layers store them: a layer whose weight is used the
    other way round, as heads that are tied to an embedding do."""
    return base.parts == raw.parts == 1 and base.shape == raw.shape != raw.shape[::-1]


def _flattened(one: str, other: str) -> tuple[int, ...] | None:
    """A kernel laid out as a matrix, or a matrix as a kernel: outputs first or last, as the other has them."""
    rest = [place for place, letter in enumerate(one) if letter != "o"]
    order = (*rest, one.index("o")) if other.endswith("o") else (one.index("o"), *rest)
    return None if order == tuple(sorted(order)) else order


def _by_letters(one: str, other: str) -> tuple[int, ...] | None:
    if not one or sorted(one) != sorted(other):
        return None
    order = tuple(one.index(letter) for letter in other)
    return None if order == tuple(sorted(order)) else order


def _stacked(pair: UnitPair) -> list[Filled]:
    if len(pair.raw) == 1:  # a list in base, a stack in raw
        stack = pair.raw[0].main
        count = stack.shape[0]
        sources = tuple(
            WeightSource(unit.main.held.path, _fit_matrix(unit.main, stack, len(pair.base) // count))
            for unit in pair.base
        )
        return [Filled(stack, sources, pair.base[0].main.held, pair, stack=count)]
    stack = pair.base[0].main
    count = stack.shape[0]
    each = len(pair.raw) // count
    found = []
    for place, unit in enumerate(pair.raw):
        found.append(
            Filled(unit.main, (_from_stack(stack, unit.main, place // each, place % each, each),), stack.held, pair)
        )
    return found


def _fit_matrix(matrix: Atom, stack: Atom, each: int) -> tuple[int, ...] | None:
    """Whether a matrix is turned to lie in its slice of the stack."""
    if len(matrix.shape) == 1:
        return None
    out, into = matrix.neutral
    wanted = stack.shape[1:]
    as_it_is = "oi" if matrix.axes != "io" else "io"
    if wanted == (out * each, into) and out * each != into:
        target = "oi"
    elif wanted == (into, out * each) and out * each != into:
        target = "io"
    else:
        target = as_it_is
    return None if target == as_it_is else (1, 0)


def _from_stack(stack: Atom, matrix: Atom, index: int, part: int, each: int) -> WeightSource:
    if len(matrix.shape) == 1:
        size = matrix.shape[0]
        start, stop = (None, None) if each == 1 else (part * size, (part + 1) * size)
        return WeightSource(stack.held.path, None, 0, start, stop, index)
    out, into = matrix.neutral
    rows, columns = stack.shape[1:]
    out_first = (rows, columns) == (out * each, into)
    layout = "oi" if out_first else "io"
    axis = 0 if out_first else 1
    start, stop = (None, None) if each == 1 else (part * out, (part + 1) * out)
    permute = None if layout == (matrix.axes if matrix.axes in ("oi", "io") else layout) else (1, 0)
    return WeightSource(stack.held.path, permute, axis, start, stop, index)


def _whole(parts: list[Filled]) -> list[Filled]:
    """The parts of one tensor in order, one each; empty when some are missing."""
    by_start: dict[int, Filled] = {}
    for part in parts:
        by_start.setdefault(part.atom.start, part)
    ordered = [by_start[start] for start in sorted(by_start)]
    return ordered if len(ordered) == ordered[0].atom.parts else []


def _entry(parts: list[Filled]) -> tuple[Held, Held, WeightEntry]:
    first = parts[0]
    raw = first.atom.held
    entry = WeightEntry(
        path=raw.path,
        role=first.base.role,
        sources=tuple(source for part in parts for source in part.sources),
        shape=raw.spec.shape,
        axis=_join_axis(first),
        stack=first.stack,
        evidence=first.pair.evidence,
        confidence=min(part.pair.confidence for part in parts),
        written=not raw.spec.computed,
        alternatives=tuple(unit.atoms[first.role].held.path for unit in first.pair.others if first.role in unit.atoms),
    )
    return first.base, raw, entry


def _join_axis(first: Filled) -> int:
    """The axis of raw's tensor, or of a stack's slice, that parts are joined along."""
    atom = first.atom
    if first.pair.added:
        return in_axis(atom) or 0
    if first.stack:
        if len(atom.shape) == 2:
            return 0
        each = len(first.sources) // first.stack
        out, into = first.pair.base[0].main.neutral
        return 0 if atom.shape[1:] == (out * each, into) else 1
    if len(atom.shape) == 2 and atom.axes == UNKNOWN and len(first.pair.base) > 1:
        into = first.pair.base[0].main.neutral[1]
        return 0 if atom.shape[1] == into else 1
    if len(first.pair.base) > 1 and len(atom.shape) > 1:
        rank = len(first.pair.base[0].atoms[first.role].shape)
        if rank != len(atom.shape):  # turned to outputs first or last, and not yet in raw's shape
            return 0 if atom.out_axis == 0 else rank - 1
    return atom.out_axis if len(atom.shape) > 1 else 0
