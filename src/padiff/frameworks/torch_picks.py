"""Where torch's functions stand that pick some of many numbers by their size."""

from __future__ import annotations

import functools
from typing import Any

import torch

from padiff.frameworks.patches import Patch
from padiff.frameworks.picks import telling
from padiff.frameworks.torch_arrays import to_native, to_numpy
from padiff.records import Array

_FUNCTIONS = {
    "topk": "topk",
    "sort": "sort",
    "argsort": "sort",
    "argmax": "argmax",
    "argmin": "argmin",
    "max": "argmax",
    "min": "argmin",
}
"""Name to kind."""


@functools.cache
def patches() -> tuple[Patch, ...]:
    return tuple(
        (owner, name, telling(kind, torch._C.DisableTorchFunction, to_numpy, _put))
        for owner in (torch, torch.Tensor)
        for name, kind in _FUNCTIONS.items()
    )


def _put(scores: Any, values: Any, indices: Any, axis: int, others: Array) -> None:
    """Written where backward will read, without its notice."""
    index = to_native(others).to(device=indices.device, dtype=indices.dtype)
    indices.data.copy_(index)
    if values is not None:
        flat = index.dim() < scores.dim()
        found = scores.detach().gather(axis, index.unsqueeze(axis) if flat else index)
        values.data.copy_(found.squeeze(axis) if flat else found)
