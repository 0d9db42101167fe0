"""A picture of the error of one tensor: how large it is, where it lies, and the first elements that differ."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from padiff.records import Array, Mismatch, Picture

BINS = 32
CELLS = 16
MOST_FIRST = 10
STRETCH = 1 << 16
"""Elements looked through at a time."""
MOST_KEPT = 1 << 20
"""Elements of memory that are kept for the next picture."""
STEP_BITS = 12
"""Sizes of errors are told apart in up to two to the power of this many steps."""
FEW = 1 << 13
"""Elements up to which each has its own logarithm."""
EXACT_POWERS = 22
"""Up to here powers of ten are exact."""
NARROW = 0.01
"""Errors that lie closer together than this, in powers of ten, are one bin."""


class _Scratch(threading.local):
    """Memory that is kept: fresh pages cost more than filling them. Each thread has its own."""

    def __init__(self) -> None:
        self._kept: dict[Any, Array] = {}

    def of(self, size: int, kind: Any) -> Array:
        if size > MOST_KEPT:
            return np.empty(size, kind)
        found = self._kept.get(kind)
        if found is None or found.size < size:
            found = self._kept[kind] = np.empty(size, kind)
        return found[:size]


_scratch = _Scratch()


def picture_of(base: Array | None, raw: Array | None) -> Picture | None:
    """The picture of two arrays of one shape; None where there is nothing to draw."""
    if base is None or raw is None or base.shape != raw.shape or not base.size or not _numeric(base, raw):
        return None
    with np.errstate(all="ignore"):
        error = _error(base, raw)
        low, high, counts = _histogram(error)
        equal = int(error.size - np.count_nonzero(error))
        shaped = error.reshape(base.shape) if base.ndim else error.reshape(1)
        axes = _axes(shaped)
        cells = _cells(shaped, axes)
    return Picture(
        size=base.size,
        equal=equal,
        nonfinite=base.size - equal - sum(counts),
        low=low,
        high=high,
        counts=counts,
        axes=axes,
        extent=tuple(shaped.shape[axis] for axis in axes),
        cells=cells,
        first=_first(base, raw, error),
    )


def _numeric(base: Array, raw: Array) -> bool:
    return all(array.dtype.kind in "biufcV" and array.dtype.fields is None for array in (base, raw))


def _error(base: Array, raw: Array) -> Array:
    """The absolute error of each element, flat; inf where it is no number and the two are not the same.

    It is overwritten by the next."""
    kind = np.result_type(*(_wide(array) for array in (base, raw)))
    one, other = (array.reshape(-1).astype(kind, copy=False) for array in (base, raw))
    if kind.kind == "c":
        error: Array = np.abs(one - other)
    else:
        error = np.subtract(one, other, out=_scratch.of(one.size, kind))
        np.abs(error, out=error)
    if not math.isfinite(error.max()):
        odd = ~np.isfinite(error)
        same = (one[odd] == other[odd]) | (np.isnan(one[odd]) & np.isnan(other[odd]))
        error[odd] = np.where(same, 0.0, np.inf)
    return error


def _wide(array: Array) -> Any:
    """The type to subtract in: single precision for what is narrower, double for integers, which are exact in it."""
    if array.dtype.kind in "biu":
        return np.float64
    if array.dtype.kind == "c":
        return array.dtype
    return np.float64 if array.dtype.itemsize >= 8 else np.float32


def _histogram(error: Array) -> tuple[float, float, tuple[int, ...]]:
    """How many errors there are of each size, on a scale of powers of ten; what is equal or no number is left out.

    The bits of positive floats grow with them: whole numbers are counted, and only then are logarithms taken, of so
    many steps that a bin's edge is off by a hundredth of it at most."""
    most = float(error.max())
    if most == math.inf:
        error = error[error < math.inf]
        most = float(error.max(initial=0.0))
    if most == 0.0:
        return 0.0, 0.0, ()
    if error.size <= FEW:
        return _histogram_of_few(error[error > 0])
    bits = error.view(f"u{error.dtype.itemsize}")
    scratch = np.empty(min(STRETCH, bits.size), bits.dtype)
    first = min(int(stretch.min()) for stretch in _from_one(bits, scratch))
    steps = int(error.dtype.type(most).view(bits.dtype)) - first
    shift = max(0, steps.bit_length() - STEP_BITS)
    counted = np.zeros((steps >> shift) + 2, np.int64)
    """Zeros are the last."""
    for stretch in _from_one(bits, scratch):
        stretch -= bits.dtype.type(first)
        stretch >>= bits.dtype.type(shift)
        np.minimum(stretch, len(counted) - 1, out=stretch)
        counted += np.bincount(stretch.astype(np.intp), minlength=len(counted))
    starts = (np.arange(len(counted) - 1) << shift).astype(bits.dtype) + bits.dtype.type(first + 1)
    logs = np.log10(starts.view(error.dtype).astype(np.float64))
    low, high = float(logs[0]), math.log10(most)
    return _binned(logs, low, high, counted[:-1])


def _histogram_of_few(error: Array) -> tuple[float, float, tuple[int, ...]]:
    logs = np.log10(error)
    return _binned(logs, float(logs.min()), float(logs.max()), None)


def _binned(logs: Array, low: float, high: float, counted: Array | None) -> tuple[float, float, tuple[int, ...]]:
    """So many of each logarithm, or one of each."""
    if high - low < NARROW:
        return low, high, (len(logs) if counted is None else int(counted.sum()),)
    bins = np.clip((logs - low) * (BINS / (high - low)), 0, BINS - 1).astype(np.intp)
    return low, high, tuple(np.bincount(bins, counted, BINS).astype(np.int64).tolist())


def _from_one(bits: Array, scratch: Array) -> Iterator[Array]:
    """Stretch by stretch, with the least float above zero as 0, and zero behind all others.

    Fresh memory for the whole would cost more than all the arithmetic."""
    for start in range(0, bits.size, STRETCH):
        stretch = bits[start : start + STRETCH]
        yield np.subtract(stretch, bits.dtype.type(1), out=scratch[: stretch.size])


def _axes(error: Array) -> tuple[int, ...]:
    """The two axes along which the error changes most; of equals, the last."""
    wide = [axis for axis in range(error.ndim) if error.shape[axis] > 1]
    if len(wide) <= 2:
        return tuple(wide) or (error.ndim - 1,)
    changes: dict[int, float] = {}
    rest = error  # the largest over all axes before the one that is looked at: what is left lies together
    for axis in range(error.ndim):
        if error.shape[axis] > 1:
            changes[axis] = _change(rest.reshape(error.shape[axis], -1).max(axis=1))
        rest = rest.max(axis=0)
    ranked = sorted(wide, key=lambda axis: (changes[axis], axis), reverse=True)
    return tuple(sorted(ranked[:2]))


def _change(along: Array) -> float:
    """How much the largest error differs from place to place along an axis, relative to the largest of all."""
    peak = float(along.max())
    if not math.isfinite(peak):
        finite = along[np.isfinite(along)]
        along = np.where(np.isfinite(along), along, finite.max(initial=1.0))
        peak = float(along.max())
    if peak <= 0:
        return 0.0
    apart = along / peak
    apart -= apart.sum() / apart.size
    return math.sqrt(float(np.dot(apart, apart)) / apart.size)


def _cells(error: Array, axes: tuple[int, ...]) -> tuple[tuple[float, ...], ...]:
    """From the first axis to the last, so that what is left lies together."""
    found = error.reshape(1, *error.shape)
    for axis in range(error.ndim):
        if axis not in axes:
            found = found.max(axis=1)
            continue
        if error.shape[axis] > CELLS:
            found = _gathered(found)
        found = found.reshape(-1, *found.shape[2:])
    shape = tuple(min(error.shape[axis], CELLS) for axis in axes)
    return tuple(map(tuple, _short(np.atleast_2d(found.reshape(shape))).tolist()))


def _gathered(values: Array) -> Array:
    """The largest of each of so many neighbours along the second axis that cells are left."""
    length = values.shape[1]
    if length % CELLS == 0:
        parts = values.reshape(values.shape[0], CELLS, length // CELLS, *values.shape[2:])
        largest: Array = parts.max(axis=2)
        return largest
    edges = [cell * length // CELLS for cell in range(CELLS + 1)]
    return np.stack([values[:, start:end].max(axis=1) for start, end in itertools.pairwise(edges)], axis=1)


def _short(values: Array) -> Array:
    """Rounded to three digits; what such a number is divided by is a power of ten, so that it prints as short."""
    values = values.astype(np.float64)
    some = (values > 0) & (values < math.inf)
    digits = 2 - np.floor(np.log10(np.where(some, values, 1.0))).astype(np.int64)
    exact = np.abs(digits) <= EXACT_POWERS
    power = 10.0 ** np.where(exact, np.abs(digits), 0)
    short = np.where(digits > 0, np.rint(values * power) / power, np.rint(values / power) * power)
    if not exact.all():
        short[~exact] = [float(f"{value:.3g}") for value in values[~exact].tolist()]
    found: Array = np.where(some, short, values)
    return found


def _first(base: Array, raw: Array, error: Array) -> tuple[Mismatch, ...]:
    """The first elements whose error is not small beside the largest."""
    peak = float(error.max())
    bound = peak * 1e-2 if math.isfinite(peak) else 0.0
    found: list[int] = []
    start, length = 0, 64
    while start < error.size and len(found) < MOST_FIRST:
        here = np.flatnonzero(error[start : start + length] > bound)[: MOST_FIRST - len(found)]
        found += (here + start).tolist()
        start, length = start + length, min(2 * length, STRETCH)
    if not base.ndim:
        return tuple(map(Mismatch, [()] * len(found), _plain(base.reshape(1)), _plain(raw.reshape(1))))
    places = np.unravel_index(np.array(found, np.intp), base.shape)
    indices = zip(*(axis.tolist() for axis in places), strict=True)
    return tuple(map(Mismatch, indices, _plain(base[places]), _plain(raw[places])))


def _plain(values: Array) -> list[Any]:
    if values.dtype.kind == "V":  # narrow floats, which Python knows nothing of
        return [float(value) for value in values]
    return [str(value) for value in values] if values.dtype.kind == "c" else list(values.tolist())
