"""A picture of the error of one tensor: how large it is, where it lies, and the first elements that differ."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from padiff.records import Array, Mismatch, Picture

BINS = 32
CELLS = 16
MOST_FIRST = 10
STRETCH = 1 << 16
"""Elements looked through at a time for the first that differ."""
NARROW = 0.01
"""Errors that lie closer together than this, in powers of ten, are one bin."""


def picture_of(base: Array | None, raw: Array | None) -> Picture | None:
    """The picture of two arrays of one shape; None where there is nothing to draw."""
    if base is None or raw is None or base.shape != raw.shape or not base.size or not _numeric(base, raw):
        return None
    with np.errstate(all="ignore"):
        error = _error(base, raw)
        finite = error[error > 0]
        if not np.isfinite(finite).all():
            finite = finite[np.isfinite(finite)]
        low, high, counts = _histogram(finite)
        equal = int(error.size - np.count_nonzero(error))
        shaped = error.reshape(base.shape) if base.ndim else error.reshape(1)
        axes = _axes(shaped)
        cells = _cells(shaped, axes)
    return Picture(
        size=base.size,
        equal=equal,
        nonfinite=base.size - equal - finite.size,
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
    """The absolute error of each element, flat; inf where it is no number and the two are not the same."""
    kind = np.result_type(*(_wide(array) for array in (base, raw)))
    one, other = (array.reshape(-1).astype(kind, copy=False) for array in (base, raw))
    error: Array = np.abs(one - other)
    odd = ~np.isfinite(error)
    if odd.any():
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


def _histogram(errors: Array) -> tuple[float, float, tuple[int, ...]]:
    if not errors.size:
        return 0.0, 0.0, ()
    logs = np.log10(errors)
    low, high = float(logs.min()), float(logs.max())
    if high - low < NARROW:
        return low, high, (int(errors.size),)
    logs -= low
    logs *= BINS / (high - low)
    counts = np.bincount(np.minimum(logs.astype(np.int32), BINS - 1), minlength=BINS)
    return low, high, tuple(int(count) for count in counts)


def _axes(error: Array) -> tuple[int, ...]:
    """The two axes along which the error changes most; of equals, the last."""
    wide = [axis for axis in range(error.ndim) if error.shape[axis] > 1]
    if len(wide) <= 2:
        return tuple(wide) or (error.ndim - 1,)
    changes: dict[int, float] = {}
    rest = error  # the largest over all axes behind the one that is looked at
    for axis in reversed(range(error.ndim)):
        if error.shape[axis] > 1:
            changes[axis] = _change(rest.reshape(-1, error.shape[axis]).max(axis=0))
        rest = rest.max(axis=-1)
    ranked = sorted(wide, key=lambda axis: (changes[axis], axis), reverse=True)
    return tuple(sorted(ranked[:2]))


def _change(along: Array) -> float:
    """How much the largest error differs from place to place along an axis, relative to the largest of all."""
    along = np.where(np.isfinite(along), along, np.nanmax(along[np.isfinite(along)], initial=1.0))
    peak = float(along.max())
    return float(along.std()) / peak if peak > 0 else 0.0


def _cells(error: Array, axes: tuple[int, ...]) -> tuple[tuple[float, ...], ...]:
    found = error.max(axis=tuple(axis for axis in range(error.ndim) if axis not in axes))
    for axis in range(found.ndim):
        length = found.shape[axis]
        if length > CELLS:
            starts = np.arange(CELLS) * length // CELLS
            found = np.maximum.reduceat(found, starts, axis=axis)
    return tuple(tuple(_short(cell) for cell in row) for row in np.atleast_2d(found))


def _short(value: Any) -> float:
    return float(f"{float(value):.3g}") if math.isfinite(value) else math.inf


def _first(base: Array, raw: Array, error: Array) -> tuple[Mismatch, ...]:
    """The first elements whose error is not small beside the largest."""
    peak = float(error.max())
    bound = peak * 1e-2 if math.isfinite(peak) else 0.0
    found: list[Mismatch] = []
    for start in range(0, error.size, STRETCH):
        for flat in np.flatnonzero(error[start : start + STRETCH] > bound)[: MOST_FIRST - len(found)]:
            index = tuple(int(place) for place in np.unravel_index(start + int(flat), base.shape))
            found.append(Mismatch(index, _plain(base[index]), _plain(raw[index])))
        if len(found) == MOST_FIRST:
            break
    return tuple(found)


def _plain(value: Any) -> Any:
    if value.dtype.kind == "V":  # a narrow float, which Python knows nothing of
        return float(value)
    return str(value) if value.dtype.kind == "c" else value.item()
