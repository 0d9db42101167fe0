"""The one line that says what differs, where, by how much, and how much was allowed."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from padiff.compare.examine import Details
from padiff.records import Array, Numbers, Tolerance

_ERRORS = {"mean": "mean error", "auto": "rms error"}


_spelt: Callable[[Tolerance], str] = functools.lru_cache(maxsize=64)(str)  # said once for every tensor


def within(numbers: Numbers, tolerance: Tolerance, error: float | None, allowed: float) -> str:
    largest = f"largest absolute difference {numbers.max_abs:.1e}"
    if error is None:
        return f"{largest}, within the bound everywhere ({_spelt(tolerance)})"
    return f"{largest}, {_ERRORS[tolerance.mode]} {error:.1e}, allowed {allowed:.1e} ({_spelt(tolerance)})"


def different(
    base: Array,
    raw: Array,
    numbers: Numbers,
    details: Details,
    tolerance: Tolerance,
    error: float | None,
    allowed: float,
) -> str:
    many = f"{numbers.mismatched} of {numbers.size} values differ"
    largest = f"largest absolute difference {numbers.max_abs:.1e}{_at(base, raw, details.worst)}"
    if error is not None:
        over = f"{_ERRORS[tolerance.mode]} {error:.1e}"
    elif details.over != details.worst:
        over = f"furthest over its bound{_at(base, raw, details.over)}"
    else:
        return f"{many}, {largest}, allowed {allowed:.1e} there ({_spelt(tolerance)})"
    return f"{many}, {largest}, {over}, allowed {allowed:.1e} ({_spelt(tolerance)})"


def nonfinite(base: Array, raw: Array, details: Details) -> str:
    return (
        f"NaN or Inf on one side only, or of another kind: {details.base_bad} in base, {details.raw_bad} in raw, "
        f"of {base.size} values, the first that differs{_at(base, raw, details.unlike)}"
    )


def place(array: Array, position: int) -> tuple[int, ...]:
    """The index of the element that C order counts as ``position``."""
    return tuple(int(index) for index in np.unravel_index(position, array.shape))


def _at(base: Array, raw: Array, position: int) -> str:
    if position < 0:
        return ""
    index = place(base, position)
    where = f" at {list(index)}" if index else ""
    return f"{where} (base {base[index]!s}, raw {raw[index]!s})"
