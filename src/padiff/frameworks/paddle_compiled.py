"""What ``paddle.jit.to_static`` has taken hold of in a layer, and running it as it was before."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import paddle


def is_static(module: Any) -> bool:
    """Whether a layer's forward, or something else it calls, was made static."""
    kind = paddle.jit.dy2static.program_translator.StaticFunction
    if _static_methods(type(module)):
        return True
    for held in vars(module).values():  # noqa: SIM110 - any() takes three times as long, for every module
        if isinstance(held, kind):
            return True
    return False


def _look_for_static(cls: type) -> bool:
    kind = paddle.jit.dy2static.program_translator.StaticFunction
    return any(isinstance(held, kind) for one in cls.__mro__ for held in vars(one).values())


_static_methods: Callable[[Any], bool] = functools.cache(_look_for_static)


@contextmanager
def eagerly() -> Iterator[None]:
    before = paddle.jit.dy2static.program_translator.ProgramTranslator.get_instance().enable_to_static
    paddle.jit.enable_to_static(False)
    try:
        yield
    finally:
        paddle.jit.enable_to_static(before)
