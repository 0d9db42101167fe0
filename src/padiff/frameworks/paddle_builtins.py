"""Paddle's compiled ops, replaced while somebody watches: paddle has no function modes.

There is one place where they are replaced, so that watchers may be nested, and may come and go in any order and in
several threads: the first one in puts the replacements in, the last one out takes them out. What a replacement does is
decided by the watchers of the thread that calls it.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType
from typing import Any

import paddle

Around = Callable[[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Called in place of an op with its name, the op and what it was given; calls it and returns what is to be returned."""
Place = tuple[Any, str, Any]
"""Who holds an op, under which name, and the op."""

WRITERS = ("_setitem_dygraph", "set_value", "copy_")
"""Methods of tensors that write."""
_METHODS = """
    _getitem_dygraph _getitem_from_offset _setitem_dygraph clone contiguous detach copy_ _copy_to __add__
    __radd__ __sub__ __rsub__ __mul__ __rmul__ __div__ __truediv__ __rdiv__ __rtruediv__ __floordiv__
    __rfloordiv__ __pow__ __rpow__ __mod__ __rmod__ __matmul__ __rmatmul__ __gt__ __ge__ __lt__ __le__ __eq__
    __ne__
"""
METHODS = frozenset(_METHODS.split())
"""Methods of tensors that are compiled ops themselves."""


class _Watchers(threading.local):
    """Of one thread."""

    def __init__(self) -> None:
        self.around: list[Around] = []
        self.unseen = 0
        """How many times over nobody is to see what is called."""
        self.writes: list[Callable[[Any], None]] = []


_watchers = _Watchers()
_patching = threading.Lock()
_held: dict[tuple[int, str], list[Any]] = {}
"""(Owner, name) to owner, name, op, and how many want it replaced."""


@contextmanager
def intercepted(around: Around) -> Iterator[None]:
    """Inside, every compiled op that this thread calls goes through ``around``; of several, the last one is first."""
    places = _every_op()
    _hold(places)
    _watchers.around.append(around)
    try:
        yield
    finally:
        _watchers.around.remove(around)
        _let_go(places)


class Unseen:
    """Inside, what this thread calls is nobody's business: padiff's own work, amid the model's. Watchers that come
    inside stay, and see what is called afterwards."""

    __slots__ = ()

    def __enter__(self) -> None:
        _watchers.unseen += 1

    def __exit__(self, *_: object) -> None:
        _watchers.unseen -= 1


@contextmanager
def seen_again() -> Iterator[None]:
    """Inside, what this thread calls is seen, though padiff calls it: a model that it runs."""
    before, _watchers.unseen = _watchers.unseen, 0
    try:
        yield
    finally:
        _watchers.unseen = before


@contextmanager
def watching_writes(about_to_write: Callable[[Any], None]) -> Iterator[None]:
    """Inside, ``about_to_write`` is called with the tensors that an op of this thread may be about to write."""
    places = _writing_ops()
    _hold(places)
    _watchers.writes.append(about_to_write)
    try:
        yield
    finally:
        _watchers.writes.remove(about_to_write)
        _let_go(places)


def _hold(places: Iterable[Place]) -> None:
    with _patching:
        for owner, name, op in places:
            entry = _held.setdefault((id(owner), name), [owner, name, op, 0])
            entry[3] += 1
            if entry[3] == 1:
                setattr(owner, name, _replacement(op, _label(op, name)))


def _let_go(places: Iterable[Place]) -> None:
    with _patching:
        for owner, name, _ in places:
            entry = _held[id(owner), name]
            entry[3] -= 1
            if entry[3] == 0:
                del _held[id(owner), name]
                setattr(owner, name, entry[2])


def _label(op: Any, name: str) -> str:
    """What an op is called, under whatever name somebody imported it."""
    return str(op.__name__) if isinstance(op, BuiltinFunctionType) else name


def _original(owner: Any, name: str, now: Any) -> Any:
    """What is there when nobody watches."""
    entry = _held.get((id(owner), name))
    return now if entry is None else entry[2]


def _writing_ops() -> list[Place]:
    found: list[Place] = []
    with _patching:
        for name, now in list(vars(paddle._C_ops).items()):
            if name.endswith("_") and not name.startswith("_") and callable(now):
                found.append((paddle._C_ops, name, _original(paddle._C_ops, name, now)))
        for name in WRITERS:
            found.append((paddle.Tensor, name, _original(paddle.Tensor, name, getattr(paddle.Tensor, name))))
    return found


def _every_op() -> list[Place]:
    """All ops, also where other modules imported them by themselves, and those that are methods of tensors."""
    found: list[Place] = []
    with _patching:
        known: dict[int, Any] = {}
        for name, now in list(vars(paddle._C_ops).items()):
            op = _original(paddle._C_ops, name, now)
            compiled = inspect.unwrap(op) if callable(op) else op  # somebody may listen to what it draws
            if isinstance(compiled, BuiltinFunctionType):
                found.append((paddle._C_ops, name, op))
                known[id(compiled)] = known[id(_replacement(compiled, _label(compiled, name)))] = compiled
        for module_name, module in list(sys.modules.items()):
            if module is None or module is paddle._C_ops or "libpaddle" in module_name:
                continue
            for name, now in list(getattr(module, "__dict__", {}).items()):
                if id(now) in known:
                    found.append((module, name, known[id(now)]))
        for name in METHODS:
            if name in vars(paddle.Tensor):
                found.append((paddle.Tensor, name, _original(paddle.Tensor, name, vars(paddle.Tensor)[name])))
    return found


@functools.cache
def _replacement(op: Any, name: str) -> Callable[..., Any]:
    """Made once for each op: there are hundreds."""
    writes = (name.endswith("_") and not name.startswith("_")) or name in WRITERS
    plain = _telling(op) if writes else op
    if name == "set_value":  # what it calls is seen by itself
        return plain
    watchers = _watchers

    @functools.wraps(op)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        around = watchers.around
        if not around or watchers.unseen:
            return plain(*args, **kwargs)
        run = plain
        for one in around[:-1]:
            run = functools.partial(_through, one, name, run)
        return around[-1](name, run, args, kwargs)

    return replacement


def _telling(op: Any) -> Callable[..., Any]:
    """An op that tells before it writes."""
    watchers = _watchers

    @functools.wraps(op)
    def telling(*args: Any, **kwargs: Any) -> Any:
        for watcher in watchers.writes:
            for argument in args:
                if isinstance(argument, paddle.Tensor):
                    watcher(argument)
        return op(*args, **kwargs)

    return telling


def _through(around: Around, name: str, op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return around(name, op, args, kwargs)
