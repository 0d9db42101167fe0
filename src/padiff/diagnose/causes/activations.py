"""Activations: another one, another variant, none, one too many, or gate and value changed places."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import numpy as np

from padiff.diagnose.causes.functions import ACTIVATIONS, GELUS, elu, leaky
from padiff.diagnose.causes.trial import Trial, Unary, factor, gap, rms
from padiff.records import Array, Cause


def activation(trial: Trial) -> Iterator[Cause]:
    """Base applies one function to a tensor at hand, raw another."""
    for name, tensor in trial.like.items():
        few = trial.few(tensor)
        base = _matching(few, trial.few_expected, trial)
        raw = _matching(few, trial.few_found, trial)
        for right, f in base:
            for wrong, g in raw:
                if right != wrong and trial.models(_apply(f, tensor), _apply(g, tensor)):
                    yield _named(right, wrong, name)
                    return


def _named(right: str, wrong: str, name: str) -> Cause:
    text = f"of {name}, base takes {right} and raw {wrong}"
    if right in GELUS and wrong in GELUS:
        return Cause("gelu variant", text, 0.95)
    if wrong == "no activation":
        return Cause("missing activation", f"base applies {right} to {name}, raw nothing", 0.95)
    if right == "no activation":
        return Cause("extra activation", f"raw applies {wrong} to {name}, base nothing", 0.95)
    if right.partition(" with ")[0] == wrong.partition(" with ")[0]:
        return Cause("activation slope", text, 0.95)
    return Cause("activation", text, 0.95)


def _matching(few: Array, target: Array, trial: Trial) -> list[tuple[str, Unary]]:
    """Functions that turn the one into the other, on the few elements looked at first; the nearest, since of small
    numbers many return nearly the same."""
    bound = 0.3 * gap(trial.few_expected, trial.few_found)
    rounding = 1e-6 * rms(target)
    found: list[tuple[float, str, Unary]] = []
    for name, function in (*ACTIVATIONS.items(), *_fitted(trial, few, target)):
        apart = gap(target, _apply(function, few))
        if apart <= bound:
            found.append((max(apart, rounding), name, function))
    return [(name, function) for _, name, function in sorted(found, key=lambda one: one[0])[:3]]


def _fitted(trial: Trial, few: Array, target: Array) -> Iterator[tuple[str, Unary]]:
    """Those with a slope, which is read off the negative side."""
    negative = few < 0
    if negative.sum() < 8:
        return
    x, y = few[negative], target[negative]
    close = trial.within(1e-3)
    slope = factor(y, x)
    if slope == slope and abs(slope) > 1e-6 and not trial.near(slope, 1.0) and gap(y, slope * x) <= close * rms(y):
        yield f"leaky relu with slope {slope:.5g}", leaky(slope)
    alpha = factor(y, np.expm1(x))
    if alpha == alpha and abs(alpha) > 1e-6 and gap(y, alpha * np.expm1(x)) <= close * rms(y):
        yield f"elu with alpha {alpha:.5g}", elu(alpha)


def _apply(function: Unary, x: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(function(x))


def missing_activation(trial: Trial) -> Iterator[Cause]:
    """Base's tensor is an activation of raw's own, or raw's is one of base's."""
    if min(float(few.std()) for few in (trial.few_expected, trial.few_found)) <= 1e-4 * rms(trial.few_expected):
        return  # saturated, or all but constant: any function would do
    if trial.hollow:
        return
    for name, function in ACTIVATIONS.items():
        if name == "no activation":
            continue
        if trial.may_repair(_apply(function, trial.few_found)) and trial.repairs(_apply(function, trial.found)):
            yield Cause("missing activation", f"{name} of raw's values agrees with base's", 0.93)
            return
        if trial.may_be_raw(_apply(function, trial.few_expected)):
            candidate = _apply(function, trial.expected)
            if trial.models(trial.expected, candidate):
                yield Cause("extra activation", f"raw's values are {name} of base's", 0.93)
                return


def clamp(trial: Trial) -> Iterator[Cause]:
    """One side cuts off what is too large or too small."""
    for source, target, wrong in ((trial.expected, trial.found, "raw"), (trial.found, trial.expected, "base")):
        low, high = float(target.min()), float(target.max())
        inside = (source > low) & (source < high)
        if not 0 < inside.sum() < source.size or low == high:
            continue
        cut = np.clip(source, low, high)
        held = trial.models(trial.expected, cut) if wrong == "raw" else trial.repairs(cut)
        if held:
            words = f"between {low:.6g} and {high:.6g}"
            if trial.scene.phase in ("backward", "gradient"):
                yield Cause("gradient clipping", f"{wrong} cuts its gradients to values {words}", 0.9)
            else:
                yield Cause("clamp", f"{wrong} keeps its values {words}, the other side does not", 0.88)
            return


def gate(trial: Trial) -> Iterator[Cause]:
    """A product of an activation of one tensor and another: other activation, or the two changed places."""
    like = dict(list(trial.like.items())[:8])
    few = {name: trial.few(tensor) for name, tensor in like.items()}
    base: list[tuple[str, str, str]] = []
    raw: list[tuple[str, str, str]] = []
    for (one, a), (other, b) in permutations(few.items(), 2):
        for name, function in ACTIVATIONS.items():
            opened = _apply(function, a)
            if opened.size and opened.min() == opened.max():  # of ids, say: it opens or shuts all alike, and is no gate
                continue
            product = opened * b
            if trial.may_be_base(product):
                base.append((name, one, other))
            if trial.may_be_raw(product):
                raw.append((name, one, other))
    for right in base[:4]:
        for wrong in raw[:4]:
            if right == wrong:
                continue
            made = [_apply(ACTIVATIONS[act], like[one]) * like[other] for act, one, other in (right, wrong)]
            if not trial.models(made[0], made[1]):
                continue
            text = "base takes {} of {} times {}".format(*right) + ", raw {} of {} times {}".format(*wrong)
            if right[1:] != wrong[1:] and right[0] == wrong[0]:
                yield Cause("operands", text, 0.94)
            elif right[0] in GELUS and wrong[0] in GELUS:
                yield Cause("gelu variant", text, 0.94)
            else:
                yield Cause("activation", text, 0.93)
            return
