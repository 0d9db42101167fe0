"""Seeing torch's ops: a function mode sees every public function and method of a tensor under the name people know."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch._C import _current_graph_task_id, _len_torch_function_stack
from torch.overrides import TorchFunctionMode, resolve_name

from padiff.frameworks.protocol import BeginOp, EndOp

PROPERTIES = frozenset({"T", "mT", "H", "mH", "real", "imag", "data"})
"""What a tensor is asked for that makes another tensor; all else it is asked for is a look at it."""
_LOOKS = """
    size dim numel type is_floating_point is_complex is_contiguous stride element_size storage_offset data_ptr
    untyped_storage item tolist numpy requires_grad_ register_hook backward retain_grad __repr__ __len__
    __bool__ __float__ __int__ __index__ __format__ __hash__ __contains__ __array__ __dlpack__
    __dlpack_device__ is_shared allclose equal ndimension nelement get_device is_inference is_tensor
    broadcast_shapes _set_grad_enabled __set__ __delete__
"""
LOOKS = frozenset(_LOOKS.split())
LAYERS = str(Path(torch.nn.modules.__file__).parent)
"""Code of the framework's own layers."""

_known: dict[Any, tuple[bool, bool]] = {}  # a cache keyed by the framework's own functions: ignored, may write


class _OpWatch(TorchFunctionMode):
    def __init__(
        self, begin: BeginOp, end: EndOp, tell: Callable[[Any, Any, Any], None], writes: Callable[[Any], bool]
    ) -> None:
        super().__init__()
        self._begin, self._end, self._tell, self._writes = begin, end, tell, writes

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if kwargs is None:
            kwargs = {}
        try:
            ignored, writes = _known[func]
        except KeyError:
            ignored, writes = _known[func] = _is_ignored(func), self._writes(func)
        except TypeError:  # unhashable
            ignored, writes = _is_ignored(func), True
        if ignored or _current_graph_task_id() != -1:  # in backward: a checkpoint's second forward
            self._tell(func, args, kwargs)
            return func(*args, **kwargs)
        if _len_torch_function_stack():  # somebody else's mode, which need not see what is looked at
            return self._among_others(func, args, kwargs)
        token = self._begin(func, args, kwargs)
        if writes or kwargs:
            self._tell(func, args, kwargs)
        output = func(*args, **kwargs)
        if token is not None:
            self._end(token, output, args)
        return output

    def _among_others(self, func: Any, args: Any, kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            token = self._begin(func, args, kwargs)
            self._tell(func, args, kwargs)
        output = func(*args, **kwargs)
        if token is not None:
            with torch._C.DisableTorchFunction():
                self._end(token, output, args)
        return output


def _is_ignored(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    if name == "__get__":
        return getattr(getattr(func, "__self__", None), "__name__", "") not in PROPERTIES
    return name in LOOKS


@contextmanager
def watching(
    begin: BeginOp, end: EndOp, tell: Callable[[Any, Any, Any], None], writes: Callable[[Any], bool]
) -> Iterator[None]:
    """``tell`` is told of every op that may write (``writes`` says which) before it runs, between the two."""
    with _OpWatch(begin, end, tell, writes):
        yield


@functools.cache
def op_name(op: Any, function: CodeType | None, several: bool) -> str:
    """``torch.nn.functional.linear``, ``torch.Tensor.matmul``; a library's op by the name it was registered under."""
    if several and function is not None:
        return f"torch.{function.co_name}"
    if type(op).__module__ == "torch._ops":
        return f"torch.ops.{str(op).removeprefix('torch.ops.')}"
    if getattr(op, "__name__", "") == "__get__":
        return f"torch.Tensor.{op.__self__.__name__}"
    found = resolve_name(op)
    if found is None:
        return f"torch.{getattr(op, '__name__', 'op')}"
    return str(found).replace("torch.functional.", "torch.")
