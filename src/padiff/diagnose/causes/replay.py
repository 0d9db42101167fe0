"""Optimizers computed again from all gradients since their first step, with each side's settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from padiff.diagnose.causes.trial import Trial, gap, plain, rms
from padiff.records import Array, Cause


@dataclass(frozen=True)
class Way:
    """One way to step."""

    adaptive: bool
    """Adam and its like; else gradient descent, with momentum or without."""
    lr: float
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    apart: bool = False
    """The decay is taken off the weight, and not added to the gradient."""
    corrected: bool = True
    """The moments are divided by what they lack in the first steps."""
    maximize: bool = False


ROUNDING = 4e-7
"""Of a weight's size: what its dtype loses in a step or two."""
_NAMES = {
    "weight_decay": "weight decay",
    "apart": "weight decay",
    "beta1": "betas",
    "beta2": "betas",
    "corrected": "bias correction",
    "maximize": "sign",
    "adaptive": "optimizer",
}
_KINDS = {"sgd": False, "momentum": False, "adam": True, "adamw": True}


def way_of(settings: Mapping[str, Any]) -> Way | None:
    """What an optimizer was built with; None for a kind that is not known here."""
    kind = str(settings.get("kind", "")).lower()
    if kind not in _KINDS or not isinstance(settings.get("lr"), (int, float)) or settings.get("amsgrad"):
        return None
    known = {name: settings[name] for name in Way.__dataclass_fields__ if settings.get(name) is not None}
    return replace(Way(_KINDS[kind], 0.0, apart=kind == "adamw"), **known)


def stepped(way: Way, start: Array, gradients: tuple[Array, ...]) -> dict[str, Array]:
    """The weight after all steps, and what the optimizer remembers of it."""
    weight, first, second = start, np.zeros_like(start), np.zeros_like(start)
    for step, gradient in enumerate(gradients, 1):
        gradient = -gradient if way.maximize else gradient
        if way.weight_decay and way.apart:
            weight = weight * (1 - way.lr * way.weight_decay)
        elif way.weight_decay:
            gradient = gradient + way.weight_decay * weight
        if not way.adaptive:
            keep = 1.0 if step == 1 else 1 - way.dampening
            first = way.momentum * first + keep * gradient
            weight = weight - way.lr * (gradient + way.momentum * first if way.nesterov else first)
            continue
        first = way.beta1 * first + (1 - way.beta1) * gradient
        second = way.beta2 * second + (1 - way.beta2) * np.square(gradient)
        one, two = (1 - way.beta1**step, 1 - way.beta2**step) if way.corrected else (1.0, 1.0)
        weight = weight - way.lr * (first / one) / (np.sqrt(second / two) + way.eps)
    return {"": weight} | ({"moment1": first, "moment2": second} if way.adaptive else {"velocity": first})


def replayed(trial: Trial) -> Iterator[Cause]:
    """Base's weight comes out with base's settings; raw's with one thing, or some, that are otherwise."""
    scene = trial.scene
    right = way_of(scene.base_settings)
    if right is None or scene.start is None or not scene.history:
        return
    start, gradients = plain(trial.cut(scene.start)), tuple(plain(trial.cut(g)) for g in scene.history)
    if any(gradient.shape != trial.expected.shape for gradient in (start, *gradients)):
        return

    def makes(way: Way, weight: Array) -> bool:
        made = stepped(way, start, gradients).get(scene.moment)
        if made is None:
            return False
        # Measured by the step itself: beside base's, one that is a hundredth is like one that is a thousandth.
        step = weight if scene.moment else weight - start
        near = min(0.1 * trial.gap, max(0.02 * rms(step), ROUNDING * rms(weight)))
        return gap(weight, made) <= near and trial.agree(weight, made)

    if not makes(right, trial.expected):
        return
    wrong = way_of(scene.raw_settings)
    if wrong is not None and makes(wrong, trial.found):
        yield from _between(right, wrong, lambda way: makes(way, trial.found))
        return
    for name, way in _variants(right):
        if makes(way, trial.found):
            text = f"raw's weight comes out with {_told(right, way)} in place of base's"
            yield Cause(_NAMES.get(name, name), text, 0.94)
            return


def _differing(right: Way, wrong: Way) -> list[str]:
    names = [name for name in Way.__dataclass_fields__ if getattr(right, name) != getattr(wrong, name)]
    idle = {"beta1", "beta2", "eps", "corrected"} if not (right.adaptive or wrong.adaptive) else set()
    if not (right.weight_decay or wrong.weight_decay):
        idle.add("apart")
    return [name for name in names if name not in idle]


def _between(right: Way, wrong: Way, makes: Any) -> Iterator[Cause]:
    """The least that has to be raw's for raw's weight to come out of base's optimizer."""
    names = _differing(right, wrong)
    for name in names:
        if makes(replace(right, **{name: getattr(wrong, name)})):
            names = [name]
            break
    for name in list(names) if len(names) > 1 else ():
        fewer = [other for other in names if other != name]
        if makes(replace(right, **{other: getattr(wrong, other) for other in fewer})):
            names = fewer
    told = "; ".join(
        f"{name} is {_short(getattr(wrong, name))} in raw and {_short(getattr(right, name))} in base" for name in names
    )
    called = " and ".join(dict.fromkeys(_NAMES.get(name, name) for name in names))
    if called:
        yield Cause(called, f"{told}; both weights come out when the steps are computed again so", 0.97)


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else repr(value)


def _told(right: Way, way: Way) -> str:
    return " and ".join(f"{name} {_short(getattr(way, name))}" for name in _differing(right, way))


def _variants(right: Way) -> Iterator[tuple[str, Way]]:
    """Ways that differ from one in one thing."""
    for decay in (0.0, 0.1, 0.01, 1e-3, 1e-4, 5e-4, 0.05):
        if decay != right.weight_decay:
            yield "weight_decay", replace(right, weight_decay=decay)
    if right.weight_decay:
        yield "apart", replace(right, apart=not right.apart)
    for share in (0.1, 10.0, 0.5, 2.0, 0.01, 100.0):
        yield "lr", replace(right, lr=right.lr * share)
    yield "maximize", replace(right, maximize=not right.maximize)
    if not right.adaptive:
        for momentum in (0.0, 0.9, 0.8, 0.95, 0.99, 0.5):
            if momentum != right.momentum:
                yield "momentum", replace(right, momentum=momentum)
        yield "nesterov", replace(right, nesterov=not right.nesterov)
        for dampening in (0.0, right.momentum):
            yield "dampening", replace(right, dampening=dampening)
        return
    yield "corrected", replace(right, corrected=not right.corrected)
    for exponent in range(3, 17):
        yield "eps", replace(right, eps=10.0**-exponent)
    for beta in (0.5, 0.8, 0.9, 0.95, 0.99, 0.999):
        yield "beta1", replace(right, beta1=beta)
        yield "beta2", replace(right, beta2=beta)
