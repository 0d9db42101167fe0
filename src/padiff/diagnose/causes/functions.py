"""Activations in numpy, as data: name to function."""

from __future__ import annotations

import math

import numpy as np

from padiff.diagnose.causes.trial import Unary
from padiff.records import Array

_STEP = 1 / 256
_GRID = np.arange(0, 6 + 2 * _STEP, _STEP)
_ERF = np.array([math.erf(x) for x in _GRID])
_SLOPE = 2 / math.sqrt(math.pi) * np.exp(-np.square(_GRID))


def erf(x: Array) -> Array:
    """The error function, by cubic interpolation between exact values: good to 1e-11."""
    size = np.minimum(np.abs(x), 6.0)
    place = np.minimum(size / _STEP, len(_GRID) - 2)
    left = place.astype(np.int64)
    t = place - left
    u = 1 - t
    value = (
        (1 + 2 * t) * u * u * _ERF[left]
        + t * u * u * _STEP * _SLOPE[left]
        + t * t * (3 - 2 * t) * _ERF[left + 1]
        - t * t * u * _STEP * _SLOPE[left + 1]
    )
    signed: Array = np.sign(x) * value
    return signed


def sigmoid(x: Array) -> Array:
    half: Array = 0.5 * (1 + np.tanh(0.5 * x))
    return half


def softplus(x: Array) -> Array:
    value: Array = np.logaddexp(0.0, x)
    return value


def softmax(x: Array, axis: int = -1) -> Array:
    lifted = np.exp(x - x.max(axis=axis, keepdims=True))
    value: Array = lifted / lifted.sum(axis=axis, keepdims=True)
    return value


_TANH = math.sqrt(2 / math.pi)
_SELU = (1.0507009873554805, 1.6732632423543772)


def _elu(x: Array, alpha: float = 1.0) -> Array:
    value: Array = np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))
    return value


ACTIVATIONS: dict[str, Unary] = {
    "no activation": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))),
    "gelu tanh": lambda x: 0.5 * x * (1 + np.tanh(_TANH * (x + 0.044715 * x**3))),
    "quick gelu": lambda x: x * sigmoid(1.702 * x),
    "silu": lambda x: x * sigmoid(x),
    "sigmoid": sigmoid,
    "tanh": np.tanh,
    "relu6": lambda x: np.clip(x, 0, 6),
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "hardsigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1),
    "hardsigmoid with slope 0.2": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
    "hardtanh": lambda x: np.clip(x, -1, 1),
    "elu": _elu,
    "selu": lambda x: _SELU[0] * _elu(x, _SELU[1]),
    "softplus": softplus,
    "mish": lambda x: x * np.tanh(softplus(x)),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "log sigmoid": lambda x: -softplus(-x),
    "tanhshrink": lambda x: x - np.tanh(x),
    "squared relu": lambda x: np.square(np.maximum(x, 0)),
    "exp": lambda x: np.exp(np.minimum(x, 80)),
    "square": np.square,
    "abs": np.abs,
    "cos": np.cos,
    "sin": np.sin,
}
GELUS = frozenset({"gelu", "gelu tanh", "quick gelu"})


def leaky(slope: float) -> Unary:
    return lambda x: np.where(x > 0, x, slope * x)


def elu(alpha: float) -> Unary:
    return lambda x: _elu(x, alpha)
