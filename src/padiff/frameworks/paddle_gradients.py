"""Gradients of paddle's tensors, told in backward."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from types import MethodType
from typing import Any, NamedTuple

from padiff.frameworks.paddle_arrays import cast, to_native
from padiff.frameworks.protocol import Follow, GradientSink, Handle, See, Seen


class _GradientHandle(NamedTuple):
    """Takes a gradient hook off without a word, and keeps no tensor alive until then.

    paddle 3.3's own handle holds the tensor, and warns when an in-place op has moved the hook away.
    """

    tensor: Any
    """A weak reference."""
    hook: int

    def remove(self) -> None:
        tensor = self.tensor()
        if tensor is not None:
            tensor._remove_grad_hook(self.hook)


_ALL = -1
"""No tensor has this number."""


class _Hooks:
    """Hooks of many tensors, which others keep."""

    __slots__ = ("on",)

    def __init__(self) -> None:
        self.on: list[tuple[Seen, int]] = []

    def remove(self) -> None:
        """From those that somebody else will go on with: asking takes a fraction of the time, and the others go along
        with what was seen of them."""
        for seen, hook in self.on:
            tensor = seen.live() if seen.wanted else None
            if tensor is not None:
                tensor._remove_grad_hook(hook)
        self.on.clear()


def on_gradient(tensor: Any, callback: See) -> Handle | None:
    """Have ``callback`` called with the tensor's gradient; None where it will have none."""

    def hook(gradient: Any) -> Any:
        return None if gradient is None else passed_on(callback, gradient)

    if tensor.stop_gradient:
        return None
    return _GradientHandle(weakref.ref(tensor), tensor._register_grad_hook(hook))


def passed_on(see: See, gradient: Any) -> Any:
    """What backward goes on with, once somebody has seen a gradient; None for the gradient itself."""
    other = see(gradient if gradient.is_leaf else gradient.detach())
    return None if other is None else cast(to_native(other), gradient.dtype)


def keeping(sink: GradientSink) -> Follow:
    """How to follow tensors whose gradients are put down in ``sink``: one function for all."""

    def told(number: int, gradient: Any) -> None:
        if gradient is None or not sink.taking:
            return
        sink.told[number] = gradient if gradient.is_leaf else gradient.detach()
        version = gradient._inplace_version()
        if version:
            sink.versions[number] = version
        if sink.made is not None:
            sink.made(number, gradient)

    hooks = _Hooks()

    def follow(tensors: Iterable[tuple[Any, Seen]], handles: dict[int, Handle | None]) -> None:
        handles[_ALL] = hooks
        for tensor, seen in tensors:
            if not tensor.stop_gradient:
                seen.tracked = True
                number = seen.number
                handles[number] = None
                hooks.on.append((seen, tensor._register_grad_hook(MethodType(told, number))))

    return follow
