"""Weights: other values, the wrong way round, a sibling's, no longer tied; and matrix products in a narrower type."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from padiff.diagnose.causes.layouts import named_order, order
from padiff.diagnose.causes.numerics import rounded
from padiff.diagnose.causes.ratios import told
from padiff.diagnose.causes.trial import Trial, factor, gap, rms
from padiff.records import Array, Cause

_CLOSE = 1e-6
_WORK = 1 << 31
"""Multiplications that a product may cost."""
_COLUMNS = 64
"""Columns of a product that are enough to tell in which type it was computed."""


def transposed_weight(trial: Trial) -> Iterator[Cause]:
    """Raw multiplies by the weight the other way round."""
    for name, weight in trial.raw_weights.items():
        own = trial.base_weights.get(name)
        if weight.ndim != 2 or weight.shape[0] != weight.shape[1] or own is None:
            continue
        for source, x in _inputs(trial, weight.shape[0]):
            if not _reached(trial, x, weight):
                continue
            ways = (x @ weight, x @ weight.T)
            for wrong, right in (ways, ways[::-1]):
                if _products(trial, right, wrong):
                    text = f"raw's values are {source} times {name} the other way round; base's are that times {name}"
                    yield Cause("transposed weight", text, 0.96)
                    return


def _inputs(trial: Trial, width: int) -> Iterator[tuple[str, Array]]:
    for name, tensor in trial.at_hand.items():
        rows = tensor.size // max(width, 1)
        if tensor.ndim and tensor.shape[-1] == width and rows * width * width <= _WORK and np.isfinite(tensor).all():
            yield name, tensor


def _reached(trial: Trial, x: Array, weight: Array) -> bool:
    """A first look at few rows: whether either product moves as raw's values do, whatever is added to them."""
    width = weight.shape[0]
    if trial.found.shape != x.shape:
        return False
    rows, found = (t.reshape(-1, width)[:32] for t in (x, trial.found))
    if len(rows) < 3:
        return True
    found = found - found.mean(axis=0)
    for way in (weight, weight.T):
        made = rows @ way
        if gap(found, made - made.mean(axis=0)) <= 0.1 * rms(found):
            return True
    return False


def _products(trial: Trial, right: Array, wrong: Array) -> bool:
    """Whether base's tensor is the one product and raw's the other, each with a bias or without."""
    if right.shape != trial.expected.shape:
        return False
    biases = [w for w in (*trial.base_weights.values(), *trial.raw_weights.values()) if w.shape == right.shape[-1:]]
    return any(trial.models(right + bias, wrong + bias) for bias in (0.0, *biases[:2]))


def weights_differ(trial: Trial) -> Iterator[Cause]:
    """A weight of raw does not hold what base's holds."""
    if trial.scene.phase in ("weight", "buffer"):
        return
    for name, weight in trial.raw_weights.items():
        own = trial.base_weights.get(name)
        if own is None or own.size != weight.size or not own.size:
            continue
        aligned = _oriented(own, weight)
        if aligned is None:
            continue
        if _same(trial, aligned, weight):
            continue
        yield _named_weight(trial, name, aligned, weight)
        return


def _oriented(own: Array, weight: Array) -> Array | None:
    """Base's weight in raw's layout: as it is, or turned where that comes closer; None where that is not known."""
    ways = [own] if own.shape == weight.shape else []
    if own.ndim == 2 and own.T.shape == weight.shape:
        ways.append(own.T)
    if min(own.ndim, weight.ndim) == 1:
        ways.append(own.reshape(weight.shape))
    corner = (slice(0, 64),) * weight.ndim
    return min(ways, key=lambda way: gap(way[corner], weight[corner])) if ways else None


def _named_weight(trial: Trial, name: str, own: Array, weight: Array) -> Cause:
    for path, weights in trial.scene.siblings.items():
        for other, tensor in weights.items():
            if tensor.size == weight.size and tensor.size > 1 and float(weight.std()) > 0:  # zeros are everywhere
                theirs = _oriented(tensor.astype(np.float64), weight)
                if theirs is not None and _same(trial, theirs, weight):
                    text = f"raw's {name} holds what base has in {path}.{other}"
                    return Cause("swapped weights", text, 0.95)
    ties = trial.scene.base_ties.get(name, ())
    if ties and not trial.scene.raw_ties.get(name, ()):
        text = f"base's {name} is the same tensor as {', '.join(ties)}; raw's is one of its own with other values"
        return Cause("tied weights", text, 0.95)
    kind = _rounding(own, weight)
    if kind:
        return Cause("precision", f"raw's {name} is base's rounded to {kind}", 0.92)
    bases = [_geometric(tensor) for tensor in (own, weight)]
    if bases[0] and bases[1] and abs(bases[0] / bases[1] - 1) > 1e-4:
        text = f"the angles of raw's {name} have base {bases[1]:.6g}, those of base's {bases[0]:.6g}"
        return Cause("rope base", text, 0.93)
    moved = _moved_rows(trial, name, own, weight)
    if moved is not None:
        return moved
    share = factor(weight, own)
    off = np.abs(own - weight) > _CLOSE * max(rms(own), 1e-30)
    most = float(np.abs(own - weight).max())
    text = f"{int(off.sum())} of {own.size} values of raw's {name} are not base's, by up to {most:.3g}"
    if own.size > 8 and gap(weight, share * own) <= 1e-5 * rms(weight):
        text = f"raw's {name} is base's times {told(trial, share)}"
    if "running" in name and trial.scene.phase == "forward":
        return Cause("weights differ", text, 0.6)  # each side keeps statistics its own way; it need not show
    return Cause("weights differ", text, 0.9)


def _same(trial: Trial, own: Array, weight: Array) -> bool:
    """Whether two weights hold the same, as far as a model holds it that is meant to hold less than the other."""
    if gap(own, weight) <= _CLOSE * max(rms(own), 1e-30):
        return True
    return bool(trial.scene.narrow and (_rounding(own, weight) or _rounding(weight, own)))


def _rounding(own: Array, weight: Array) -> str:
    """The narrower type to which the second is the first rounded, or ""."""
    kinds = ("bfloat16", "float16")
    return next((kind for kind in kinds if gap(rounded(own, kind), weight) <= _CLOSE * rms(weight)), "")


def _moved_rows(trial: Trial, name: str, own: Array, weight: Array) -> Cause | None:
    """Base's weight with its rows, its parts or its heads in another order."""
    for axis in range(weight.ndim):
        if weight.ndim < 2 or not 2 <= weight.shape[axis] <= 1 << 16:
            continue
        places = order(trial, own, weight, axis)
        if places is None or not _same(trial, own, np.take(weight, np.argsort(places), axis)):
            continue
        cause = named_order(trial, places, axis)
        count = int((places != np.arange(len(places))).sum())
        text = f"raw's {name} holds base's values in another order: {cause.evidence}"
        if cause.name == "order" and count * 4 < len(places):  # a few rows at most: nothing to do with a layout
            return Cause("weights differ", f"{count} rows along axis {axis} of raw's {name} have changed places", 0.92)
        return Cause(cause.name, text, 0.94)
    return None


def _geometric(tensor: Array) -> float | None:
    """The base of a falling sequence of angles: base ** (-2k / d)."""
    values = tensor.ravel()
    if values.size < 3 or values[0] != 1.0 or np.any(values <= 0):
        return None
    logs = np.log(values)
    steps = np.diff(logs)
    if steps[0] >= 0 or np.abs(steps - steps[0]).max() > 1e-3 * abs(steps[0]):
        return None
    return float(np.exp(-steps.mean() * values.size))


def untied(trial: Trial) -> Iterator[Cause]:
    """Base uses one tensor in two places, raw two: seen in gradients, and after a step."""
    scene = trial.scene
    for name, others in scene.base_ties.items():
        theirs = scene.raw_ties.get(name, ())
        if others and (scene.parted or not theirs) and scene.phase in ("gradient", "weight"):
            raw = f"is only {', '.join(theirs)}" if theirs else "stands alone"
            text = f"base's {name} is the same tensor as {', '.join(others)}, raw's {raw}"
            yield Cause("tied weights", text, 0.9, tested=False)
            return
    if scene.parted and scene.phase == "weight":  # base's code takes one tensor up in several places, under one name
        text = f"one tensor of base's fills {', '.join(scene.parted)} of raw's, each of which takes a step of its own"
        yield Cause("tied weights", text, 0.9, tested=False)


def product_precision(trial: Trial) -> Iterator[Cause]:
    """Raw's values are the product of rounded inputs and weights."""
    weight = next((w for n, w in trial.base_weights.items() if w.ndim == 2 and n == "weight"), None)
    if weight is None or trial.expected.ndim < 1:
        return
    rows = 256
    for name, x in trial.at_hand.items():
        for turned in (weight.T, weight):
            if not x.ndim or x.shape[-1] != turned.shape[0] or (*x.shape[:-1], turned.shape[1]) != trial.expected.shape:
                continue
            width = turned.shape[1]
            x_rows = x.reshape(-1, x.shape[-1])[:rows]
            base, raw = (t.reshape(-1, width)[:rows, :_COLUMNS] for t in (trial.expected, trial.found))
            bias = next((b for b in trial.base_weights.values() if b.shape == (width,)), np.zeros(width))[:_COLUMNS]
            turned = turned[:, :_COLUMNS]
            before = gap(base, raw)
            if gap(base, x_rows @ turned + bias) > 0.3 * before:
                continue
            for kind in ("TF32", "bfloat16", "float16"):
                if gap(raw, rounded(x_rows, kind) @ rounded(turned, kind) + bias) <= 0.3 * before:
                    text = f"raw's values are the product of {name} and the weight, both rounded to {kind}"
                    yield Cause("precision", text, 0.95)
                    return
