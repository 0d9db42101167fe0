"""Mistakes outside the model: the loss, the optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import paddle
import torch

from benchmarks.localise.bug import Bug, Kind
from benchmarks.localise.either import is_torch, like, tensors_in
from benchmarks.localise.stage import Stage


def sgd(model: Any, lr: float = 0.02, momentum: float = 0.0, decay: float = 0.0) -> Any:
    if is_torch(model):
        return torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, weight_decay=decay)
    kept = {"parameters": _trained(model), "weight_decay": decay or None}
    return paddle.optimizer.Momentum(lr, momentum, **kept) if momentum else paddle.optimizer.SGD(lr, **kept)


def adam(
    model: Any, lr: float = 0.01, eps: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), decay: float = 0.01
) -> Any:
    if is_torch(model):
        return torch.optim.AdamW(model.parameters(), lr=lr, eps=eps, betas=betas, weight_decay=decay)
    return paddle.optimizer.AdamW(lr, *betas, epsilon=eps, parameters=_trained(model), weight_decay=decay)


def _trained(model: Any) -> list[Any]:
    return [parameter for parameter in model.parameters() if not parameter.stop_gradient]


Make = Callable[[Any], Any]


def _optimizer(what: str, right: Make, wrong: Make, steps: int = 1) -> Kind:
    def options(stage: Stage, raw: Make) -> Mapping[str, Any]:
        return {"optimizers": (right(stage.base), raw(stage.raw)), "steps": steps, "loss": _projection}

    def places(stage: Stage) -> Iterator[Bug]:
        if stage.source.phase == "both":
            yield Bug(
                kind=f"optimizer: {what}",
                place="",
                expected=("",),
                plant=nullcontext,
                watch="nothing",
                phases=("weight",),
                causes=("optimizer", *what.split()[:1]),
                options=partial(options, stage, wrong),
                clean=partial(options, stage, right),
                anywhere=True,
            )

    return places


def _projection(output: Any) -> Any:
    """Along a direction of chance: its gradients are everywhere well above rounding."""
    first = next(iter(tensors_in(output)))
    direction = np.random.default_rng(2).standard_normal(tuple(first.shape))
    return (first * like(direction, first)).sum() / math.sqrt(direction.size)


def _mean(output: Any) -> Any:
    return next(iter(tensors_in(output))).mean()


def _sum(output: Any) -> Any:
    return next(iter(tensors_in(output))).sum()


def _square(output: Any) -> Any:
    first = next(iter(tensors_in(output)))
    return (first * first).mean()


def _loss(what: str, right: Callable[[Any], Any], wrong: Callable[[Any], Any], causes: tuple[str, ...]) -> Kind:
    def places(stage: Stage) -> Iterator[Bug]:
        if stage.source.phase == "both":
            yield Bug(
                kind=f"loss: {what}",
                place="",
                expected=("",),
                plant=nullcontext,
                watch="nothing",
                causes=causes,
                options=lambda: {"loss": (right, wrong)},
                clean=lambda: {"loss": (right, right)},
            )

    return places


KINDS: tuple[Kind, ...] = (
    _optimizer("lr", sgd, partial(sgd, lr=0.03)),
    _optimizer("decay missing", partial(sgd, decay=0.1), sgd),
    _optimizer("momentum", partial(sgd, momentum=0.9), partial(sgd, momentum=0.8), steps=3),
    _optimizer("eps", adam, partial(adam, eps=1e-2)),
    _optimizer("betas", adam, partial(adam, betas=(0.8, 0.999)), steps=3),
    _optimizer("decay of AdamW", adam, partial(adam, decay=0.2)),
    _loss("sum for mean", _mean, _sum, ("loss", "reduction", "scale", "factor")),
    _loss("square for mean", _mean, _square, ("loss",)),
)
