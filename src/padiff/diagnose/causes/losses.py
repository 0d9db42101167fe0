"""What a loss sends back to logits tells what it is: a cross entropy, of which labels, smoothed and divided how."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from padiff.diagnose.causes.functions import softmax
from padiff.diagnose.causes.trial import Trial, rms
from padiff.records import Array, Cause

_CLOSE = 1e-3
_NARROW = 4.0
"""Spacings of a narrower dtype: both the logits and what is sent back to them were rounded to it."""


@dataclass(frozen=True)
class _Entropy:
    """A cross entropy of one target for each row: the gradient is ``(softmax - target) / divisor``."""

    labels: Array
    """By row; -1 where the row gets no gradient."""
    smoothing: float
    divisor: float


def cross_entropy(trial: Trial) -> Iterator[Cause]:
    """Both losses are cross entropies of one output, with other labels, other smoothing or another divisor."""
    scene = trial.scene
    if scene.role != "loss" or trial.agree(trial.expected, trial.found):
        return
    for name, logits in scene.given.items():
        base, raw = scene.gradients.get(name), scene.raw_gradients.get(name)
        if base is None or raw is None or not base.shape == raw.shape == logits.shape or logits.ndim < 2:
            continue
        for axis in {logits.ndim - 1, 1}:
            close = max(_CLOSE, _NARROW * trial.spacing)
            turned = [np.moveaxis(t, axis, -1) for t in (logits, base, raw)]
            right, wrong = (_entropy(turned[0], gradient, close) for gradient in turned[1:])
            if right is not None and wrong is not None:
                yield from _between(trial, right, wrong, close)
                return


def _entropy(logits: Array, gradient: Array, close: float) -> _Entropy | None:
    """A straight line through probabilities over gradients, labels left out: its slope is the divisor."""
    count = logits.shape[-1]
    chances = softmax(logits.reshape(-1, count).astype(np.float64), -1)
    rows = gradient.reshape(-1, count).astype(np.float64)
    size = np.abs(rows).max(axis=1)
    live = size > 1e-6 * size.max(initial=0)
    if count < 3 or live.sum() < 2 or np.abs(rows[live].sum(axis=1)).max() > close * size.max():
        return None
    labels = np.where(live, rows.argmin(axis=1), -1)
    others = live[:, None] & (np.arange(count)[None] != labels[:, None])
    x, y = rows[others], chances[others]
    slope, level = np.polyfit(x, y, 1) if x.size > 2 and float(x.std()) > 0 else (0.0, 0.0)
    if slope <= 0 or rms(y - slope * x - level) > close * rms(y):
        return None
    smoothing = float(level * count)
    wanted = 1 - smoothing + level
    own = np.flatnonzero(live)
    found = chances[own, labels[own]] - slope * rows[own, labels[own]]
    if np.abs(found - wanted).max() > max(1e-2, close):
        return None
    return _Entropy(labels, smoothing if abs(smoothing) > close else 0.0, float(slope))


def _between(trial: Trial, right: _Entropy, wrong: _Entropy, close: float) -> Iterator[Cause]:
    what = "by what the losses send back, both are cross entropies"
    one, other = right.labels >= 0, wrong.labels >= 0
    if np.any(one != other):
        text = (
            f"{what}; {int((one != other).sum())} rows count on one side only: their labels are left out on the other"
        )
        yield Cause("ignore_index", text, 0.95)
    both = one & other
    if np.any(right.labels[both] != wrong.labels[both]):
        differing = int((right.labels[both] != wrong.labels[both]).sum())
        yield Cause("labels", f"{what}; {differing} of {int(both.sum())} rows have another label", 0.94)
    if abs(right.smoothing - wrong.smoothing) > close:
        text = f"{what}, with a label smoothing of {right.smoothing:.3g} in base and {wrong.smoothing:.3g} in raw"
        yield Cause("label smoothing", text, 0.95)
    if not np.any(one != other) and abs(right.divisor / wrong.divisor - 1) > close:
        counted = all(trial.near(divisor, round(divisor)) for divisor in (right.divisor, wrong.divisor))
        text = f"{what}; base divides by {right.divisor:.4g} and raw by {wrong.divisor:.4g}"
        if not counted:
            text = f"{what}; raw's is base's times {right.divisor / wrong.divisor:.4g}"
        yield Cause("reduction" if counted else "scale", text, 0.93)
