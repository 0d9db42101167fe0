"""When a paddle model uses its tensors: as ops take them, however early they were fetched from their layer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import paddle

from padiff.frameworks.paddle_builtins import watching_ops
from padiff.frameworks.patches import replaced

Read = Callable[[Any], None]


@contextmanager
def watching(read: Read) -> Iterator[None]:
    """``self.gamma * self.attention(x)`` fetches gamma before everything in the attention, and uses it after.

    What is fetched from a layer and given to no op that is seen counts as used in the end."""
    thread = threading.get_ident()
    reader = _Reader(read)

    def wrap(original: Any) -> Any:
        def reporting(layer: Any, name: str) -> Any:
            value = original(layer, name)
            if isinstance(value, paddle.Tensor) and threading.get_ident() == thread:
                reader.fetched.setdefault(id(value), value)
            return value

        return reporting

    with watching_ops(reader, lambda _: None), replaced([(paddle.nn.Layer, "__getattr__", wrap)]):
        try:
            yield
        finally:
            for tensor in reader.fetched.values():
                read(tensor)


class _Reader:
    """Reports the tensors that ops are given."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self.fetched: dict[int, Any] = {}
        """By identity, in the order in which they were fetched."""

    def seen(
        self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None, output: Any, frame: FrameType
    ) -> None:
        for argument in (*args, *(kwargs or {}).values()):
            for tensor in argument if isinstance(argument, (list, tuple)) else (argument,):
                if isinstance(tensor, paddle.Tensor):
                    self._read(tensor)

    def begin(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> Any:
        self.seen(op, args, kwargs, None, frame)

    def end(self, token: Any, output: Any, args: tuple[Any, ...]) -> None:
        """Never called: nothing is wanted of an op that has ended."""
