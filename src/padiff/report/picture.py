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
"""Elements looked through at a time."""
EXACT_POWERS = 22
"""Up to here powers of ten are exact."""
NARROW = 0.01
"""Errors that lie closer together than this, in powers of ten, are one bin."""


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


def _histogram(error: Array) -> tuple[float, float, tuple[int, ...]]:
    """How many errors there are of each size, on a scale of powers of ten; what is equal or no number is left out.

    Stretch by stretch: fresh memory for the whole would cost more than all the arithmetic."""
    least, most = math.inf, 0.0
    for start in range(0, error.size, STRETCH):
        stretch = _counted(error[start : start + STRETCH])
        if stretch.size:
            least, most = min(least, float(stretch.min())), max(most, float(stretch.max()))
    if most == 0.0:
        return 0.0, 0.0, ()
    low, high = (float(np.log10(error.dtype.type(edge))) for edge in (least, most))
    one = high - low < NARROW
    found = np.zeros(1 if one else BINS, np.int64)
    for start in range(0, error.size, STRETCH):
        stretch = _counted(error[start : start + STRETCH])
        if one:
            found += stretch.size
            continue
        logs = np.log10(stretch)
        logs -= low
        logs *= BINS / (high - low)
        found += np.bincount(np.clip(logs, 0, BINS - 1, out=logs).astype(np.intp), minlength=BINS)
    return low, high, tuple(found.tolist())


def _counted(errors: Array) -> Array:
    """Those above zero and below infinity."""
    if errors.min() > 0 and errors.max() < math.inf:
        return errors
    kept: Array = errors[(errors > 0) & (errors < math.inf)]
    return kept


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
    found = error.max(axis=tuple(axis for axis in range(error.ndim) if axis not in axes))
    for axis in range(found.ndim):
        length = found.shape[axis]
        if length > CELLS:
            starts = np.arange(CELLS) * length // CELLS
            found = np.maximum.reduceat(found, starts, axis=axis)
    return tuple(map(tuple, _short(np.atleast_2d(found)).tolist()))


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
    for start in range(0, error.size, STRETCH):
        here = np.flatnonzero(error[start : start + STRETCH] > bound)[: MOST_FIRST - len(found)]
        found += (here + start).tolist()
        if len(found) == MOST_FIRST:
            break
    if not base.ndim:
        return tuple(map(Mismatch, [()] * len(found), _plain(base.reshape(1)), _plain(raw.reshape(1))))
    places = np.unravel_index(np.array(found, np.intp), base.shape)
    indices = zip(*(axis.tolist() for axis in places), strict=True)
    return tuple(map(Mismatch, indices, _plain(base[places]), _plain(raw[places])))


def _plain(values: Array) -> list[Any]:
    if values.dtype.kind == "V":  # narrow floats, which Python knows nothing of
        return [float(value) for value in values]
    return [str(value) for value in values] if values.dtype.kind == "c" else list(values.tolist())
