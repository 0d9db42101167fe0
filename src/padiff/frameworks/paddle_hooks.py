"""What is hung around calls of paddle's layers, and around the tensors that they fetch."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import paddle

from padiff.frameworks.paddle_builtins import Unseen
from padiff.frameworks.patches import replaced
from padiff.frameworks.protocol import Enter, Exit, Fail, Handle


def attached(modules: Iterable[Any], enter: Enter, leave: Exit, fail: Fail) -> Iterator[Handle]:
    """Have ``enter``, and then ``leave`` or ``fail``, called around every call of the modules."""

    def before(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if not paddle.in_dynamic_mode():  # the code around is being compiled
            return None
        with Unseen():
            return enter(module, tuple(args), kwargs)

    def after(module: Any, args: Any, output: Any) -> Any:
        if output is None and sys.exc_info()[1] is not None:
            fail(module)
            return None
        if not paddle.in_dynamic_mode():
            return None
        with Unseen():
            return leave(module, output)

    for module in modules:
        yield module.register_forward_pre_hook(before, with_kwargs=True)
        yield module.register_forward_post_hook(after, always_call=True)


@contextmanager
def reading(read: Callable[[Any], None]) -> Iterator[None]:
    """Parameters and buffers are fetched from a layer by name, which is seen where the layer class looks them up."""
    thread = threading.get_ident()

    def wrap(original: Any) -> Any:
        def reporting(layer: Any, name: str) -> Any:
            value = original(layer, name)
            if isinstance(value, paddle.Tensor) and threading.get_ident() == thread:
                read(value)
            return value

        return reporting

    with replaced([(paddle.nn.Layer, "__getattr__", wrap)]):
        yield
