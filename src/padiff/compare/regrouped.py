"""Axes that both sides merge, each others: frames of all films in one batch here, their places in one axis there."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import lru_cache

from padiff.records import Array

_MOST_PARTS = 6
_MOST_OPTIONS = 24

_Piece = tuple[int, int, int]
"""An axis of base, the axis of raw it goes to, and how long this part of it is."""


def regrouped(base: Array, shape: tuple[int, ...]) -> Iterator[tuple[str, Array]]:
    """Base's elements in raw's shape, where an axis has to be parted and others merged to get there."""
    plain, wanted = (tuple(size for size in one if size != 1) for one in (base.shape, shape))
    if math.prod(plain) != math.prod(wanted):
        return
    for parted, order in _ways(plain, wanted):
        change = f"base parted to {list(parted)}, its axes then permuted to {list(order)}"
        yield change, base.reshape(parted).transpose(order).reshape(shape)


@lru_cache(maxsize=1024)
def _ways(plain: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """Into what base is parted, and the order of the parts that makes raw's axes once neighbours are merged; with one
    part more than either has axes, as with fewer it is merging or parting alone."""
    count = max(len(plain), len(wanted)) + 1
    if count > _MOST_PARTS or not plain or not wanted:
        return ()
    found = (_steps(pieces, len(plain)) for pieces in _parts(plain, wanted, 0, count))
    return tuple(itertools.islice(itertools.chain.from_iterable(found), _MOST_OPTIONS))


def _parts(left: tuple[int, ...], wanted: tuple[int, ...], place: int, count: int) -> Iterator[tuple[_Piece, ...]]:
    """All ways to fill raw's axes from ``place`` on with just so many parts of what is left of base's."""
    if place == len(wanted):
        if not count and all(size == 1 for size in left):
            yield ()
        return
    for taken in _filling(left, wanted[place], count - (len(wanted) - place - 1)):
        rest = list(left)
        for axis, size in taken:
            rest[axis] //= size
        for later in _parts(tuple(rest), wanted, place + 1, count - len(taken)):
            yield (*((axis, place, size) for axis, size in taken), *later)


def _filling(
    left: tuple[int, ...], size: int, most: int, besides: tuple[int, ...] = ()
) -> Iterator[list[tuple[int, int]]]:
    """Parts of base's axes, each of another, that are ``size`` long together; those in base's order come first."""
    if size == 1:
        yield []
        return
    if most <= 0:
        return
    after = [axis for axis in range(len(left)) if not besides or axis > besides[-1]]
    before = [axis for axis in range(len(left)) if axis not in after and axis not in besides]
    for axis in after + before:
        shared = math.gcd(left[axis], size)
        for part in range(shared, 1, -1):
            if not shared % part:
                for later in _filling(left, size // part, most - 1, (*besides, axis)):
                    yield [(axis, part), *later]


def _steps(pieces: tuple[_Piece, ...], count: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The parts in base's order, and where each of raw's is among them; those that lie as raw's axes do come first."""
    held = [[number for number, piece in enumerate(pieces) if piece[0] == axis] for axis in range(count)]
    for orders in itertools.product(*(itertools.permutations(one) for one in held)):
        lying = [number for one in orders for number in one]
        yield tuple(pieces[number][2] for number in lying), tuple(lying.index(number) for number in range(len(pieces)))
