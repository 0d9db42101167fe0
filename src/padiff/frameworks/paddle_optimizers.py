"""What paddle's optimizers are built with, remember and are given, and the scale of a loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import paddle

from padiff.frameworks.patches import after_method

_SETTINGS = {
    "_beta1": "beta1",
    "_beta2": "beta2",
    "_epsilon": "eps",
    "_momentum": "momentum",
    "_use_nesterov": "nesterov",
    "_weight_decay": "weight_decay",
    "_regularization_coeff": "weight_decay",
    "_amsgrad": "amsgrad",
    "_rho": "rho",
}


def settings_of(optimizer: Any) -> dict[str, Any]:
    """Plain settings under shared names, and its kind."""
    found: dict[str, Any] = {"kind": type(optimizer).__name__, "lr": float(optimizer.get_lr())}
    for own, name in _SETTINGS.items():
        value = getattr(optimizer, own, None)
        if isinstance(value, (bool, int, float)):
            found[name] = value
    coefficient = getattr(getattr(optimizer, "regularization", None), "_coeff", None)
    if isinstance(coefficient, (int, float)):
        found["weight_decay"] = coefficient
    return found


def moments_of(optimizer: Any, parameters: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What it remembers of each parameter, under shared names."""
    names = ["moment1", "moment2"]
    if isinstance(optimizer, paddle.optimizer.Momentum):
        names.append("velocity")
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        held = getattr(optimizer, "_accumulators", {}).get(name, {})
        for path, parameter in parameters.items():
            moment = held.get(parameter.name)
            if moment is not None and moment.shape == parameter.shape:
                found.setdefault(name, {})[path] = moment
    return found


def gradient(parameter: Any) -> Any | None:
    """What backward has left, wherever it is kept."""
    main = getattr(parameter, "main_grad", None)
    found = parameter.grad if main is None else main
    if found is not None and found.is_selected_rows():
        return _dense(found, parameter)
    return found if found is None or main is not None else _kept(found)


def gradient_stays(parameter: Any) -> bool:
    """Whether what was read can be held while the parameter gets another."""
    found = parameter.grad if getattr(parameter, "main_grad", None) is None else None
    return found is not None and (found.is_selected_rows() or found.is_contiguous())


def _kept(gradient: Any) -> Any:
    """The same memory under another name: paddle 3.3 takes it from the gradient itself where that is cleared."""
    if not gradient.is_contiguous():
        return gradient
    with paddle.no_grad():
        return paddle.view(gradient, gradient.shape).detach()


def _dense(gradient: Any, parameter: Any) -> Any:
    """The gradient of a table of which only the rows that were used are kept, some of them more than once."""
    rows = paddle.to_tensor(gradient.rows(), dtype="int64")
    with paddle.no_grad():
        return paddle.index_add(paddle.zeros_like(parameter), rows, 0, gradient._get_tensor_from_selected_rows())


def set_gradient(parameter: Any, gradient: Any | None) -> None:
    """Put another there, or none."""
    if hasattr(parameter, "main_grad"):
        parameter.main_grad = gradient
        parameter.grad = None
    else:
        parameter.grad = None  # else paddle 3.3 writes into the memory of the one before, which somebody may hold
        parameter.grad = gradient


def watching_scale(scaled: Callable[[float], None]) -> AbstractContextManager[None]:
    """Inside, ``scaled`` is told by how much a scaler multiplies a loss."""

    def tell(scaler: Any) -> None:
        if scaler.is_enable():
            scaled(float(scaler._scale.item()))

    return after_method(paddle.amp.AmpScaler, "scale", tell)
