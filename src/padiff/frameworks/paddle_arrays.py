"""Elements of paddle's tensors, to numpy and back."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import ml_dtypes
import numpy as np
import paddle

from padiff.records import Array, tiles_of

# numpy has no such types; the bits are handed over as integers of the same width.
_BIT_VIEWS = {
    "bfloat16": ("int16", ml_dtypes.bfloat16),
    "float8_e4m3fn": ("int8", ml_dtypes.float8_e4m3fn),
    "float8_e5m2": ("int8", ml_dtypes.float8_e5m2),
}
_SMALL = 1 << 13
"""Elements up to which copying takes a fraction of the time of sharing (paddle 3.3)."""


@functools.cache
def dtype_name(dtype: Any) -> str:
    """numpy's name of a dtype."""
    return str(dtype).removeprefix("paddle.")


def to_numpy(tensor: Any) -> Array:
    """The elements on the host, sharing memory where possible."""
    view = _BIT_VIEWS.get(dtype_name(tensor.dtype))
    if view is None and math.prod(tensor.shape) <= _SMALL and not tensor.is_sparse():
        copied: Array = tensor.numpy()
        return copied
    host = tensor.detach()
    if host.is_sparse():
        host = host.to_dense()
    if not host.place.is_cpu_place():
        host = host.cpu()
    if view is None:
        return _share(host)
    return _share(host.view(view[0])).view(view[1])


def to_native(value: Any, like: Any = None, requires_grad: bool = False) -> Any:
    """A tensor with the elements of ``value``, where the model ``like`` is if it is given."""
    if isinstance(value, paddle.Tensor):
        tensor = value.detach().clone()
    elif isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
        tensor = from_numpy(np.asarray(value))
    else:
        tensor = paddle.utils.dlpack.from_dlpack(value).clone()
    if like is not None and not (isinstance(value, paddle.Tensor) and _at_home(tensor, like)):
        tensor = tensor.to(device_of(like))
    tensor.stop_gradient = not requires_grad
    return tensor


def fill(tensor: Any, value: Array) -> None:
    """Write an array of the tensor's own dtype and shape into it, in place."""
    if value.size > _SMALL and not value.flags.c_contiguous and value.shape == tuple(tensor.shape):
        own = _to_write(tensor)
        if own is not None:
            for tile in tiles_of(value.shape):  # paddle would find memory for one more copy of it first
                np.copyto(own[tile], value[tile])
            return
    tensor.set_value(value)  # a fifth of the time of going through a tensor (paddle 3.3)


def _to_write(tensor: Any) -> Array | None:
    """A tensor's own elements; None where numpy cannot write into them."""
    if not tensor.place.is_cpu_place() or tensor.is_sparse() or not tensor.is_contiguous():
        return None
    try:
        own: Array = np.from_dlpack(tensor.detach())
    except (TypeError, ValueError, RuntimeError, BufferError):  # an older numpy
        return None
    return own if own.flags.writeable else None


def from_numpy(array: Array) -> Any:
    """A tensor that holds an array's elements."""
    for name, (bits, numpy_type) in _BIT_VIEWS.items():
        if array.dtype == numpy_type:
            return paddle.to_tensor(array.view(bits)).view(name)
    return paddle.to_tensor(array)


def cast(tensor: Any, dtype: Any) -> Any:
    """paddle 3.3 copies also what has the dtype already."""
    return tensor if tensor.dtype == dtype else tensor.astype(dtype)


def device_of(model: Any) -> Any:
    """Where a model is, by its first parameter."""
    for tensor in model.parameters():
        return tensor.place
    return paddle.get_device()


def _at_home(tensor: Any, model: Any) -> bool:
    """Whether the tensor is where some of the model is: a model spread over devices is given each input where the
    user put it."""
    elsewhere = False
    for _, own in itertools.chain(model.named_parameters(), model.named_buffers()):  # the first one usually tells
        if str(own.place) == str(tensor.place):
            return True
        elsewhere = True
    return not elsewhere


class _HostView:
    """Lets numpy read a paddle tensor in place: paddle 3.3 gives no device number, which numpy insists on."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __dlpack__(self, **_: Any) -> Any:
        return self._tensor.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def _share(tensor: Any) -> Array:
    array: Array = np.from_dlpack(_HostView(tensor))
    return array
