"""Softmax and reductions: another axis, another type, another temperature, a sum for a mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import numpy as np

from padiff.diagnose.causes.functions import softmax
from padiff.diagnose.causes.numerics import rounded
from padiff.diagnose.causes.ratios import told
from padiff.diagnose.causes.trial import Trial, factor, gap, rms
from padiff.records import Array, Cause


def _log_softmax(x: Array, axis: int) -> Array:
    lifted = x - x.max(axis=axis, keepdims=True)
    value: Array = lifted - np.log(np.exp(lifted).sum(axis=axis, keepdims=True))
    return value


def softmax_axis(trial: Trial) -> Iterator[Cause]:
    """Base takes the softmax over one axis and raw over another, or the logarithm of it, or the like of it."""
    low, high = float(trial.expected.min()), float(trial.expected.max())
    if high > 1e-6 and not 0 <= low <= high <= 1 + 1e-5:
        return
    for name, x in (trial.like | trial.masked).items():
        ways = {f"softmax over axis {axis}": softmax(x, axis) for axis in range(x.ndim)}
        ways |= {f"log softmax over axis {axis}": _log_softmax(x, axis) for axis in range(x.ndim)}
        apart = {told: gap(trial.expected, value) for told, value in ways.items()}
        right = min(apart, key=apart.__getitem__)
        if not apart[right] <= 0.3 * trial.gap:
            continue
        for wrong, value in ways.items():
            if wrong != right and trial.models(ways[right], value):
                same = right.partition(" over ")[0] == wrong.partition(" over ")[0]
                text = f"of {name}, base takes {right} and raw {wrong}"
                yield Cause("axis" if same else "activation", text, 0.95)
                return
        if trial.models(ways[right], x):
            yield Cause("missing activation", f"base takes {right} of {name}, raw nothing", 0.95)
            return


def softmax_precision(trial: Trial) -> Iterator[Cause]:
    """Raw's softmax is one of rounded inputs, or is rounded itself."""
    if float(trial.expected.min()) < 0 or float(trial.expected.max()) > 1 + 1e-5:
        return
    for name, x in trial.like.items():
        for axis in (x.ndim - 1, *range(x.ndim - 1)):
            right = softmax(x, axis)
            if gap(trial.expected, right) > 0.3 * trial.gap:
                continue
            for kind in ("bfloat16", "float16", "TF32"):
                narrow = softmax(rounded(x, kind), axis)
                ways = (("of {} rounded to {}", narrow), ("of {}, computed in {}", rounded(narrow, kind)))
                for words, value in (*ways, ("of {}, rounded to {} afterwards", rounded(right, kind))):
                    if gap(trial.found, value) <= 0.3 * trial.gap:
                        text = f"raw's values are the softmax {words.format(name, kind)}"
                        yield Cause("softmax dtype", text, 0.95)
                        return


def softmax_scale(trial: Trial) -> Iterator[Cause]:
    """Both are softmaxes, of inputs that differ by one factor."""
    expected, found = trial.expected, trial.found
    if np.any(expected < 0) or np.any(found < 0) or not trial.rich:
        return
    for axis in range(expected.ndim - 1, -1, -1):
        if expected.shape[axis] < 3:
            continue
        if any(np.abs(t.sum(axis=axis) - 1).max() > trial.within(1e-3) for t in (expected, found)):
            continue
        live = (expected > 1e-30) & (found > 1e-30)
        logs = [np.where(live, np.log(np.where(live, t, 1.0)), 0.0) for t in (expected, found)]
        count = np.maximum(live.sum(axis=axis, keepdims=True), 1)
        base, raw = (np.where(live, t - t.sum(axis=axis, keepdims=True) / count, 0.0) for t in logs)
        back = factor(base, raw)
        close = trial.within(1e-3) * rms(base)
        if not (back == back and back > 0 and abs(back - 1) > 1e-4 and gap(base, back * raw) <= close):
            continue
        candidate = np.where(live, np.exp(back * np.where(live, np.log(np.where(live, found, 1.0)), 0.0)), 0.0)
        if trial.repairs(candidate / candidate.sum(axis=axis, keepdims=True)):
            yield Cause("scale", f"raw's softmax is of inputs that are base's times {told(trial, 1 / back)}", 0.93)
            return


_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "the first": lambda x, axis: _pick(x, axis, 0),  # of two numbers the first may be the largest everywhere
    "the last": lambda x, axis: _pick(x, axis, -1),
    "the mean": np.mean,
    "the sum": np.sum,
    "the largest": np.max,
    "the smallest": np.min,
    "the root mean square": lambda x, axis: np.sqrt(np.mean(np.square(x), axis=axis)),
    "the variance": lambda x, axis: np.var(x, axis=axis),
    "the variance with n - 1": lambda x, axis: np.var(x, axis=axis, ddof=1) if x.size > 1 else np.var(x, axis=axis),
    "the standard deviation": lambda x, axis: np.std(x, axis=axis),
    "the standard deviation with n - 1": lambda x, axis: np.std(x, axis=axis, ddof=1),
    "the norm": lambda x, axis: np.sqrt(np.sum(np.square(x), axis=axis)),
}


def _pick(x: Array, axis: tuple[int, ...], index: int) -> Array:
    for one in sorted(axis, reverse=True):
        x = np.take(x, index, axis=one)
    return x


def reduction(trial: Trial) -> Iterator[Cause]:
    """Base reduces a tensor at hand in one way or along some axes, raw in another way or along others."""
    expected = trial.expected
    for name, x in trial.at_hand.items():
        if x.size <= expected.size or x.ndim > 5 or not np.isfinite(x).all():
            continue
        base: list[tuple[str, tuple[int, ...], Array]] = []
        raw: list[tuple[str, tuple[int, ...], Array]] = []
        with np.errstate(all="ignore"):
            for way, axes, value in _reduced(x, expected):
                if gap(expected, value) <= 0.3 * trial.gap:
                    base.append((way, axes, value))
                if gap(trial.found, value) <= 0.3 * trial.gap:
                    raw.append((way, axes, value))
        for right, right_axes, one in base:
            for wrong, wrong_axes, other in raw:
                if (right, right_axes) != (wrong, wrong_axes) and trial.models(one, other):
                    cause = _cause(right, wrong)
                    text = f"base takes {right} of {name} over axes {right_axes}, raw {wrong} over axes {wrong_axes}"
                    yield Cause(cause, text, 0.94)
                    return


def _cause(right: str, wrong: str) -> str:
    if right == wrong:
        return "axis"
    variances = ("the variance", "the standard deviation")
    return "variance" if right.startswith(variances) and wrong.startswith(variances) else "reduction"


def _reduced(x: Array, like: Array) -> Iterator[tuple[str, tuple[int, ...], Array]]:
    for count in range(1, min(x.ndim, 3) + 1):
        for axes in combinations(range(x.ndim), count):
            left = [length for axis, length in enumerate(x.shape) if axis not in axes]
            if int(np.prod(left)) != like.size:
                continue
            for way, function in _REDUCTIONS.items():
                value = np.asarray(function(x, axis=axes))
                yield way, axes, value.reshape(like.shape)
