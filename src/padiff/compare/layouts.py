"""The same elements in another arrangement: axes of length one, in another order, merged, or repeated."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

import numpy as np

from padiff.compare.arrays import compare_arrays
from padiff.compare.measure import rms_gap
from padiff.compare.patches import in_patches
from padiff.compare.regrouped import regrouped
from padiff.records import Array, Outcome, Tolerance, merged_axes

_MOST_AXES = 5
_ALWAYS_THERE = 1
"""One arrangement of axes that is none: all of them merged, and parted anew."""
_MOST_REPEATED = 6
"""Axes of a tensor that is looked at for repeats along any of them."""
_MOST_PLACES = 81
"""Where a tensor is looked for in a larger one: a frame of up to eight on either of two axes."""


def compare_in_any_layout(
    base: Array, raw: Array, tolerance: Tolerance, *, gradients: bool = False, loosely: bool = False
) -> Outcome:
    """Compare; where the shapes differ, look for an arrangement that agrees, and state it.

    ``loosely``: shapes that some arrangement brings together are no difference; the values under the nearest are.
    """
    return compare_arranged(base, raw, tolerance, gradients=gradients, loosely=loosely)[0]


def agree_in_any_layout(base: Array, raw: Array, tolerance: Tolerance, *, gradients: bool = False) -> bool:
    """Whether they agree, for who asks nothing else."""
    if base.shape == raw.shape:
        return compare_arrays(base, raw, tolerance, brief=True).agrees
    return compare_arranged(base, raw, tolerance, gradients=gradients)[0].agrees


def compare_arranged(
    base: Array,
    raw: Array,
    tolerance: Tolerance,
    *,
    gradients: bool = False,
    loosely: bool = False,
    known: Collection[str] = (),
) -> tuple[Outcome, Array | None]:
    """The same as ``compare_in_any_layout``, and base's elements as raw arranges them; None where nothing fits.

    ``known`` are arrangements in which others of these shapes agree: of those that don't, one of them is the nearest.
    """
    outcome = compare_arrays(base, raw, tolerance)
    if outcome.reason != "shape" or not base.size or not raw.size:
        return outcome, base if base.shape == raw.shape else None
    options: Iterable[tuple[str, Array, Array]] = _repeated(base, raw, gradients)
    if base.size == raw.size:
        options = ((change, arranged, raw) for change, arranged in _arrangements(base, raw.shape))
    nearest: tuple[tuple[bool, float], str, Array, Array] | None = None
    for change, left, right in options:
        found = compare_arrays(left, right, tolerance, brief=True)
        if found.agrees:
            return _stated(found, change), _fitting(left, raw)
        if found.numbers:
            far = change not in known, found.numbers.rmse
            nearest = (far, change, left, right) if nearest is None or far < nearest[0] else nearest
    if base.size != raw.size and _has_part(base, raw, tolerance):
        return outcome, None
    if nearest is None:
        return outcome, None
    _, change, left, right = nearest
    if loosely:
        outcome = _stated(compare_arrays(left, right, tolerance), change)
    return outcome, _fitting(left, raw)


def _stated(outcome: Outcome, change: str) -> Outcome:
    return replace(outcome, message=f"{outcome.message}; {change}", layout=change)


def _fitting(arranged: Array, raw: Array) -> Array | None:
    """What may take raw's place: base's, or one of base's where it holds the same again and again."""
    if arranged.shape == raw.shape:
        return arranged
    wanted = (1,) * (arranged.ndim - raw.ndim) + raw.shape
    if len(wanted) != arranged.ndim or any(
        size not in (1, held) for size, held in zip(wanted, arranged.shape, strict=True)
    ):
        return None
    once = arranged[tuple(slice(0, size) for size in wanted)]
    return once.reshape(raw.shape) if np.array_equal(np.broadcast_to(once, arranged.shape), arranged) else None


def arranged_alike(base: Array, raw: Array, other: Array) -> Array | None:
    """``other``, which is of base's shape, in the arrangement that brings base nearest to raw; None where none does.

    Where one side repeats what the other keeps once, sums over ``other`` times the one and the other are the same."""
    if base.size != raw.size:
        return _shared_out(other, raw.shape)
    options = [arranged for _, arranged in _arrangements(base, raw.shape)]
    if base.shape == raw.shape or not options:
        return other if base.shape == raw.shape else None
    gaps = [rms_gap(arranged, raw) for arranged in options]
    return list(_arrangements(other, raw.shape))[gaps.index(min(gaps))][1]


def _shared_out(other: Array, shape: tuple[int, ...]) -> Array | None:
    """The same, where the numbers of elements differ."""
    count = max(other.ndim, len(shape))
    held, wanted = ((1,) * (count - len(one)) + tuple(one) for one in (other.shape, shape))
    axes = tuple(axis for axis in range(count) if held[axis] != wanted[axis])
    if all(held[axis] == 1 for axis in axes):
        shared: Array = np.broadcast_to(other.reshape(held) / math.prod(wanted[axis] for axis in axes), wanted)
        return shared.reshape(shape)
    if all(wanted[axis] == 1 for axis in axes):
        summed: Array = other.reshape(held).sum(axis=axes, keepdims=True)
        return summed.reshape(shape)
    return None


def _repeated(base: Array, raw: Array, gradients: bool) -> list[tuple[str, Array, Array]]:
    """One side keeps once what the other repeats (a position table per batch); gradients add up over the repeats."""
    if base.ndim != raw.ndim:  # a leading axis that one side leaves out
        count = max(base.ndim, raw.ndim)
        base, raw = (array.reshape((1,) * (count - array.ndim) + array.shape) for array in (base, raw))
    axes = [axis for axis, (one, two) in enumerate(zip(base.shape, raw.shape, strict=True)) if one != two]
    for side, small, large in (("raw", base, raw), ("base", raw, base)):
        if all(small.shape[axis] == 1 for axis in axes):
            change = f"{side} repeats it along {axes}"
            if gradients:
                summed = large.sum(axis=tuple(axes), keepdims=True).astype(large.dtype)
                return [(change, small, summed) if side == "raw" else (change, summed, small)]
            wide = np.broadcast_to(small, large.shape)
            return [(change, wide, large) if side == "raw" else (change, large, wide)]
    return []


def _has_part(base: Array, raw: Array, tolerance: Tolerance) -> bool:
    """Whether one side holds the first or the last of what the other does: no arrangement, whatever fits."""
    if base.ndim != raw.ndim:
        return False
    axes = [axis for axis in range(base.ndim) if base.shape[axis] != raw.shape[axis]]
    if len(axes) != 1:
        return False
    size = min(base.shape[axes[0]], raw.shape[axes[0]])
    for start in (-size, 0):
        cut = (slice(None),) * axes[0] + (slice(start, start + size or None),)
        if compare_arrays(base[cut], raw[cut], tolerance, brief=True).agrees:
            return True
    return False


def spread(one: Array, other: Array) -> bool:
    """Whether one is the other, repeated along axes that that lacks: directions for each ray, or for each of its
    points."""
    small, large = (one, other) if one.ndim < other.ndim else (other, one)
    if not small.ndim < large.ndim <= _MOST_REPEATED or not small.size or small.dtype.kind != large.dtype.kind:
        return False
    for axes in itertools.combinations(range(large.ndim), large.ndim - small.ndim):
        once = large[tuple(slice(0, 1) if axis in axes else slice(None) for axis in range(large.ndim))]
        if once.size != small.size or tuple(np.delete(large.shape, axes)) != small.shape or once.size == large.size:
            continue
        if np.array_equal(np.broadcast_to(once, large.shape), large):
            return bool(
                np.allclose(once.reshape(small.shape), small, rtol=1e-5, atol=1e-5 * float(np.abs(small).max()))
            )
    return False


def framed(one: Array, other: Array) -> bool:
    """Whether one is the other with a frame of one number around it, or on some sides of it."""
    small, large = (one, other) if one.size < other.size else (other, one)
    if small.ndim != large.ndim or not small.size or any(a > b for a, b in zip(small.shape, large.shape, strict=True)):
        return False
    spare = [b - a for a, b in zip(small.shape, large.shape, strict=True)]
    if math.prod(room + 1 for room in spare) > _MOST_PLACES:
        return False
    near = 1e-5 * float(np.abs(small).max())
    for start in itertools.product(*(range(room + 1) for room in spare)):
        held = tuple(slice(a, a + size) for a, size in zip(start, small.shape, strict=True))
        if float(np.abs(large[held] - small).max()) <= near:
            around = np.ones(large.shape, bool)
            around[held] = False
            return bool(around.any()) and float(np.ptp(large[around])) == 0.0
    return False


def _arrangements(base: Array, shape: tuple[int, ...]) -> Iterator[tuple[str, Array]]:
    """What base's elements look like in raw's shape, the likeliest first."""
    plainly = list(_by_axes(base, shape))
    yield from plainly
    yield from in_patches(base, shape)
    if len(plainly) <= _ALWAYS_THERE:
        yield from regrouped(base, shape)


def _by_axes(base: Array, shape: tuple[int, ...]) -> Iterator[tuple[str, Array]]:
    """The same as far as its axes are merged, parted or put in another order."""
    plain = [size for size in base.shape if size != 1]
    wanted = [size for size in shape if size != 1]
    if plain == wanted:
        yield f"base reshaped from {list(base.shape)}", base.reshape(shape)
        return
    squeezed = base.reshape(plain)
    if len(plain) == len(wanted):
        for order in _orders(plain, wanted):
            yield f"base with axes permuted to {list(order)}", squeezed.transpose(order).reshape(shape)
        return
    yield f"base reshaped from {list(base.shape)}", base.reshape(shape)
    if len(plain) > len(wanted):  # a picture in one model, rows of places in the other
        for order in _orders(plain, wanted):
            change = f"base with axes permuted to {list(order)}, reshaped from {list(base.shape)}"
            yield change, squeezed.transpose(order).reshape(shape)
    else:
        for order in _orders(wanted, plain):
            back = [order.index(axis) for axis in range(len(order))]
            change = f"base reshaped from {list(base.shape)}, its axes then permuted to {back}"
            yield change, squeezed.reshape([wanted[axis] for axis in order]).transpose(back).reshape(shape)
    if len(plain) >= 2:
        swapped = squeezed.swapaxes(0, 1)
        yield f"base with its first axes swapped, reshaped from {list(base.shape)}", swapped.reshape(shape)


def _orders(axes: list[int], wanted: list[int]) -> Iterator[tuple[int, ...]]:
    """Orders of the axes in which they are the wanted ones, or are once neighbours are merged."""
    if len(axes) > _MOST_AXES:
        return
    for order in itertools.permutations(range(len(axes))):
        if list(order) != sorted(order) and merged_axes([axes[axis] for axis in order], wanted) == len(axes):
            yield order
