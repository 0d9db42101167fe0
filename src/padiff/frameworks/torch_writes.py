"""Which tensors ops of torch are about to write, and which they read."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from padiff.frameworks import containers


class WriteWatch(TorchFunctionMode):
    """Reports the tensors an op is about to write into."""

    def __init__(self, about_to_write: Callable[[Any], None]) -> None:
        super().__init__()
        self._about_to_write = about_to_write

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.tell(func, args, kwargs)
        return func(*args) if kwargs is None else func(*args, **kwargs)

    def tell(self, func: Any, args: Any, kwargs: Any) -> None:
        """Say what an op is about to write, if anything."""
        position = written_position(func)
        if position is not None:
            self._report(position, args, kwargs or {})
        out = kwargs.get("out") if kwargs else None
        if out is not None:
            for _, tensor in containers.flatten(out, lambda x: isinstance(x, torch.Tensor)):
                self._about_to_write(tensor)

    def _report(self, position: int, args: Any, kwargs: Any) -> None:
        if position >= 0:  # writes only when its ``inplace`` argument says so
            if not (kwargs["inplace"] if "inplace" in kwargs else (len(args) > position and args[position])):
                return
            target = args[0] if args else kwargs.get("input")
        else:
            target = args[0] if args else None
        for tensor in target if isinstance(target, (list, tuple)) else (target,):
            if isinstance(tensor, torch.Tensor):
                self._about_to_write(tensor)


class ReadWatch(TorchFunctionMode):
    """Reports the tensors ops are given; asking a tensor for its shape or dtype is no use of it."""

    def __init__(self, read: Callable[[Any], None]) -> None:
        super().__init__()
        self._read = read

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") not in _LOOKS:
            for argument in (*args, *(kwargs or {}).values()):
                for tensor in argument if isinstance(argument, (list, tuple)) else (argument,):
                    if isinstance(tensor, torch.Tensor):
                        self._read(tensor)
        return func(*args, **(kwargs or {}))


_LOOKS = frozenset(
    {"__get__", "size", "dim", "numel", "type", "is_floating_point", "stride", "__repr__", "element_size"}
)
_IN_PLACE_OPERATORS = frozenset(
    f"__i{name}__"
    for name in (
        "add",
        "sub",
        "mul",
        "div",
        "truediv",
        "floordiv",
        "mod",
        "pow",
        "and",
        "or",
        "xor",
        "lshift",
        "rshift",
    )
) | {"__setitem__", "__set__"}
_BESIDE = frozenset({"grad", "requires_grad", "_backward_hooks", "_post_accumulate_grad_hooks"})
"""What a tensor has besides its elements: setting it writes nothing."""
_ALWAYS = -1
_positions: dict[Any, int | None] = {}  # a cache keyed by the framework's own functions


def written_position(func: Any) -> int | None:
    """None: never writes. -1: writes its first argument. n: writes it if argument n (``inplace``) is true."""
    try:
        return _positions[func]
    except KeyError:
        name = getattr(func, "__name__", "")
        if isinstance(func, torch._ops.OpOverload):  # as graphs call them
            position: int | None = _ALWAYS if func._schema.is_mutable else None
        elif name == "__set__" and getattr(func.__self__, "__name__", "") in _BESIDE:
            position = None
        elif name in _IN_PLACE_OPERATORS or (name.endswith("_") and not name.startswith("__")):
            position = _ALWAYS
        else:
            position = _inplace_argument(func)
        _positions[func] = position
        return position
    except TypeError:  # unhashable
        return None


def _inplace_argument(func: Any) -> int | None:
    if not inspect.isfunction(func):
        return None
    try:
        names = list(inspect.signature(func).parameters)
    except (TypeError, ValueError):  # some wrappers of built-in methods pass for functions and have no signature
        return None
    return names.index("inplace") if "inplace" in names else None
