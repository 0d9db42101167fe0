"""Elements of torch's tensors, to numpy and back."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import torch

from padiff.records import Array

# numpy has no such types; the bits are handed over as integers of the same width.
_BIT_VIEWS = {
    torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
    torch.float8_e4m3fn: (torch.int8, ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: (torch.int8, ml_dtypes.float8_e5m2),
}
_PLAIN = frozenset({torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.bool})
_TO_TORCH_BITS = {
    np.dtype(numpy_type): (np.dtype(f"int{np.dtype(numpy_type).itemsize * 8}"), torch_type)
    for torch_type, (_, numpy_type) in _BIT_VIEWS.items()
}


def to_numpy(tensor: Any) -> Array:
    """The elements on the host, sharing memory where possible."""
    host = tensor.detach() if tensor.requires_grad else tensor
    if host.is_nested:
        host = host.values()
    if host.dtype in _PLAIN:
        try:
            plain: Array = host.numpy()
        except (RuntimeError, TypeError):  # elsewhere than on the host, sparse, or conjugate in name only
            pass
        else:
            return plain
    if host.layout is not torch.strided:
        host = host.to_dense()
    if host.is_quantized:
        host = host.dequantize()
    host = host.cpu().resolve_conj().resolve_neg()
    view = _BIT_VIEWS.get(host.dtype)
    array: Array = host.numpy() if view is None else host.view(view[0]).numpy().view(view[1])
    return array


def to_native(value: Any, like: Any = None, requires_grad: bool = False) -> Any:
    """A tensor with the elements of ``value``, where the model ``like`` is if it is given."""
    if isinstance(value, torch.Tensor):
        tensor = value.detach().clone()
    elif isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
        tensor = made_of(np.array(value))
    else:
        tensor = torch.from_dlpack(value).clone()
    if like is not None and not (isinstance(value, torch.Tensor) and _at_home(tensor, like)):
        tensor = tensor.to(device_of(like))
    return tensor.requires_grad_(requires_grad) if requires_grad else tensor


def made_of(array: Array) -> Any:
    """A tensor that keeps an array's memory, which is nobody else's."""
    bits = _TO_TORCH_BITS.get(array.dtype)
    return torch.from_numpy(array) if bits is None else torch.from_numpy(array.view(bits[0])).view(bits[1])


def device_of(model: Any) -> Any:
    """Where a model is, by the first tensor it has."""
    for tensor in itertools.chain(model.parameters(), model.buffers()):
        return tensor.device
    return "cpu"


def _at_home(tensor: Any, model: Any) -> bool:
    """Whether the tensor is where some of the model is: a model spread over devices is given each input where the
    user put it."""
    elsewhere = False
    for own in itertools.chain(model.parameters(), model.buffers()):  # the first one usually tells
        if own.device == tensor.device:
            return True
        elsewhere = True
    return not elsewhere
