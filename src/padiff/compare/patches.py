"""A picture on one side, and its patches as rows on the other: a convolution whose kernel is as wide as its stride, and
a linear layer that does the same."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from padiff.records import Array

_MOST_SPATIAL = 3


def in_patches(base: Array, shape: tuple[int, ...]) -> Iterator[tuple[str, Array]]:
    """Base's elements in raw's shape, where one of them is a picture ``[n, c, h, w]`` and the other rows of its patches
    ``[n, rows, c * p * q]``, each laid out as a kernel is."""
    for cut in _cuts(base.shape, shape):
        whole, order = _steps(base.shape, cut)
        yield f"base cut into patches of {list(cut)}", base.reshape(whole).transpose(order).reshape(shape)
    for cut in _cuts(shape, base.shape):
        whole, order = _steps(shape, cut)
        back = [order.index(axis) for axis in range(len(order))]
        parts = base.reshape([whole[axis] for axis in order])
        yield f"base put together from patches of {list(cut)}", parts.transpose(back).reshape(shape)


def _cuts(picture: tuple[int, ...], rows: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """How large the patches may be."""
    spatial = picture[2:]
    if not 1 <= len(spatial) <= _MOST_SPATIAL or len(rows) < 2 or not math.prod(picture):
        return
    if rows[-1] % picture[1] or rows[-1] == picture[1] or math.prod(picture) != math.prod(rows):
        return
    in_one = rows[-1] // picture[1]
    for cut in itertools.product(*([size for size in range(1, held + 1) if not held % size] for held in spatial)):
        if math.prod(cut) == in_one:
            yield cut


def _steps(picture: tuple[int, ...], cut: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """The picture with its axes parted, and the order of these axes that makes rows of patches."""
    whole = list(picture[:2])
    for held, part in zip(picture[2:], cut, strict=True):
        whole += [held // part, part]
    count = len(whole)
    return whole, [0, *range(2, count, 2), 1, *range(3, count, 2)]
