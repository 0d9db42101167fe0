"""Where torch's functions stand that may work with larger numbers than they return."""

from __future__ import annotations

import functools
from typing import Any

import torch

from padiff.frameworks.cancelling_ops import telling
from padiff.frameworks.patches import Patch

_POSITIONS = {"group_norm": (0, 1), "instance_norm": (0, 7, 5)}
"""Where norms are given what ``capture.cancelling`` asks for."""
_FUNCTIONS: tuple[tuple[Any, str, str], ...] = (
    (torch._C._nn, "elu elu_", "elu"),
    (torch, "celu celu_", "elu"),
    (torch, "selu selu_", "selu"),
    (torch.nn.functional, "softplus logsigmoid", "softplus"),
    (torch._C._nn, "mish mish_", "mish"),
    (torch, "group_norm", "group_norm"),
    (torch, "instance_norm", "instance_norm"),
    *(
        (owner, names, kind)
        for owner in (torch, torch.Tensor, torch.special)
        for names, kind in (("expm1", "expm1"), ("log1p", "log1p"), ("erfinv", "erfinv"), ("log", "log1p"))
    ),
    (torch, "sub subtract rsub", "sub"),
    (torch.Tensor, "sub subtract __sub__ __rsub__", "sub"),
)
"""Who has them, their names, and which kind they are of."""


@functools.cache
def patches() -> tuple[Patch, ...]:
    return tuple(
        (owner, name, telling(kind, torch._C.DisableTorchFunction, _POSITIONS.get(kind)))
        for owner, names, kind in _FUNCTIONS
        for name in names.split()
        if hasattr(owner, name)
    )
