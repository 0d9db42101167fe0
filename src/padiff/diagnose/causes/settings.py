"""Settings that differ between the two modules, side by side, and tried: raw again with base's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from padiff.diagnose.causes.functions import ACTIVATIONS
from padiff.diagnose.causes.trial import Trial, Unary, gap, plain
from padiff.records import Array, Cause

NAMES = {
    "approximate": "gelu variant",
    "p": "dropout",
    "training": "training mode",
    "dim": "axis",
    "negative_slope": "activation slope",
    "rope_theta": "rope base",
    "num_heads": "head count",
}
"""What a setting is called as a cause, where not by its own name."""
_WORDLESS = frozenset({"name", "device", "dtype", "kind"})
_MOST_TRIED = 8


def differing_settings(base: Mapping[str, Any], raw: Mapping[str, Any]) -> tuple[tuple[str, Any, Any], ...]:
    """Name, base's value and raw's of every setting that both have and that says something else."""
    return tuple(
        (name, value, raw[name])
        for name, value in base.items()
        if name in raw and name not in _WORDLESS and not same_setting(value, raw[name])
    )


def same_setting(one: Any, other: Any) -> bool:
    """Equal, or another spelling of the same: 2 and (2, 2), None and False, 1 and 1.0."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(same_setting(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, tuple) or isinstance(other, tuple):
        many, single = (one, other) if isinstance(one, tuple) else (other, one)
        return bool(many) and all(same_setting(item, single) for item in many)
    if not one and not other and (one is None or other is None):
        return not isinstance(one or other, str) and all(x is None or x is False for x in (one, other))
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return bool(one == other or abs(one - other) <= 1e-9 * max(abs(one), abs(other)))
    return bool(one == other)


def by_settings(trial: Trial) -> Iterator[Cause]:
    """Raw run again with base's settings, one by one and then together."""
    scene = trial.scene
    differing = differing_settings(scene.base_settings, scene.raw_settings)[:_MOST_TRIED]
    alone = False
    for name, base, raw in differing:
        if _helps(trial, _again(trial, {name: base})):
            alone = True
            yield Cause(NAMES.get(name, name), f"{_beside(name, base, raw)}; with base's value the outputs agree", 0.97)
    if alone or len(differing) < 2:
        return
    needed = {name: base for name, base, _ in differing}
    if not _helps(trial, _again(trial, needed)):
        return
    for name in list(needed):
        fewer = {other: value for other, value in needed.items() if other != name}
        if _helps(trial, _again(trial, fewer)):
            needed = fewer
    told = "; ".join(_beside(name, base, raw) for name, base, raw in differing if name in needed)
    names = " and ".join(NAMES.get(name, name) for name in needed)
    yield Cause(names, f"{told}; with base's values the outputs agree", 0.96)


def _beside(name: str, base: Any, raw: Any) -> str:
    return f"{name} is {raw!r} in raw and {base!r} in base"


def _again(trial: Trial, changes: Mapping[str, Any]) -> Array | None:
    """Raw's tensor with other settings; a module that cannot run with them tells nothing."""
    if _leaves_nothing(trial, changes):
        return None
    try:
        return trial.scene.retry(changes)
    except Exception:
        return None


def _leaves_nothing(trial: Trial, changes: Mapping[str, Any]) -> bool:
    """Whether a kernel with other settings is wider than the picture: paddle 3.3 runs it nevertheless, and has its
    library of matrices complain on the terminal."""
    settings = {**trial.scene.raw_settings, **changes}
    picture = next(iter(trial.scene.given.values()), None)
    kernel, *rest = (settings.get(name) for name in ("kernel_size", "padding", "dilation"))
    if picture is None or kernel is None or isinstance(rest[0], str) or picture.ndim < 3:
        return False
    axes = picture.ndim - 2
    try:
        kernels, paddings, dilations = (_each(value, axes) for value in (kernel, rest[0] or 0, rest[1] or 1))
    except (TypeError, ValueError):
        return False
    sizes = zip(picture.shape[2:], kernels, paddings, dilations, strict=True)
    return any(size + 2 * padding < dilation * (width - 1) + 1 for size, width, padding, dilation in sizes)


def _each(value: Any, axes: int) -> list[int]:
    """One number for each axis."""
    found = [int(value)] * axes if isinstance(value, (int, np.integer)) else [int(one) for one in value]
    if len(found) != axes:
        raise ValueError(value)
    return found


def _helps(trial: Trial, again: Array | None) -> bool:
    """On the whole tensor: what was run again is all there."""
    expected = trial.scene.expected
    if again is None or again.shape != expected.shape:
        return False
    if not trial.scene.agrees(expected, again):
        return _activated(trial, expected, again)
    return not trial.same_shape or gap(plain(trial.cut(expected)), plain(trial.cut(again))) <= 0.5 * trial.gap


def _activated(trial: Trial, expected: Array, again: Array) -> bool:
    """A norm may come with its activation on one side only: whether one is an activation of the other now, and was not
    before."""
    scene = trial.scene
    if scene.base_kind == scene.raw_kind or scene.expected.dtype.kind != "f" or scene.phase != "forward":
        return False

    def made(function: Unary, of: Array) -> Array:
        return np.asarray(function(of.astype(np.float64))).astype(expected.dtype)

    for function in ACTIVATIONS.values():
        if scene.agrees(made(function, expected), again):
            return not scene.agrees(made(function, expected), scene.found)
        if scene.agrees(expected, made(function, again)):
            return not scene.agrees(expected, made(function, scene.found))
    return False


_FAMILIES = {"pool": "pooling", "norm": "norm kind", "pad": "padding", "dropout": "dropout", "conv": "layer kind"}
"""What is in the names of layers of one family to what it is called when they are not the same."""


def another_layer(trial: Trial) -> Iterator[Cause]:
    """Two layers of one family that are not the same: a pool of means, a pool of the largest."""
    base, raw = trial.scene.layer, trial.scene.raw_layer
    if base is None or raw is None or base == raw or trial.scene.phase != "forward":
        return
    if trial.same_shape and trial.agree(trial.expected, trial.found):
        return
    name = next((name for word, name in _FAMILIES.items() if word in base and word in raw), None)
    if name is not None:
        yield Cause(name, f"base has a {base}, raw a {raw}", 0.7, tested=False)
