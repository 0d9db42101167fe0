"""What torch's optimizers are built with, remember and are given, and the scale of a loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch

from padiff.frameworks.patches import after_method


def settings_of(optimizer: Any) -> dict[str, Any]:
    """Plain settings under shared names, and its kind."""
    group = dict(optimizer.param_groups[0])
    betas = group.pop("betas", None)
    found = {name: value for name, value in group.items() if isinstance(value, (bool, int, float))}
    if betas is not None:
        found["beta1"], found["beta2"] = (float(beta) for beta in betas)
    return {"kind": type(optimizer).__name__} | found


def moments_of(optimizer: Any, parameters: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What it remembers of each parameter, under shared names."""
    names = {"exp_avg": "moment1", "exp_avg_sq": "moment2"}
    if isinstance(optimizer, torch.optim.SGD):
        names["momentum_buffer"] = "velocity"
    found: dict[str, dict[str, Any]] = {}
    for path, parameter in parameters.items():
        for own, held in optimizer.state.get(parameter, {}).items():
            if own in names and isinstance(held, torch.Tensor) and held.shape == parameter.shape:
                found.setdefault(names[own], {})[path] = held
    return found


def gradient(parameter: Any) -> Any | None:
    """What backward has left, wherever it is kept: what is built on torch adds gradients up in a tensor of its own."""
    main = getattr(parameter, "main_grad", None)
    return parameter.grad if main is None or parameter.grad is not None else main


def set_gradient(parameter: Any, gradient: Any | None) -> None:
    """Put another there, or none."""
    main = getattr(parameter, "main_grad", None)
    if main is None:
        parameter.grad = gradient
        return
    parameter.grad = None
    with torch.no_grad():
        main.zero_() if gradient is None else main.copy_(gradient)


def watching_scale(scaled: Callable[[float], None]) -> AbstractContextManager[None]:
    """Inside, ``scaled`` is told by how much a scaler multiplies a loss."""

    def tell(scaler: Any) -> None:
        if scaler.is_enabled():
            scaled(float(scaler.get_scale()))

    return after_method(torch.amp.GradScaler, "scale", tell)
