"""Tensors that stand in the place of paddle's: other elements, or a copy, under the same history."""

from __future__ import annotations

import functools
from typing import Any

import paddle

from padiff.frameworks.paddle_arrays import cast, to_native
from padiff.frameworks.paddle_gradients import passed_on
from padiff.frameworks.protocol import See
from padiff.records import Array


def substitute(tensor: Any, value: Array, see: See | None, *, tracked: bool) -> Any:
    """A tensor with the elements of ``value``; ``tracked`` asks that it takes a gradient in any case."""
    native = cast(to_native(value), tensor.dtype)
    if str(native.place) != str(tensor.place):
        native = native.to(tensor.place)
    if tensor.stop_gradient or not paddle.is_grad_enabled():
        return _followed_leaf(native, tracked)
    # Not a PyLayer: paddle 3.3 crashes where backward passes through one twice (retain_graph).
    twin = _followed(tensor, see)
    twin.data = native
    return twin


def copy_of(tensor: Any, see: See | None, *, tracked: bool) -> Any:
    """The same with the elements that ``tensor`` has."""
    if not tensor.stop_gradient and paddle.is_grad_enabled():
        return _followed(tensor, see)
    return _followed_leaf(tensor.detach().clone(), tracked)


def _followed(tensor: Any, see: See | None) -> Any:
    twin = tensor.clone()
    if see is not None:
        twin.register_hook(functools.partial(passed_on, see))
    return twin


def _followed_leaf(native: Any, tracked: bool) -> Any:
    """A new tensor, followed if that is asked for; nobody may write into a leaf that is."""
    native.stop_gradient = not (tracked and native.is_floating_point())
    return native if native.stop_gradient or not paddle.is_grad_enabled() else native.clone()
