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
    "tanh_shrink": "sub",
    "subtract": "sub",
}
"""Compiled ops by name, and which kind they are of."""
_METHODS = ("__sub__", "__rsub__")
_GROUPED = (0, 4, 5)
"""Where a norm of groups is given its input, the number of groups and the layout."""


@functools.cache
def patches() -> tuple[Patch, ...]:
    kernels = {name: telling(kind, Unseen) for name, kind in _KERNELS.items()}
    kernels["group_norm"] = telling("group_norm", Unseen, _GROUPED)
    methods = [(paddle.Tensor, name, telling("sub", Unseen)) for name in _METHODS]
    return (*places_of(kernels), *methods)
