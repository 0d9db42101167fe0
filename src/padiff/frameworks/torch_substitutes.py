"""Tensors that stand in the place of torch's: other elements, or a copy, under the same history."""

from __future__ import annotations

from typing import Any

import torch

from padiff.frameworks.protocol import See
from padiff.frameworks.torch_arrays import to_native
from padiff.records import Array


def substitute(tensor: Any, value: Array, see: See | None, *, tracked: bool) -> Any:
    """A tensor with the elements of ``value``; ``tracked`` asks that it takes a gradient in any case."""
    native = to_native(value).to(device=tensor.device, dtype=tensor.dtype)
    return _in_place_of(tensor, native, see, tracked)


def copy_of(tensor: Any, see: See | None, *, tracked: bool) -> Any:
    """The same with the elements that ``tensor`` has."""
    return _in_place_of(tensor, tensor.detach().clone(), see, tracked)


def _in_place_of(tensor: Any, native: Any, see: See | None, tracked: bool) -> Any:
    if not (tensor.requires_grad and torch.is_grad_enabled()):
        leaf = native.requires_grad_(tracked and native.is_floating_point())
        # Nobody may write into a leaf that is followed.
        return leaf.clone() if leaf.requires_grad and torch.is_grad_enabled() else leaf
    return _Substitute.apply(tensor, _Given(native, see))


class _Given:
    """What a substitute holds, and who looks at its gradient; no tensor itself, lest autograd take it for an input."""

    def __init__(self, value: Any, see: See | None) -> None:
        self.value, self.see = value, see


class _Substitute(torch.autograd.Function):
    """Other elements under the history of a tensor."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, given: _Given) -> Any:
        ctx.given, value, given.value = given, given.value, None
        return value

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        given, gradient = ctx.given, gradients[0]
        other = None if given.see is None else given.see(gradient.detach())
        if other is not None:
            gradient = to_native(other).to(device=gradient.device, dtype=gradient.dtype)
        return gradient, None
