"""Gradients, optimizer steps, running statistics and the loss: what shows only when a model is trained."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from padiff.diagnose.causes.ratios import readings, told
from padiff.diagnose.causes.trial import Trial, factor, gap, plain, rms
from padiff.records import Array, Cause


def no_gradient(trial: Trial) -> Iterator[Cause]:
    """One side's gradient is missing or zero."""
    if trial.scene.phase not in ("backward", "gradient"):
        return
    for tensor, other, side in ((trial.found, trial.expected, "raw"), (trial.expected, trial.found, "base")):
        if not np.any(tensor) and np.any(other):
            text = f"{side}'s gradient is zero or missing and the other side's is not: a detach, a no_grad, a freeze"
            yield Cause("no gradient", text, 0.95)
            return


def masked_gradient(trial: Trial) -> Iterator[Cause]:
    """Some of raw's gradients are zero, the others are base's."""
    if trial.scene.phase not in ("backward", "gradient") or not trial.rich:
        return
    for tensor, other, side in ((trial.found, trial.expected, "raw"), (trial.expected, trial.found, "base")):
        zeroed = (tensor == 0) & (other != 0)
        count = int(zeroed.sum())
        if not 0 < count < other.size or not np.any(tensor):
            continue
        cut = np.where(zeroed, 0.0, other)
        if trial.models(trial.expected, cut) if side == "raw" else trial.models(cut, trial.found):
            text = f"{count} of {other.size} gradients are zero in {side} only, the others agree"
            yield Cause("masked gradient", text, 0.85)
            return


def straight_gradient(trial: Trial) -> Iterator[Cause]:
    """The gradient of the output comes out as that of the input, on one side only."""
    if trial.scene.phase != "backward":
        return
    for name, tensor in trial.like.items():
        if not name.startswith("the gradient"):
            continue
        for side, own in (("raw", trial.found), ("base", trial.expected)):
            if gap(own, tensor) <= 1e-6 * rms(tensor):
                text = f"{side}'s gradient is {name} unchanged, as if nothing were there"
                yield Cause("straight-through gradient", text, 0.9)
                return


def loss(trial: Trial) -> Iterator[Cause]:
    """One loss is the other times a count: a sum for a mean."""
    if trial.scene.role != "loss" or trial.expected.size != 1:
        return
    base, raw = float(trial.expected.ravel()[0]), float(trial.found.ravel()[0])
    if base == 0 or raw == 0 or not (math.isfinite(base) and math.isfinite(raw)):
        return
    ratio = raw / base
    counts: dict[float, str] = {}
    for name, tensor in trial.scene.given.items():
        for axis in range(tensor.ndim):
            counts.setdefault(tensor.shape[axis], f"the length of axis {axis} of {name or 'the output'}")
            counts.setdefault(int(np.prod(tensor.shape[: axis + 1])), f"the count of rows of {name or 'the output'}")
        counts[tensor.size] = f"the number of elements of {name or 'the output'}"
    for count, words in counts.items():
        if count > 1:
            for value, how in ((count, "a sum for a mean"), (1 / count, "a mean for a sum")):
                if abs(ratio / value - 1) < 1e-5:
                    yield Cause("reduction", f"raw's loss is base's times {ratio:.6g}, {words}: {how}", 0.93)
                    return
    if abs(ratio + 1) < 1e-5:
        yield Cause("sign", "raw's loss is base's with the other sign", 0.9)
    elif readings(trial, ratio, 1e-6):
        yield Cause("scale", f"raw's loss is base's times {told(trial, ratio)}", 0.6)


# ------------------------------------------------------------------ the step of an optimizer


def optimizer(trial: Trial) -> Iterator[Cause]:
    """What each side added to the weight in the step, against each other, the weight and its gradient."""
    scene = trial.scene
    if scene.phase != "weight" or scene.before is None or not trial.same_shape:
        return
    before = plain(trial.cut(scene.before))
    if before.shape != trial.expected.shape or before.size < 2:
        return
    base, raw = trial.expected - before, trial.found - before
    if not np.any(raw) or not np.any(base):
        side = "raw" if not np.any(raw) else "base"
        yield Cause("not updated", f"{side}'s step leaves the weight as it was: the optimizer does not hold it", 0.95)
        return
    yield from _decay(trial, before, base, raw)
    yield from _step_size(trial, before, base, raw)
    if scene.gradient is not None:
        yield from _rule(trial, before, plain(trial.cut(scene.gradient)), base, raw)


def _both(trial: Trial, name: str) -> str:
    base, raw = trial.scene.base_settings.get(name), trial.scene.raw_settings.get(name)
    return f"; {name} is {raw!r} in raw and {base!r} in base" if base is not None or raw is not None else ""


def _step_size(trial: Trial, before: Array, base: Array, raw: Array) -> Iterator[Cause]:
    back = factor(base, raw)
    if before.size < 4 or not (math.isfinite(back) and back) or not trial.repairs(before + back * raw):
        return
    ratio = 1 / back
    text = f"raw's step is base's times {ratio:.6g}"
    settings = trial.scene.base_settings, trial.scene.raw_settings
    rates = [side.get("lr") for side in settings]
    if rates[0] and rates[1] and abs(rates[1] / rates[0] / ratio - 1) < 1e-3:
        yield Cause("lr", f"{text}{_both(trial, 'lr')}", 0.96)
        return
    for m in {*trial.numbers("momentum")}:
        for value, name, words in ((1 + m, "nesterov", "1 + momentum"), (1 - m, "dampening", "1 - momentum")):
            if m and any(abs(ratio / v - 1) < 1e-3 for v in (value, 1 / value)):
                yield Cause(name, f"{text}, which is {words} of {m:g}", 0.94)
                return
    for b1 in {*trial.numbers("beta1"), 0.9}:
        for b2 in {*trial.numbers("beta2"), 0.999}:
            value = (1 - b1) / math.sqrt(1 - b2)
            if any(abs(ratio / v - 1) < 2e-3 for v in (value, 1 / value)):
                text += f", which is (1 - {b1:g}) / sqrt(1 - {b2:g})"
                yield Cause("bias correction", f"{text}: one side does not correct its moments", 0.94)
                return
    if abs(ratio + 1) < 1e-4:
        yield Cause("sign", "raw's step goes the other way", 0.93)
    else:
        yield Cause("lr", f"{text}{_both(trial, 'lr')}", 0.9 if abs(ratio - 1) > 1e-2 else 0.6)


def _decay(trial: Trial, before: Array, base: Array, raw: Array) -> Iterator[Cause]:
    apart = raw - base
    share = factor(apart, before)
    if before.size < 4 or not (math.isfinite(share) and share) or gap(apart, share * before) > 0.1 * rms(apart):
        return
    if trial.repairs(trial.found - share * before):
        text = f"raw's step is base's plus {share:.4g} times the weight{_both(trial, 'weight_decay')}"
        yield Cause("weight decay", text, 0.95)


def _rule(trial: Trial, before: Array, gradient: Array, base: Array, raw: Array) -> Iterator[Cause]:
    """The first step of the usual optimizers, each fitted to both sides."""
    if gradient.shape != before.shape or before.size < 8:
        return
    fits = [_fit(trial, before, gradient, step, side) for side, step in enumerate((base, raw))]
    if fits[0] is None or fits[1] is None or fits[0][0] == fits[1][0]:
        return
    right, wrong = fits[0], fits[1]
    if not trial.models(before + right[1], before + wrong[1]):
        return
    kinds = [fit[0].split(",")[0] for fit in (right, wrong)]
    name = "eps" if "decay" not in right[0] + wrong[0] else "weight decay"
    name = name if kinds[0] == kinds[1] else "optimizer"
    text = f"base's step is that of {right[0]}, raw's that of {wrong[0]}"
    yield Cause(name, f"{text}{_both(trial, 'eps' if name == 'eps' else 'weight_decay')}", 0.92)


def _fit(trial: Trial, before: Array, gradient: Array, step: Array, side: int) -> tuple[str, Array] | None:
    """The rule whose step comes closest, and the step it makes."""
    settings = (trial.scene.base_settings, trial.scene.raw_settings)[side]
    best: tuple[float, str, Array] | None = None
    decays = {float(settings.get("weight_decay") or 0.0), 0.0, 1e-4, 1e-3, 1e-2, 0.1, *trial.numbers("weight_decay")}
    epss = dict.fromkeys([*trial.numbers("eps"), 1e-8, 1e-7, 1e-6, 1e-5, 1e-3])
    for decay in sorted(decays):
        moved = gradient + decay * before
        plainly = {"SGD": moved} | {f"Adam, eps {eps:g}": moved / (np.abs(moved) + eps) for eps in epss}
        for name, direction in plainly.items():
            words = f"{name}{f', decay {decay:g} in the gradient' if decay else ''}"
            for columns, label in (((direction,), words), ((direction, before), f"{words}, decay apart")):
                if decay and len(columns) > 1:
                    continue
                solved, *_ = np.linalg.lstsq(np.stack([c.ravel() for c in columns], 1), step.ravel(), rcond=None)
                made = sum(float(weight) * column for weight, column in zip(solved, columns, strict=True))
                far = gap(step, np.asarray(made))
                if best is None or far < 0.5 * best[0]:
                    best = far, label, np.asarray(made)
    return None if best is None or best[0] > 0.3 * trial.gap else (best[1], best[2])


# ------------------------------------------------------------------ running statistics


def statistics(trial: Trial) -> Iterator[Cause]:
    """What each side's running statistic took in of the batch."""
    scene = trial.scene
    if scene.phase != "buffer" or not trial.same_shape:
        return
    before = None if scene.before is None else plain(trial.cut(scene.before))
    if before is None or before.shape != trial.expected.shape or trial.expected.size < 2:
        return
    base, raw = trial.expected - before, trial.found - before
    if not np.any(raw) or not np.any(base):
        side = "raw" if not np.any(raw) else "base"
        text = f"{side} leaves it as it was: its module is not in training mode, or does not track"
        yield Cause("not updated", text, 0.94)
        return
    yield from _variance(trial, before)
    share = factor(raw, base)
    if math.isfinite(share) and share and trial.repairs(before + raw / share):
        momenta = [settings.get("momentum") for settings in (scene.base_settings, scene.raw_settings)]
        text = f"raw takes in {share:.6g} times as much of the batch as base"
        if momenta[0] and momenta[1] and abs(momenta[1] / momenta[0] / share - 1) < 1e-3:
            yield Cause("momentum", f"{text}{_both(trial, 'momentum')}", 0.97)
        else:
            yield Cause("momentum", f"{text}{_both(trial, 'momentum')}", 0.85)


def _variance(trial: Trial, before: Array) -> Iterator[Cause]:
    """The batch's variance with n on one side and n - 1 on the other."""
    counts = {
        t.size // trial.expected.size
        for t in trial.scene.given.values()
        if t.size % trial.expected.size == 0 and t.size > trial.expected.size
    }
    momenta = dict.fromkeys([*trial.numbers("momentum"), 0.1])
    for momentum in momenta:
        new = [(t - (1 - momentum) * before) / momentum for t in (trial.expected, trial.found)]
        ratio = factor(new[1], new[0])
        for count in counts:
            for value, words in ((count / (count - 1), "n - 1"), ((count - 1) / count, "n")) if count > 1 else ():
                if abs(ratio - value) > 0.05 * abs(value - 1) + 1e-12:
                    continue
                if trial.repairs((1 - momentum) * before + momentum * new[1] / value):
                    text = f"raw divides the batch's variance by {words}, base does not (n is {count})"
                    yield Cause("variance", text, 0.96)
                    return
