"""The step of an optimizer: computed again from the gradients, or held against the weight and its gradient."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from padiff.diagnose.causes.replay import replayed
from padiff.diagnose.causes.trial import Trial, both, factor, gap, plain, rms
from padiff.records import Array, Cause

_CLIPPED = 1e-3
"""How far what is left of a gradient must be apart, relative."""


def optimizer(trial: Trial) -> Iterator[Cause]:
    """What each side added to the weight in the step, against each other, the weight and its gradient."""
    scene = trial.scene
    yield from _clipped(trial)
    if scene.moment and trial.same_shape:
        yield from replayed(trial)
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
    found = list(_other_kind(trial)) or list(replayed(trial))
    yield from found
    if found:
        return
    yield from _decay(trial, before, base, raw)
    yield from _step_size(trial, before, base, raw)
    if scene.gradient is not None:
        yield from _rule(trial, before, plain(trial.cut(scene.gradient)), base, raw)


def _clipped(trial: Trial) -> Iterator[Cause]:
    """Both optimizers were given the gradient, one of them more of it than the other."""
    base, raw = trial.scene.clipped or (1.0, 1.0)
    if abs(raw / base - 1) > _CLIPPED:
        text = f"base's optimizer was given {base:.4g} times the gradient, raw's {raw:.4g} times"
        yield Cause("gradient clipping", f"{text}: they clip or scale it otherwise", 0.96)


_OWN = (
    *("sgd", "adam", "adagrad", "adadelta", "adafactor", "adamax", "asgd", "lamb", "lars", "lbfgs", "muon", "nadam"),
    *("radam", "rmsprop", "rprop"),
)
_FAMILIES = {**{kind: kind for kind in _OWN}, "momentum": "sgd", "adamw": "adam"}
"""Optimizers of the frameworks, by family: some are others with one setting more. What a class of the user's is called
says nothing."""


def _other_kind(trial: Trial) -> Iterator[Cause]:
    """Two optimizers that are not of one family: whatever their steps look like, that is why."""
    kinds = [str(side.get("kind", "")) for side in (trial.scene.base_settings, trial.scene.raw_settings)]
    families = [_FAMILIES.get(kind.lower()) for kind in kinds]
    if all(families) and families[0] != families[1]:
        yield Cause("optimizer", f"base steps with {kinds[0]}, raw with {kinds[1]}", 0.95, tested=False)


def _step_size(trial: Trial, before: Array, base: Array, raw: Array) -> Iterator[Cause]:
    back = factor(base, raw)
    if before.size < 4 or not (math.isfinite(back) and back) or not trial.repairs(before + back * raw):
        return
    ratio = 1 / back
    text = f"raw's step is base's times {ratio:.6g}"
    settings = trial.scene.base_settings, trial.scene.raw_settings
    rates = [side.get("lr") for side in settings]
    if rates[0] and rates[1] and abs(rates[1] / rates[0] / ratio - 1) < 1e-3:
        yield Cause("lr", f"{text}{both(trial, 'lr')}", 0.96)
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
    elif rates[0] and rates[0] == rates[1]:
        text += f" at the same lr, {rates[0]:g}: one side clips or scales its gradients in the step"
        yield Cause("gradient clipping", text, 0.9 if abs(ratio - 1) > 1e-2 else 0.6)
    elif rates == [None, None]:  # functions of the user's step, and what they do besides is theirs
        sure = 0.9 if abs(ratio - 1) > 1e-2 else 0.6
        yield Cause("lr", f"{text}, as by another rate", sure)
        yield Cause("gradient clipping", f"{text}, as where one side clips or scales its gradients otherwise", sure)
    else:
        yield Cause("lr", f"{text}{both(trial, 'lr')}", 0.9 if abs(ratio - 1) > 1e-2 else 0.6)


def _decay(trial: Trial, before: Array, base: Array, raw: Array) -> Iterator[Cause]:
    apart = raw - base
    share = factor(apart, before)
    if before.size < 4 or not (math.isfinite(share) and share) or gap(apart, share * before) > 0.1 * rms(apart):
        return
    if trial.repairs(trial.found - share * before):
        text = f"raw's step is base's plus {share:.4g} times the weight{both(trial, 'weight_decay')}"
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
    epss = [side.get("eps") for side in (trial.scene.base_settings, trial.scene.raw_settings)]
    if name == "eps" and None not in epss and epss[0] == epss[1]:
        return
    text = f"base's step is that of {right[0]}, raw's that of {wrong[0]}"
    yield Cause(name, f"{text}{both(trial, 'eps' if name == 'eps' else 'weight_decay')}", 0.92)


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
