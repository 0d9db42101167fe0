"""The known causes as data, and the order in which they are asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np

from padiff.diagnose.causes import (
    activations,
    arithmetic,
    attention,
    layouts,
    linear,
    losses,
    masks,
    norms,
    numerics,
    optimizers,
    quantised,
    randomness,
    reductions,
    rope,
    settings,
    training,
    windows,
)
from padiff.diagnose.causes.trial import Trial
from padiff.diagnose.scene import Scene
from padiff.records import Cause

Finder = Callable[[Trial], Iterator[Cause]]

FIRST: tuple[Finder, ...] = (
    randomness.nondeterminism,
    settings.by_settings,
    settings.another_layer,
    randomness.drawn_otherwise,
    numerics.nan_origin,
    numerics.nan_from_mask,
)
"""Asked whatever the tensors look like."""

MASKS: tuple[Finder, ...] = (masks.mask,)
"""Asked also where tensors hold values that are not finite."""

UNLIKE: tuple[Finder, ...] = (layouts.axes, layouts.shapes)
"""Asked where the shapes differ."""

WHOLE: tuple[Finder, ...] = (numerics.integers, layouts.axes, layouts.shifted, layouts.rearranged)
"""Asked where both tensors hold integers."""

STEP: tuple[Finder, ...] = (optimizers.optimizer, linear.untied)
"""Asked of weights after a step."""

ALIKE: tuple[Finder, ...] = (
    training.no_gradient,
    training.not_cleared,
    training.statistics,
    training.loss,
    losses.cross_entropy,
    arithmetic.scale,
    arithmetic.scale_before_bias,
    arithmetic.bias,
    arithmetic.residual,
    arithmetic.another_residual,
    arithmetic.channel_scale,
    activations.activation,
    activations.missing_activation,
    activations.gate,
    activations.clamp,
    norms.norm,
    linear.transposed_weight,
    linear.weights_differ,
    linear.untied,
    linear.product_precision,
    quantised.quantised,
    reductions.softmax_axis,
    reductions.softmax_precision,
    reductions.softmax_scale,
    reductions.reduction,
    rope.rope,
    rope.rope_table,
    rope.rope_apart,
    rope.rope_by_tables,
    attention.attention,
    layouts.axes,
    layouts.shifted,
    layouts.rearranged,
    layouts.heads_unmerged,
    windows.interpolation,
    windows.borders,
    numerics.integers,
    numerics.precision,
    randomness.dropout,
    arithmetic.operands,
    arithmetic.branch_scale,
    training.masked_gradient,
    training.straight_gradient,
)
"""Asked where both tensors have one shape and are finite."""

SENT_BACK: tuple[Finder, ...] = (
    training.no_gradient,
    losses.cross_entropy,
    arithmetic.scale,
    layouts.shifted,
    layouts.rearranged,
    numerics.precision,
    training.masked_gradient,
)
"""Asked of what a loss sends back to what the model returned."""

SPREAD: tuple[Finder, ...] = (arithmetic.residual, arithmetic.another_residual, arithmetic.operands)
"""Asked where the shapes differ and one tensor can be repeated to the shape of the other."""

_MOST = 6

FORGIVEN: tuple[type[Exception], ...] = (Exception,)
"""What may go wrong in one cause: the others are asked all the same."""


def explain(scene: Scene) -> tuple[Cause, ...]:
    """Causes that were tried and held, the most certain first; none where nothing known explains the difference."""
    if "O" in (scene.expected.dtype.kind, scene.found.dtype.kind):
        return ()
    with np.errstate(all="ignore"):  # a hypothesis may divide by zero and be wrong
        trial = Trial(scene)
        found = [cause for finder in _asked(trial) for cause in _answers(finder, trial)]
        wide = None if trial.same_shape else _spread(scene)
        if wide is not None:
            asked = (*MASKS, *SPREAD) if trial.finite else MASKS
            found += [cause for finder in asked for cause in _answers(finder, wide)]
    return merged(found)


def _spread(scene: Scene) -> Trial | None:
    """Both tensors in one shape, where one of them is only repeated for it: what is added to it may be missing."""
    if scene.expected.ndim != scene.found.ndim or not scene.expected.size or not scene.found.size:
        return None
    try:
        shape = np.broadcast_shapes(scene.expected.shape, scene.found.shape)
    except ValueError:
        return None
    expected, found = (np.ascontiguousarray(np.broadcast_to(one, shape)) for one in (scene.expected, scene.found))
    return Trial(replace(scene, expected=expected, found=found))


def _answers(finder: Finder, trial: Trial) -> Iterator[Cause]:
    try:
        yield from finder(trial)
    except FORGIVEN:
        return


def merged(causes: Iterable[Cause]) -> tuple[Cause, ...]:
    """The most certain first, each name once."""
    kept: dict[str, Cause] = {}
    for cause in sorted(causes, key=lambda cause: -cause.confidence):
        kept.setdefault(cause.name, cause)
    return tuple(kept.values())[:_MOST]


def _asked(trial: Trial) -> Iterator[Finder]:
    if "c" in (trial.expected.dtype.kind, trial.found.dtype.kind):
        yield from FIRST[:3]
        return
    yield from FIRST
    if not trial.scene.expected.size or not trial.scene.found.size:
        yield from (training.no_gradient,)
        return
    if not trial.same_shape:
        if trial.finite:
            yield from UNLIKE
        return
    yield from MASKS
    if trial.scene.expected.dtype.kind in "iub" and trial.scene.found.dtype.kind in "iub":
        yield from WHOLE
        return
    if trial.scene.phase == "weight":
        yield from STEP
    elif (trial.scene.phase, trial.scene.role) == ("backward", "loss"):
        yield from SENT_BACK
    elif trial.finite and trial.gap > 0 and trial.expected.ndim:
        yield from ALIKE
    elif trial.finite and trial.gap > 0:
        yield from (training.loss, losses.cross_entropy)
