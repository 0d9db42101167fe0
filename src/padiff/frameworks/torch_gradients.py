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


def before_written(tensor: Any, handle: Handle) -> Handle:
    """A tensor that is hooked is about to be written: what tells its gradient from now on.

    A view gets another history then, and so do all others of what it is a view of; the gradient goes past the node
    that they had (torch 2.13). What ``torch.nn.functional.linear`` returns of three axes is such a view. What it is a
    view of keeps its node, before the write as after it."""
    whole = tensor._base
    hook = _hook_of(handle)
    if hook is None or whole is None or whole.grad_fn is None or whole.dtype != tensor.dtype:
        return handle
    if not whole.is_contiguous() or tensor.numel() > whole.numel():
        return handle
    place = tensor.size(), tensor.stride(), tensor.storage_offset() - whole.storage_offset()

    def of_the_whole(gradient: Any) -> Any:
        if gradient is None:
            return None
        with torch._C.DisableTorchFunction():
            part = gradient.contiguous().as_strided(*place)
        other = hook(part)
        if other is None:
            return None
        with torch._C.DisableTorchFunction():
            passed_on = gradient.clone(memory_format=torch.contiguous_format)
            passed_on.as_strided(*place).copy_(other)
            return passed_on

    handle.remove()
    return _hooked(whole, of_the_whole) or handle


def _hook_of(handle: Handle) -> Callable[[Any], Any] | None:
    hooks: Any = handle if isinstance(handle, _Hooks) else getattr(handle, "hooks_dict_ref", lambda: None)()
    return None if hooks is None else hooks.get(_KEY if hooks is handle else getattr(handle, "id", _KEY))
