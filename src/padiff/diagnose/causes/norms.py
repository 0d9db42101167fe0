"""Norms, computed again: which axes, which eps, which variance, centred or not, whose statistics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from padiff.diagnose.causes.trial import Trial, gap, plain
from padiff.records import Array, Cause

_EPS = (1e-5, 1e-6, 1e-8, 1e-12, 1e-3, 1e-4, 1e-7, 1e-10, 1e-2, 0.0)
_NAMES = {
    **dict.fromkeys(("gamma", "g", "w", "gain", "scale"), "weight"),
    **dict.fromkeys(("beta", "b", "shift", "offset"), "bias"),
    **dict.fromkeys(("mean", "moving_mean"), "running_mean"),
    **dict.fromkeys(("var", "variance", "moving_var", "moving_variance"), "running_var"),
}
"""What authors call what a norm of their own holds."""


@dataclass(frozen=True)
class _Form:
    """One way to normalise."""

    axes: tuple[int, ...]
    eps: float
    centred: bool = True
    less: int = 0
    """What is taken off the count when the variance is made."""
    groups: int = 0
    running: bool = False
    affine: bool = True

    def told(self) -> str:
        if self.running:
            return f"by running statistics with eps {self.eps:g}"
        parts = [f"over {self.groups} groups" if self.groups else f"over axes {self.axes}"]
        parts += [f"eps {self.eps:g}", "centred" if self.centred else "by the root mean square"]
        parts += ["with n - 1"] if self.less else []
        parts += [] if self.affine else ["without its weight"]
        return ", ".join(parts)


def norm(trial: Trial) -> Iterator[Cause]:
    """Base normalises a tensor at hand in one way, raw in another."""
    if trial.expected.ndim < 2 or trial.expected.size < 8:
        return
    eps = tuple(dict.fromkeys([*trial.numbers("eps"), *_EPS]))
    for name, x in trial.like.items():
        if not _related(x, trial.expected):
            continue
        ours = _by_role(trial.base_weights or _of_child(trial, name))
        theirs = _by_role(trial.raw_weights) or ours
        right = _best(trial, x, trial.expected, ours, eps, None)
        if right is None:
            continue
        wrong = _best(trial, x, trial.found, theirs, eps, right)
        if wrong is None or wrong == right:
            continue
        if trial.models(_normalised(trial, x, right, ours), _normalised(trial, x, wrong, theirs)):
            yield Cause(_name(right, wrong), f"base normalises {name} {right.told()}; raw {wrong.told()}", 0.94)
            return


def _by_role(weights: dict[str, Array]) -> dict[str, Array]:
    return {_NAMES.get(name, name): weight for name, weight in weights.items()}


def _of_child(trial: Trial, name: str) -> dict[str, Array]:
    """The weights of the child that was given a tensor, where that is known."""
    path = name.removeprefix("what ").removesuffix(" was given")
    found: dict[str, Array] = {}
    for key, weight in trial.scene.inner_weights.items():
        child, _, last = key.rpartition(".")
        if path == child or path.endswith(f".{child}"):
            found[last] = plain(weight)
    return found


def _related(x: Array, y: Array) -> bool:
    """Whether each channel of the one goes up and down with that of the other; most tensors at hand don't."""
    for axis in dict.fromkeys((x.ndim - 1, 1)):
        one, other = (np.moveaxis(t, axis, -1).reshape(-1, t.shape[axis])[:512, :64] for t in (x, y))
        if len(one) < 64:
            return True
        one, other = one - one.mean(axis=0), other - other.mean(axis=0)
        size = np.sqrt((one**2).sum(axis=0) * (other**2).sum(axis=0))
        if float(np.mean(np.abs((one * other).sum(axis=0)) / np.maximum(size, 1e-300))) > 0.25:
            return True
    return False


def _name(right: _Form, wrong: _Form) -> str:
    if right.running != wrong.running:
        return "training mode"
    if right.axes != wrong.axes or right.groups != wrong.groups:
        return "axis"
    if right.centred != wrong.centred:
        return "norm kind"
    if right.affine != wrong.affine:
        return "missing weight" if right.affine else "extra weight"
    return "variance" if right.less != wrong.less else "eps"


def _best(
    trial: Trial, x: Array, target: Array, weights: dict[str, Array], eps: tuple[float, ...], known: _Form | None
) -> _Form | None:
    """The form that comes closest, if it comes close; first the kind, then the eps."""
    told = tuple(dict.fromkeys(trial.numbers("eps"))) or eps[:1]  # of small numbers an eps changes as much as a kind
    forms = [form for value in told for form in _forms(trial, x, value, weights)]
    if known is not None:
        forms.insert(0, known)
    scored = [(gap(target, _normalised(trial, x, form, weights)), index) for index, form in enumerate(forms)]
    scored = [(apart, index) for apart, index in scored if apart == apart]
    if not scored:
        return None
    apart = min(scored)[0]
    if apart > max(0.02 * float(np.abs(target).mean()), 3 * trial.gap):
        return None
    kinds = [forms[i] for far, i in sorted(scored) if far <= max(4 * apart, trial.gap)][:6]
    options = [
        _Form(kind.axes, value, kind.centred, kind.less, kind.groups, kind.running, kind.affine)
        for kind in kinds
        for value in eps
    ]
    far = [gap(target, _normalised(trial, x, option, weights)) for option in options]
    best = int(np.nanargmin(far))
    if known is not None and known in options and far[options.index(known)] <= 1.05 * far[best]:
        return known
    return options[best] if far[best] <= 0.3 * trial.gap else None


def _forms(trial: Trial, x: Array, eps: float, weights: dict[str, Array]) -> Iterator[_Form]:
    last = x.ndim - 1
    if "running_mean" in weights and x.ndim >= 2 and weights["running_mean"].size == x.shape[1]:
        yield _Form((), eps, running=True)
    sets = [tuple(range(first, x.ndim)) for first in range(last, 0, -1)]
    sets += [(0, *range(2, x.ndim)), tuple(range(2, x.ndim))]
    sets += [axes for count in (1, 2) for axes in combinations(range(x.ndim), count)]
    for axes in dict.fromkeys(axes for axes in sets if axes):
        if int(np.prod([x.shape[axis] for axis in axes])) < 2:
            continue
        for centred in (True, False):
            for less in (0, 1) if centred else (0,):
                for affine in (True, False) if weights else (True,):
                    yield _Form(axes, eps, centred, less, affine=affine)
    counts = {int(n) for n in trial.numbers("num_groups", "groups")}
    for groups in sorted(n for n in counts if n > 1 and x.shape[1] % n == 0):
        yield _Form((), eps, groups=groups)


def _normalised(trial: Trial, x: Array, form: _Form, weights: dict[str, Array]) -> Array:
    if form.running:
        shape = (-1, *(1,) * (x.ndim - 2))
        mean, variance = weights["running_mean"].reshape(shape), weights["running_var"].reshape(shape)
        value = (x - mean) / np.sqrt(variance + form.eps)
        return _affine(value, weights, 1)
    if form.groups:
        parts = x.reshape(x.shape[0], form.groups, -1)
        inner = _Form((2,), form.eps, form.centred, form.less, affine=False)
        return _affine(_normalised(trial, parts, inner, {}).reshape(x.shape), weights, 1)
    count = int(np.prod([x.shape[axis] for axis in form.axes]))
    moved = x - x.mean(axis=form.axes, keepdims=True) if form.centred else x
    with np.errstate(all="ignore"):
        variance = np.square(moved).sum(axis=form.axes, keepdims=True) / max(count - form.less, 1)
        value = moved / np.sqrt(variance + form.eps)
    if not form.affine:
        return np.asarray(value)
    channels = 0 in form.axes or (x.ndim - 1 not in form.axes) or form.axes == tuple(range(2, x.ndim))
    return _affine(value, weights, 1 if channels and x.ndim > 2 else x.ndim - 1)


def _affine(value: Array, weights: dict[str, Array], axis: int) -> Array:
    """Times the weight and plus the bias, along the axis asked for or whichever has their length."""
    for name, put in (("weight", np.multiply), ("bias", np.add)):
        weight = weights.get(name)
        if weight is None:
            continue
        if weight.shape == value.shape[-weight.ndim :] and weight.ndim > 1:
            value = put(value, weight)
            continue
        places = [a for a in (axis, value.ndim - 1, 1) if a < value.ndim and value.shape[a] == weight.size]
        if places:
            shape = [1] * value.ndim
            shape[places[0]] = -1
            value = put(value, weight.reshape(shape))
    return value
