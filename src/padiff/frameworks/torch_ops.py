"""Seeing torch's ops: a function mode sees every public function and method of a tensor under the name people know."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch._C import _current_graph_task_id, _len_torch_function_stack
from torch.overrides import TorchFunctionMode, resolve_name

from padiff.frameworks.protocol import OpWatcher

Tell = Callable[[Any, Any, Any], None]
Position = Callable[[Any], int | None]

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

_PLAIN, _IGNORED, _WRITES = -3, -2, -1
"""How an op is seen: by its end; not at all; by its beginning and its end. From 0 on: by both, where the argument of
that number, ``inplace``, is true."""
_known: dict[Any, int] = {}  # a cache keyed by the framework's own functions


class _OpWatch(TorchFunctionMode):
    def __init__(self, watcher: OpWatcher, tell: Tell, position: Position) -> None:
        super().__init__()
        self._watcher, self._seen = watcher, watcher.seen
        self._tell, self._position = tell, position

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            how = _known.get(func)
        except TypeError:  # unhashable
            return self._slowly(self._how(func), func, args, kwargs or {}, sys._getframe(1))
        if how == _PLAIN and not kwargs and _current_graph_task_id() == -1 and not _len_torch_function_stack():
            output = func(*args)
            self._seen(func, args, None, output, sys._getframe(1))
            return output
        if how is None:
            how = _known[func] = self._how(func)
        return self._slowly(how, func, args, kwargs or {}, sys._getframe(1))

    def _slowly(self, how: int, func: Any, args: Any, kwargs: Any, frame: Any) -> Any:
        if how == _IGNORED or _current_graph_task_id() != -1:  # in backward: a checkpoint's second forward
            self._tell(func, args, kwargs)
            return func(*args, **kwargs)
        if _len_torch_function_stack():  # somebody else's mode, which need not see what is looked at
            return self._among_others(func, args, kwargs, frame)
        if how == _WRITES or kwargs.get("out") is not None or (how >= 0 and _asked(how, args, kwargs)):
            token = self._watcher.begin(func, args, kwargs, frame)
            self._tell(func, args, kwargs)
            output = func(*args, **kwargs)
            if token is not None:
                self._watcher.end(token, output, args)
            return output
        output = func(*args, **kwargs)
        self._seen(func, args, kwargs, output, frame)
        return output

    def _among_others(self, func: Any, args: Any, kwargs: Any, frame: Any) -> Any:
        with torch._C.DisableTorchFunction():
            token = self._watcher.begin(func, args, kwargs, frame)
            self._tell(func, args, kwargs)
        output = func(*args, **kwargs)
        if token is not None:
            with torch._C.DisableTorchFunction():
                self._watcher.end(token, output, args)
        return output

    def _how(self, func: Any) -> int:
        if _is_ignored(func):
            return _IGNORED
        if type(func).__module__ == "torch._ops":  # a library's: who knows
            return _WRITES
        position = self._position(func)
        return _PLAIN if position is None else position


def _asked(position: int, args: Any, kwargs: Any) -> bool:
    """Whether an op is asked to work in place."""
    return bool(kwargs["inplace"] if "inplace" in kwargs else len(args) > position and args[position])


def _is_ignored(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    if name == "__get__":
        return getattr(getattr(func, "__self__", None), "__name__", "") not in PROPERTIES
    return name in LOOKS


@contextmanager
def watching(watcher: OpWatcher, tell: Tell, position: Position) -> Iterator[None]:
    """``tell`` is told of every op that may write before it runs; ``position`` says whether one may: None for never, -1
    for always, or the number of the argument that says so."""
    with _OpWatch(watcher, tell, position):
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
