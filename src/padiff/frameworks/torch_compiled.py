"""What ``torch.compile`` has taken hold of in a module, and hooks around it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

import torch

_FUNCTIONS = (FunctionType, MethodType)


def is_compiled(thing: Any) -> bool:
    """Whether a function or method was handed to ``torch.compile``, and not taken out of what is compiled."""
    if not isinstance(thing, _FUNCTIONS):
        return False
    return hasattr(thing, "_torchdynamo_orig_callable") and not getattr(thing, "_torchdynamo_disable", False)


def holds_compiled(module: Any) -> bool:
    """Whether a module itself holds something that was handed to ``torch.compile``. Asked of every one of them."""
    for held in vars(module).values():  # noqa: SIM110 - any() takes three times as long
        if isinstance(held, _FUNCTIONS) and is_compiled(held):
            return True
    return False


def _look_for_compiled(cls: type) -> bool:
    return any(is_compiled(held) for one in cls.__mro__ if one is not torch.nn.Module for held in vars(one).values())


compiled_methods: Callable[[Any], bool] = functools.cache(_look_for_compiled)


class AroundCompiled:
    """Hooks around a module that was compiled in place, which would take its own hooks into what is compiled."""

    def __init__(self, module: Any, before: Callable[..., Any], after: Callable[..., Any]) -> None:
        self._module, self._own = module, module._compiled_call_impl
        module._compiled_call_impl = functools.partial(self._call, before, after)

    def _call(self, before: Callable[..., Any], after: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        args, kwargs = before(self._module, args, kwargs) or (args, kwargs)
        try:
            output = self._own(*args, **kwargs)
        except Exception:
            after(self._module, args, None)
            raise
        changed = after(self._module, args, output)
        return output if changed is None else changed

    def remove(self) -> None:
        self._module._compiled_call_impl = self._own
