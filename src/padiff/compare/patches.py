"""A picture on one side, and its patches as rows on the other: a convolution whose kernel is as wide as its stride, and a
linear layer that does the same."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from padiff.records import Array

_MOST_SPATIAL = 3


def in_patches(base: Array, shape: tuple[int, ...]) -> Iterator[tuple[str, Array]]:
    """Base's elements in raw's shape, where one of them is a picture ``[n, c, h, w]`` and the other rows of its patches
    ``[n, rows, c * p * q]``, the channels of a patch first or last."""
    for cut in _cuts(base.shape, shape):
        whole, order = _steps(base.shape, cut)
        for kind, axes in zip(("", ", channels last"), order, strict=True):
            patches = base.reshape(whole).transpose(axes).reshape(shape)
            yield f"base cut into patches of {list(cut)}{kind}", patches
    for cut in _cuts(shape, base.shape):
        whole, order = _steps(shape, cut)
        for kind, axes in zip(("", ", channels last"), order, strict=True):
            parts = base.reshape([whole[axis] for axis in axes])
            back = [axes.index(axis) for axis in range(len(axes))]
            yield f"base put together from patches of {list(cut)}{kind}", parts.transpose(back).reshape(shape)


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


def _steps(picture: tuple[int, ...], cut: tuple[int, ...]) -> tuple[list[int], tuple[list[int], list[int]]]:
    """The picture with its axes parted, and the two orders of these axes that make rows of patches."""
    count = len(cut)
    whole = [*picture[:2], *(size for held, part in zip(picture[2:], cut, strict=True) for size in (held // part, part))]
    places, inside = [2 + 2 * axis for axis in range(count)], [3 + 2 * axis for axis in range(count)]
    return whole, ([0, *places, 1, *inside], [0, *places, *inside, 1])
