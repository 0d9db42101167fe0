"""Gradients of torch's tensors, told in backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C import _len_torch_function_stack

from padiff.frameworks.protocol import Handle
from padiff.records import Array

_KEY = -1
"""torch's own handles count from 0."""


class _Hooks(dict[int, Any]):
    """The hooks of one tensor, ours among them."""

    __slots__ = ("__weakref__",)

    def remove(self) -> None:
        self.pop(_KEY, None)


def on_gradient(
    tensor: Any, callback: Callable[[Any], Array | None], to_native: Callable[[Array], Any]
) -> Handle | None:
    """Have ``callback`` called with the tensor's gradient; None where it will have none.

    What an op returned has no hooks yet: it is given a dictionary of them, as ``register_hook`` does in more than twice
    the time (torch 2.13)."""
    if not tensor.requires_grad:
        return None

    def hook(gradient: Any) -> Any:
        if gradient is None:
            return None
        if _len_torch_function_stack():  # somebody else's mode, which need not see what is looked at
            with torch._C.DisableTorchFunction():
                other = callback(gradient.detach())
        else:
            other = callback(gradient.detach() if gradient.requires_grad else gradient)
        if other is None:
            return None
        with torch._C.DisableTorchFunction():
            return to_native(other).to(gradient)

    node = tensor.grad_fn
    if node is None or tensor._backward_hooks is not None:
        handle: Handle = tensor.register_hook(hook)
        return handle
    hooks = _Hooks()
    hooks[_KEY] = hook
    tensor._backward_hooks = hooks
    node._register_hook_dict(tensor)
    return hooks
