"""Gradients of torch's tensors, told in backward."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import MethodType
from typing import Any

import torch
from torch._C import _len_torch_function_stack

from padiff.frameworks.protocol import Follow, GradientSink, Handle, See, Seen
from padiff.frameworks.torch_arrays import to_native

_KEY = -1
"""torch's own handles count from 0."""


class _Hooks(dict[int, Any]):
    """The hooks of one tensor, ours among them."""

    __slots__ = ("__weakref__",)

    def remove(self) -> None:
        self.pop(_KEY, None)


def on_gradient(tensor: Any, callback: See) -> Handle | None:
    """Have ``callback`` called with the tensor's gradient; None where it will have none."""

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

    return _hooked(tensor, hook)


def keeping(sink: GradientSink) -> Follow:
    """How to follow tensors whose gradients are put down in ``sink``: one function for all of them, where
    ``on_gradient`` makes one for each."""

    def told(number: int, gradient: Any) -> None:
        if gradient is None or not sink.taking:
            return
        if _len_torch_function_stack():
            with torch._C.DisableTorchFunction():
                put(number, gradient.detach(), gradient._version)
        elif gradient.requires_grad or gradient._version or sink.made is not None:
            put(number, gradient.detach(), gradient._version)
        else:
            sink.told[number] = gradient

    def put(number: int, gradient: Any, version: int) -> None:
        sink.told[number] = gradient
        sink.versions[number] = version
        if sink.made is not None:
            sink.made(number, gradient)

    def follow(tensors: Iterable[tuple[Any, Seen]], handles: dict[int, Handle | None]) -> None:
        for tensor, seen in tensors:
            number = seen.number
            handle = _hooked(tensor, MethodType(told, number))
            if handle is not None:
                seen.tracked = True
                handles[number] = handle

    return follow


def _hooked(tensor: Any, hook: Callable[[Any], Any]) -> Handle | None:
    """What an op returned has no hooks yet: it is given a dictionary of them, as ``register_hook`` does in more than
    twice the time (torch 2.13)."""
    node = tensor.grad_fn
    if node is None and not tensor.requires_grad:
        return None
    if node is None or tensor._backward_hooks is not None:
        handle: Handle = tensor.register_hook(hook)
        return handle
    hooks = _Hooks()
    hooks[_KEY] = hook
    tensor._backward_hooks = hooks
    node._register_hook_dict(tensor)
    return hooks
