"""Where paddle's functions stand that may work with larger numbers than they return."""

from __future__ import annotations

import functools

import paddle

from padiff.frameworks.cancelling_ops import telling
from padiff.frameworks.paddle_builtins import Unseen, places_of
from padiff.frameworks.patches import Patch

_KERNELS = {
    "elu": "elu",
    "elu_": "elu",
    "celu": "elu",
    "selu": "selu",
    "expm1": "expm1",
    "log": "log1p",
    "log1p": "log1p",
    "softplus": "softplus",
    "logsigmoid": "softplus",
    "mish": "mish",
    "erfinv": "erfinv",
    "group_norm": "group_norm",
    "instance_norm": "instance_norm",
    "tanh_shrink": "sub",
    "subtract": "sub",
}
"""Compiled ops by name, and which kind they are of."""
_METHODS = ("__sub__", "__rsub__")
_POSITIONS = {"group_norm": (0, 4, 5), "instance_norm": (0, 3)}
"""Where norms are given what ``capture.cancelling`` asks for."""


@functools.cache
def patches() -> tuple[Patch, ...]:
    kernels = {name: telling(kind, Unseen, _POSITIONS.get(kind)) for name, kind in _KERNELS.items()}
    methods = [(paddle.Tensor, name, telling("sub", Unseen)) for name in _METHODS]
    return (*places_of(kernels), *methods)
