"""Products of quantised factors: on a grid of eight bits, scaled by the largest of a tensor or of each output."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import ml_dtypes
import numpy as np

from padiff.diagnose.causes.trial import Trial, gap
from padiff.records import Array, Cause

ROWS, COLUMNS = 64, 128
"""Of a product that are computed again, some dozen times: enough to tell one grid from another."""

Grid = Callable[[Array, int | None, Array], Array]
"""Puts some numbers of an array on a grid whose scale is the whole array's; along an axis each stretch has its own."""


def _largest(array: Array, axis: int | None) -> Array:
    found: Array = np.abs(array).max(axis=axis, keepdims=True)
    return np.where(found > 0, found, 1.0)


def _for(scales: Array, some: Array) -> Array:
    """Of scales, one for all or one for each stretch, those of the first rows and columns of an array."""
    found: Array = scales[tuple(slice(0, length) for length in some.shape)]
    return found


def _float8(name: str) -> Grid:
    dtype = np.dtype(getattr(ml_dtypes, name))
    most = float(ml_dtypes.finfo(dtype).max)

    def grid(array: Array, axis: int | None, some: Array) -> Array:
        scale = _for(most / _largest(array, axis), some)
        return (some * scale).astype(dtype).astype(np.float64) / scale

    return grid


def _int8(steps: float) -> Grid:
    def grid(array: Array, axis: int | None, some: Array) -> Array:
        scale = _for(_largest(array, axis) / steps, some)
        return np.clip(np.rint(some / scale), -128, 127) * scale

    return grid


def _between(steps: int) -> Grid:
    """From the least to the greatest, zero among them."""

    def grid(array: Array, axis: int | None, some: Array) -> Array:
        least = _for(np.minimum(array.min(axis=axis, keepdims=True), 0), some)
        most = _for(np.maximum(array.max(axis=axis, keepdims=True), 0), some)
        scale = np.where(most > least, (most - least) / steps, 1.0)
        zero = np.rint(-least / scale)
        found: Array = (np.clip(np.rint(some / scale) + zero, 0, steps) - zero) * scale
        return found

    return grid


E4M3, E5M2, INT8 = _float8("float8_e4m3fn"), _float8("float8_e5m2"), _int8(127)
WEIGHTS: tuple[tuple[str, Grid], ...] = (
    ("int8", INT8),
    ("int8", _int8(127.5)),  # as torch's observers have it
    ("float8_e4m3", E4M3),
    ("float8_e5m2", E5M2),
)
INPUTS: dict[str, tuple[tuple[str, Grid], ...]] = {
    "int8": (("int8", INT8), ("uint8", _between(255)), ("seven bits", _between(127))),
    "float8_e4m3": (("float8_e4m3", E4M3), ("float8_e5m2", E5M2)),
    "float8_e5m2": (("float8_e5m2", E5M2),),
}
"""What inputs may be put on beside weights of a kind."""


def quantised(trial: Trial) -> Iterator[Cause]:
    """Raw's values are the product of quantised weights, and of quantised inputs or of inputs as they are."""
    weight = next((w for n, w in trial.base_weights.items() if w.ndim == 2 and n == "weight"), None)
    if weight is None or trial.expected.ndim < 2:
        return
    for name, x in trial.at_hand.items():
        for turned in (weight.T, weight):
            if not x.ndim or x.shape[-1] != turned.shape[0] or (*x.shape[:-1], turned.shape[1]) != trial.expected.shape:
                continue
            found = _found(trial, x.astype(np.float64), turned.astype(np.float64))
            if found is not None:
                yield Cause("quantised", f"raw's values are the product of {name} and the weight, {found}", 0.95)
                return


def _found(trial: Trial, x: Array, weight: Array) -> str | None:
    width = weight.shape[1]
    rows = x.reshape(-1, x.shape[-1])
    first = rows[:ROWS]
    base, raw = (t.reshape(-1, width)[:ROWS, :COLUMNS] for t in (trial.expected, trial.found))
    bias = next((b for b in trial.base_weights.values() if b.shape == (width,)), np.zeros(width))[:COLUMNS]
    before = gap(base, raw)
    if gap(base, first @ weight[:, :COLUMNS] + bias) > 0.3 * before:
        return None
    for kind, grid in WEIGHTS:
        for axis, how in ((None, "scaled as a whole"), (0, "scaled for each output")):
            on_grid = grid(weight, axis, weight[:, :COLUMNS])
            if gap(raw, first @ on_grid + bias) <= 0.3 * before:
                return f"the weight as {kind}, {how}"
            for other, of_inputs in INPUTS[kind]:
                for place, words in ((None, "as a whole"), (-1, "row by row")):
                    if gap(raw, of_inputs(rows, place, first) @ on_grid + bias) <= 0.3 * before:
                        return f"the weight as {kind}, {how}, and the input as {other}, scaled {words}"
    return None
