"""Rounding inside a function, imitated: what is left of larger numbers is moved by what those lose.

``exp(x) - 1`` loses a last digit of one, however small ``x`` is; ``expm1(x)`` loses one of its own. Which of them a
framework computes, nobody says, and no shaken input shows it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from padiff.capture.jitter import Jitter, spacing_of, whole
from padiff.frameworks.compiled import compiled_parts
from padiff.frameworks.tree import LiveTree
from padiff.records import Array

LEFT = 0.1
"""Results that are larger than this, beside what they are left of, lose no more than is allowed in any case."""
LOST = 1.0 / 16
"""Of the last place of what they are left of, by which results are moved. Rounding loses 0.3 of it, root mean square,
and ten times what moves is allowed: twice what is lost. An error of a thousandth is seen, in float32, as long as a
result is larger than 1e-4 of what it is left of."""
APPROXIMATED = 3.0
"""So many times that of a difference: what is subtracted may come of a function that two frameworks approximate, 0.9 of
the last place apart (tanh and erf of torch 2.13 and paddle 3.3)."""
AVERAGED = 3.0
"""So many times that of a variance, which is left of two means, each a sum of many."""
SOME = 4096
"""So many numbers of a group will do for its mean and its variance."""
_SELU = 1.7580993408473766
_FLOAT32 = float(np.finfo(np.float32).eps)

Inside = Callable[[Array, Sequence[Any]], Array]
Signs = Callable[[int], Array]


def _below_zero(result: Array, given: Sequence[Any]) -> Array:
    """``alpha * (exp(x) - 1)``, where ``x`` is negative, and ``x`` elsewhere."""
    alpha = given[1] if len(given) > 1 and isinstance(given[1], (int, float)) else 1.0
    return np.where(result < 0, abs(alpha), 0.0)


def _ones(result: Array, _: Sequence[Any]) -> Array:
    return np.ones(result.shape)


def _given(result: Array, given: Sequence[Any]) -> Array:
    """The largest of what was given; numbers that the author wrote are exact."""
    arrays = [np.abs(one) for one in given[:2] if isinstance(one, np.ndarray)]
    return np.broadcast_to(np.maximum.reduce(arrays), result.shape)


def _subtracted(result: Array, given: Sequence[Any]) -> Array:
    return np.where(result != 0, APPROXIMATED * _given(result, given), 0.0)


def _in_groups(result: Array, given: Sequence[Any], signs: Signs) -> Array | None:
    """A variance that is the mean of squares less the square of the mean: what it loses, a whole group gains or loses.
    ``given`` are the values, the number of groups, and the layout."""
    values, groups, layout = (*given, "")[:3]
    last = str(layout).endswith("C")
    shown = np.moveaxis(values, -1, 1) if last else values
    rows = shown.reshape(shown.shape[0], int(groups), -1)
    means, spread = _spread(rows)
    squares = spread + np.square(means)
    lost = AVERAGED * squares / np.maximum(spread, _FLOAT32 * squares)
    if _rms(lost) * LEFT < 1.0:
        return None
    lost = lost * signs(lost.size).reshape(lost.shape)
    share = np.broadcast_to(lost, rows.shape).reshape(shown.shape)
    found: Array = result * (np.moveaxis(share, 1, -1) if last else share)
    return found


def _centred(result: Array, given: Sequence[Any], signs: Signs) -> Array | None:
    """What is left of the numbers of a channel, less their mean, where they are all the same. ``given`` are the values,
    what is added to their variance, and whether these are their own."""
    values, eps, own = (*given, True)[:3]
    means, spread = _spread(values.reshape(*values.shape[:2], -1))
    size = np.abs(means) / np.sqrt(spread + eps)
    if not own or not _rms(result) < LEFT * _rms(size):
        return None
    spread_out = np.broadcast_to(size, (*size.shape[:2], math.prod(values.shape[2:]))).reshape(result.shape)
    found: Array = spread_out * signs(result.size).reshape(result.shape)
    return found


def _spread(rows: Array) -> tuple[Array, Array]:
    """Means and variances along the last axis, of some of many numbers."""
    some = rows[..., :: max(1, rows.shape[-1] // SOME)].astype(np.float64)
    return some.mean(-1, keepdims=True), some.var(-1, keepdims=True)


INSIDE: dict[str, Inside] = {
    "elu": _below_zero,
    "selu": lambda result, _: np.where(result < 0, _SELU, 0.0),
    "expm1": lambda result, _: np.where(result != 0, np.abs(1.0 + result), 0.0),
    "log1p": lambda result, _: np.where(result != 0, 1.0, 0.0),
    "erfinv": lambda result, _: np.where(result != 0, 1.0, 0.0),
    "softplus": _ones,
    "mish": _given,
    "sub": _subtracted,
}
"""How large the numbers are that functions work with, by kind: from what they return, and what they are given. What is
exact in any formula stays: ``log(1)``, ``x - x``. A difference is computed in its own dtype, all else in float32 where
that is wider."""
NORMS: dict[str, Callable[[Array, Sequence[Any], Signs], Array | None]] = {
    "group_norm": _in_groups,
    "instance_norm": _centred,
}
"""The same with its signs, of which numbers that belong together have one; None where nothing is lost."""
_NEVER_EXACT = frozenset({"softplus", "instance_norm"})
_BESIDE_GIVEN = frozenset({"sub", "mish"})
"""Kinds that work with numbers as large as what they are given; all others with such as are about one."""
_ONE = 2.0
SLOPES = frozenset({"mish", "group_norm"})
"""Kinds whose slope is left of the same numbers, so that gradients lose as large a share as what is returned. That of
all others is of the size of what they work with."""


@contextmanager
def rounded_inside(live: LiveTree, jitter: Jitter) -> Iterator[None]:
    """Inside, what functions return that is left of larger numbers is moved, in this thread."""
    listen = getattr(live.adapter, "cancelling", None)
    if listen is None or compiled_parts(live):
        yield
        return
    with listen(_Cancelling(live, jitter)):
        yield


class _Cancelling:
    """Told of functions that may work with larger numbers than they return; moves what they return."""

    def __init__(self, live: LiveTree, jitter: Jitter) -> None:
        self._live, self._adapter, self._jitter = live, live.adapter, jitter

    def __call__(self, kind: str, given: Sequence[Any], output: Any) -> None:
        adapter = self._adapter
        if not adapter.is_tensor(output) or not adapter.dtype(output).startswith(("float", "bfloat")):
            return
        try:
            self._move(kind, given, output)
        except Exception:  # one that holds no numbers: inside of vmap, say
            return

    def _move(self, kind: str, given: Sequence[Any], output: Any) -> None:
        adapter, jitter = self._adapter, self._jitter
        if not self._may_cancel(kind, given, output):
            return
        result = adapter.to_numpy(output)
        arrays = [adapter.to_numpy(one) if adapter.is_tensor(one) else one for one in given]
        with np.errstate(all="ignore"):
            size = self._signed(kind, result, arrays)
            if size is None or not _rms(result) < LEFT * _rms(size):
                return
            if kind not in _NEVER_EXACT and whole(result):
                return
            own = spacing_of(result.dtype, constants=False)
            step = LOST * (max(own, jitter.narrow) if kind == "sub" else min(own, _FLOAT32))
            lost = np.where(np.isfinite(size), step * size, 0.0)
            moved = (result + lost).astype(result.dtype)
            share = np.where(result != 0, lost / result.astype(np.float64), 0.0) if kind in SLOPES else None
        jitter.cancelled = True
        adapter.swap_elements(output, in_place_of(self._live, output, moved))
        if share is not None:
            adapter.on_gradient(output, lambda gradient: _multiplied(adapter.to_numpy(gradient), share))

    def _signed(self, kind: str, result: Array, given: Sequence[Any]) -> Array | None:
        """What is lost, in units of the last place of one: up or down at random."""
        signs = self._jitter.signs
        if kind in NORMS:
            return NORMS[kind](result, given, signs)
        work = result.astype(np.float64)
        wide = [one.astype(np.float64) if isinstance(one, np.ndarray) else one for one in given]
        found: Array = INSIDE[kind](work, wide) * signs(work.size).reshape(work.shape)
        return found

    def _may_cancel(self, kind: str, given: Sequence[Any], output: Any) -> bool:
        """Whether a result is small beside what it is made of; most are not, and nothing of them is copied."""
        if kind in NORMS:
            return not self._adapter.elsewhere(output)
        if kind not in _BESIDE_GIVEN:
            return self._size(output) < LEFT * _ONE
        sizes = [self._size(one) for one in given[:2] if self._adapter.is_tensor(one)]
        return 0.0 < self._size(output) < LEFT * max(sizes, default=0.0)

    def _size(self, tensor: Any) -> float:
        """Its root mean square; of what lies elsewhere nothing else is fetched."""
        adapter = self._adapter
        found = adapter.measure(tensor, tensor, None) if hasattr(adapter, "measure") else None
        return _rms(adapter.to_numpy(tensor)) if found is None else float(found.base_rms)


def _multiplied(gradient: Array, share: Array) -> Array:
    """A gradient that has lost a share of each number."""
    found: Array = (gradient * (1.0 + share)).astype(gradient.dtype)
    return found


def _rms(array: Array) -> float:
    flat = np.ascontiguousarray(array).reshape(-1)
    flat = flat if flat.dtype == np.float64 else flat.astype(np.float32, copy=False)
    return math.sqrt(float(np.vdot(flat, flat)) / flat.size) if flat.size else 0.0


def in_place_of(live: LiveTree, tensor: Any, array: Array) -> Any:
    """An array of ours as a tensor in a model's place, without a copy where that can be."""
    made_of = getattr(live.adapter, "made_of", None)
    if made_of is None or live.adapter.elsewhere(tensor):
        return live.adapter.to_native(array, like=live.model)
    return made_of(array)
