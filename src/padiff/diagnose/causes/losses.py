"""What a loss sends back to logits tells what it is: a cross entropy, of which labels, smoothed and divided how."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from padiff.diagnose.causes.functions import softmax
from padiff.diagnose.causes.trial import Trial, rms
from padiff.records import Array, Cause

_CLOSE = 1e-3


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
            right, wrong = (_entropy(np.moveaxis(logits, axis, -1), np.moveaxis(g, axis, -1)) for g in (base, raw))
            if right is not None and wrong is not None:
                yield from _between(right, wrong)
                return


def _entropy(logits: Array, gradient: Array) -> _Entropy | None:
    """A straight line through probabilities over gradients, labels left out: its slope is the divisor."""
    count = logits.shape[-1]
    chances = softmax(logits.reshape(-1, count).astype(np.float64), -1)
    rows = gradient.reshape(-1, count).astype(np.float64)
    size = np.abs(rows).max(axis=1)
    live = size > 1e-6 * size.max(initial=0)
    if count < 3 or live.sum() < 2 or np.abs(rows[live].sum(axis=1)).max() > _CLOSE * size.max():
        return None
    labels = np.where(live, rows.argmin(axis=1), -1)
    others = live[:, None] & (np.arange(count)[None] != labels[:, None])
    x, y = rows[others], chances[others]
    slope, level = np.polyfit(x, y, 1) if x.size > 2 and float(x.std()) > 0 else (0.0, 0.0)
    if slope <= 0 or rms(y - slope * x - level) > _CLOSE * rms(y):
        return None
    smoothing = float(level * count)
    wanted = 1 - smoothing + level
    own = np.flatnonzero(live)
    found = chances[own, labels[own]] - slope * rows[own, labels[own]]
    if np.abs(found - wanted).max() > 1e-2:
        return None
    return _Entropy(labels, smoothing if abs(smoothing) > _CLOSE else 0.0, float(slope))


def _between(right: _Entropy, wrong: _Entropy) -> Iterator[Cause]:
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
    if abs(right.smoothing - wrong.smoothing) > _CLOSE:
        text = f"{what}, with a label smoothing of {right.smoothing:.3g} in base and {wrong.smoothing:.3g} in raw"
        yield Cause("label smoothing", text, 0.95)
    if not np.any(one != other) and abs(right.divisor / wrong.divisor - 1) > _CLOSE:
        text = f"{what}; base divides by {right.divisor:.4g} and raw by {wrong.divisor:.4g}"
        yield Cause("reduction", text, 0.93)
