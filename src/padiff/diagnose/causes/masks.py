"""Masks by themselves: what two of them keep and leave out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from padiff.diagnose.causes.trial import Trial
from padiff.records import Array, Cause


def mask(trial: Trial) -> Iterator[Cause]:
    """Two tensors that keep and leave out: the same pattern a step further, turned round, or with another fill."""
    if not trial.same_shape or trial.expected.ndim < 2 or trial.expected.shape[-1] < 2:
        return
    kept = [_kept(trial.expected), _kept(trial.found)]
    for place, own, other in ((0, trial.expected, trial.found), (1, trial.found, trial.expected)):
        if not np.any(own) and _additive(other):  # beside a mask, nothing but zeros leaves nothing out
            kept[place] = np.ones(own.shape, dtype=bool)
    if kept[0] is None or kept[1] is None:
        return
    base, raw = kept[0], kept[1]
    if _additive(trial.expected) and _binary(trial.found) and (np.array_equal(base, raw) or np.array_equal(base, ~raw)):
        least = f"base's mask holds {trial.expected.min():.6g} where something is left out"
        text = f"{least}, raw's nothing but ones and zeros, which leave nothing out of scores that they are added to"
        yield Cause("mask", text, 0.97)
        return
    if np.array_equal(base, raw):
        return
    if np.array_equal(base, ~raw):
        yield Cause("mask inverted", "raw leaves out what base keeps, and keeps what base leaves out", 0.95)
        return
    for axis in (-1, -2):
        for step in (1, -1):
            if _moved(base, raw, axis, step):
                more = "more" if raw.sum() > base.sum() else "less"
                text = f"raw's mask is base's {abs(step)} step {'later' if step > 0 else 'earlier'} along axis {axis}"
                yield Cause("mask off by one", f"{text}: it keeps {more}", 0.95)
                return
    if raw.all() or base.all():
        side = "raw" if raw.all() else "base"
        yield Cause("mask", f"{side} keeps everything, the other side leaves {int((~(base & raw)).sum())} out", 0.96)
        return
    if np.array_equal(np.swapaxes(base, -1, -2), raw):
        yield Cause("mask", "raw's mask is base's with rows and columns changed", 0.93)
        return
    yield Cause("mask", f"the masks keep different elements: {int((base != raw).sum())} of {base.size}", 0.8)


def keep_the_same(base: Array, raw: Array) -> bool:
    """Whether both keep and leave out, and the same."""
    if base.shape != raw.shape or base.ndim < 2 or base.dtype.kind != "f" or raw.dtype.kind != "f" or not base.size:
        return False
    kept = _kept(base), _kept(raw)
    return kept[0] is not None and kept[1] is not None and bool(np.array_equal(kept[0], kept[1]))


def are_masks(base: Array, raw: Array) -> bool:
    """Whether both are added to scores, to keep some and leave out others."""
    return _additive(base) and _additive(raw) and _kept(base) is not None and _kept(raw) is not None


def _additive(tensor: Array) -> bool:
    """Added to scores: nothing, or very little."""
    return bool(tensor.min() <= -1e4 and tensor.max() <= 0)


def _kept(tensor: Array) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]] | None:
    """What a mask keeps; also of attention's weights, which are zero where nothing is kept."""
    lowest = tensor.min()
    if np.isneginf(lowest) or lowest <= -1e4:
        kept = tensor > -1e4 if not np.isneginf(lowest) else ~np.isneginf(tensor)
        return kept if np.abs(tensor[kept]).max(initial=0.0) < 1e4 else None
    if _binary(tensor.reshape(-1)[:64]) and _binary(tensor):
        ones = tensor[..., :64, :64] == 1
        if ones.any() and not ones.all():
            return np.asarray(tensor == 1)
    if lowest == 0 and np.abs(tensor.sum(axis=-1) - 1).max() < 1e-2:  # weights of attention, in whatever dtype
        zero = tensor == 0
        return ~zero if zero.mean() > 0.01 else None
    return None


def _binary(tensor: Array) -> bool:
    return bool(((tensor == 0) | (tensor == 1)).all())


def _moved(base: Array, raw: Array, axis: int, step: int) -> bool:
    length = base.shape[axis]
    if length < 3:
        return False
    source = np.arange(max(0, -step), min(length, length - step))
    one, other = np.take(base, source, axis), np.take(raw, source + step, axis)
    return bool(np.array_equal(one, other) and not one.all() and one.any())
