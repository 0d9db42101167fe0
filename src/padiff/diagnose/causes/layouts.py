"""The right values in the wrong places: axes, parts, heads, steps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import permutations

import numpy as np

from padiff.diagnose.causes.trial import Trial, further, gap, leading, surely_over
from padiff.records import Array, Cause

_MOST_AXES = 5
_MARKS = 8
"""Random numbers by which slices are known again, where one does not tell."""
_FEW_DIGITS = 1e-4
_MOST_ROWS = 4096


def axes(trial: Trial) -> Iterator[Cause]:
    """Raw's tensor is base's with its axes in another order."""
    expected, found = trial.expected, trial.found
    if expected.ndim > _MOST_AXES or expected.ndim < 2 or found.ndim != expected.ndim:
        return
    for order in permutations(range(expected.ndim)):
        if order == tuple(range(expected.ndim)):
            continue
        turned = found.transpose(order)
        if turned.shape != expected.shape or not _close(trial, turned):
            continue
        if trial.repairs(turned) if trial.same_shape else trial.agree(expected, turned):
            yield Cause("transposed", f"raw's tensor with its axes in the order {order} agrees with base's", 0.93)
            return


def _close(trial: Trial, candidate: Array) -> bool:
    """A first look at few elements, where it can be had cheaply."""
    if trial.same_shape:
        return trial.may_repair(trial.few(np.ascontiguousarray(candidate)))
    step = max(1, candidate.size // 4096)
    one, other = trial.expected.ravel()[::step], candidate.ravel()[::step]
    return gap(one, other) <= 1e-2 * math.sqrt(float(np.mean(np.square(one))) + 1e-300)


def shapes(trial: Trial) -> Iterator[Cause]:
    """Tensors of different shapes that agree where both have something, or as one row of elements."""
    if trial.same_shape:
        return
    expected, found = trial.expected, trial.found
    if expected.size == found.size and trial.agree(expected, found.reshape(expected.shape)):
        yield Cause("shape", f"the same values in shape {found.shape} in raw and {expected.shape} in base", 0.9)
        return
    if expected.ndim != found.ndim or not expected.size or not found.size:
        return
    common = tuple(min(a, b) for a, b in zip(expected.shape, found.shape, strict=True))
    differing = [axis for axis, (a, b) in enumerate(zip(expected.shape, found.shape, strict=True)) if a != b]
    for at_end in (False, True):
        cuts = [
            tuple(
                slice(length - keep, None) if at_end else slice(0, keep)
                for length, keep in zip(t.shape, common, strict=True)
            )
            for t in (expected, found)
        ]
        one, other = expected[cuts[0]], found[cuts[1]]
        if one.size and trial.agree(one, other):
            side = "first" if at_end else "last"
            names = ", ".join(f"{found.shape[a]} in raw and {expected.shape[a]} in base on axis {a}" for a in differing)
            spatial = expected.ndim >= 3 and all(axis >= 2 for axis in differing) and trial.scene.layer is not None
            name = "ceil_mode or padding" if spatial else "slice"
            yield Cause(name, f"the lengths are {names}; all but the {side} agree", 0.85)
            return


def shifted(trial: Trial) -> Iterator[Cause]:
    """Raw's tensor is base's, a few steps along one axis, or back to front."""
    expected, found = trial.expected, trial.found
    for axis, length in enumerate(expected.shape):
        if length < 2 or expected.size < 8:
            continue
        if length > 2 and trial.repairs(np.flip(found, axis)):
            yield Cause("reversed", f"raw's values are base's back to front along axis {axis}", 0.92)
            return
        for step in (1, -1, 2, -2):
            if abs(step) >= length:
                continue
            few = leading(expected) - _leading_rolled(found, -step, axis)
            if not surely_over(few, trial.gap, found.size) and trial.repairs(np.roll(found, -step, axis)):
                yield Cause("off by one", _shift_words(step, axis) + ", wrapping around", 0.92)
                return
            if length > abs(step) + 1 and _shifts(trial, axis, step):
                yield Cause("off by one", _shift_words(step, axis), 0.9)
                return


def _shift_words(step: int, axis: int) -> str:
    steps = f"{abs(step)} step{'s' if abs(step) > 1 else ''} {'later' if step > 0 else 'earlier'}"
    return f"raw's values are base's {steps} along axis {axis}"


def _leading_rolled(array: Array, shift: int, axis: int) -> Array:
    """The first rows of an array with its slices moved around, of which only these are made."""
    first = [0] * (array.ndim - leading(array).ndim)
    if axis >= len(first):
        return np.roll(leading(array), shift, axis - len(first))
    first[axis] = -shift % array.shape[axis]
    rows: Array = array[tuple(first)]
    return rows


def _shifts(trial: Trial, axis: int, step: int) -> bool:
    """Without what came in at the end: compared where both have something."""
    length = trial.expected.shape[axis]
    first, last = max(0, -step), min(length, length - step)
    one = np.moveaxis(trial.expected, axis, 0)[first:last]
    other = np.moveaxis(trial.found, axis, 0)[first + step : last + step]
    if further(one, other, 0.05 * trial.gap * math.sqrt(length / (last - first))):
        return False
    source = np.arange(first, last)
    base = np.take(trial.expected, source, axis)
    raw = np.take(trial.found, source + step, axis)
    if float(base.std()) <= 1e-6 * (abs(float(base.mean())) + 1e-300):
        return False
    return gap(base, raw) <= 0.05 * gap(base, np.take(trial.found, source, axis)) and trial.agree(base, raw)


def rearranged(trial: Trial) -> Iterator[Cause]:
    """The slices of base along one axis, in another order in raw: parts, heads, channels."""
    expected, found = trial.expected, trial.found
    for axis in reversed(range(expected.ndim)):
        length = expected.shape[axis]
        if not 2 <= length <= 1 << 16 or expected.size < 4 * length:
            continue
        places = order(trial, expected, found, axis)
        if places is None or not trial.repairs(np.take(found, np.argsort(places), axis)):
            continue
        yield named_order(trial, places, axis)
        return


def order(trial: Trial, expected: Array, found: Array, axis: int) -> Array | None:
    """Which slice of base each slice of raw is, by a random number made of every slice."""
    rows = [np.moveaxis(t, axis, 0).reshape(t.shape[axis], -1) for t in (expected, found)]
    mix = np.random.default_rng(0).normal(size=(rows[0].shape[1], _MARKS))
    if trial.spacing > _FEW_DIGITS:  # one number of few digits may be that of several slices
        found_at = _nearest(*(row @ mix for row in rows))
    else:
        places = [np.argsort(row @ mix[:, 0], kind="stable") for row in rows]
        found_at = np.empty(len(places[0]), dtype=np.int64)
        found_at[places[1]] = places[0]
    return None if found_at is None or np.array_equal(found_at, np.arange(len(found_at))) else found_at


def _nearest(base: Array, raw: Array) -> Array | None:
    """Which row of base comes nearest to each of raw; None where that is no order of them all."""
    if len(base) > _MOST_ROWS:
        return None
    apart = np.square(base).sum(axis=1)[None] - 2 * raw @ base.T
    found: Array = apart.argmin(axis=1)
    return found if len(np.unique(found)) == len(found) else None


def named_order(trial: Trial, places: Array, axis: int) -> Cause:
    length = len(places)
    for parts in (part for part in range(2, length) if length % part == 0):
        woven = np.arange(length).reshape(parts, -1).T.ravel()
        if np.array_equal(places, woven):
            text = f"along axis {axis}, base holds {parts} parts one after the other and raw holds them interleaved"
            return Cause("head order", text, 0.93)
        starts = places.reshape(parts, -1)
        steps = starts - starts[:, :1]
        if np.array_equal(steps, np.broadcast_to(np.arange(length // parts), steps.shape)):
            blocks = (starts[:, 0] // (length // parts)).tolist()
            if np.all(starts[:, 0] % (length // parts) == 0):
                text = f"of {parts} equal parts along axis {axis}, raw has those of base in the order {blocks}"
                return Cause("head order", text, 0.93)
    if axis == trial.expected.ndim - 1 or length <= 64:
        moved = int((places != np.arange(length)).sum())
        return Cause(
            "order", f"raw has base's slices along axis {axis} in another order; {moved} are not in their place", 0.85
        )
    return Cause("order", f"raw has base's slices along axis {axis} in another order", 0.8)


def heads_unmerged(trial: Trial) -> Iterator[Cause]:
    """Heads put side by side without being turned back, or turned once too often."""
    expected, found = trial.expected, trial.found
    if expected.ndim != 3:
        return
    batch, length, width = expected.shape
    counts = {int(n) for n in trial.numbers("num_heads", "head_dim", "num_key_value_heads")}
    counts |= {n for n in (2, 3, 4, 6, 8, 12, 16, 32, 64) if n < width}
    for heads in sorted(n for n in counts if n > 1 and width % n == 0 and length > 1):
        each = width // heads
        ways = (
            ("by position", found.reshape(batch, heads, length, each).transpose(0, 2, 1, 3)),
            ("by head", found.reshape(batch, length, heads, each).transpose(0, 2, 1, 3)),
        )
        for words, view in ways:
            candidate = np.ascontiguousarray(view).reshape(expected.shape)
            if trial.may_repair(trial.few(candidate)) and trial.repairs(candidate):
                text = f"with {heads} heads of {each} laid out {words}, raw's values agree with base's"
                yield Cause("head order", text, 0.92)
                return
