"""Paddle's compiled ops, seen while somebody watches: paddle has no function modes, so they are replaced.

They are replaced for the process, as long as anybody watches; what a replacement does is decided by the watchers of the
thread that calls it.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import BuiltinFunctionType, FrameType
from typing import Any

import paddle

from padiff.frameworks.patches import Patch, Wrap, originals, replaced
from padiff.frameworks.protocol import LibraryOp, OpWatcher

WRITERS = ("_setitem_dygraph", "set_value", "copy_")
"""Methods of tensors that write."""
_METHODS = """
    _getitem_dygraph _getitem_from_offset _setitem_dygraph clone contiguous detach copy_ _copy_to __add__
    __radd__ __sub__ __rsub__ __mul__ __rmul__ __div__ __truediv__ __rdiv__ __rtruediv__ __floordiv__
    __rfloordiv__ __pow__ __rpow__ __mod__ __rmod__ __matmul__ __rmatmul__ __gt__ __ge__ __lt__ __le__ __eq__
    __ne__
"""
CUSTOM = "_run_custom_op"
"""What runs ops that are built with ``PD_BUILD_OP``; it is given their name first."""
METHODS = frozenset(_METHODS.split())
"""Methods of tensors that are compiled ops themselves."""
_APART = ("libpaddle", "paddle._C_ops", "paddle._pir_ops")
"""Modules that are no users of ops: where they come from, and what builds graphs of them."""


class _Watchers(threading.local):
    """Of one thread."""

    def __init__(self) -> None:
        self.ops: tuple[OpWatcher, ...] = ()
        """Who is to be told now."""
        self.seen: Callable[..., None] | None = None
        """How, where it is one alone and the op writes nothing."""
        self.standing: list[OpWatcher] = []
        """Who watches, also while nobody is to be told."""
        self.unseen = 0
        self.writes: list[Callable[[Any], None]] = []

    def settle(self) -> None:
        self.ops = () if self.unseen else tuple(self.standing)
        self.seen = self.ops[0].seen if len(self.ops) == 1 else None


_watchers = _Watchers()


@contextmanager
def watching_ops(watcher: OpWatcher, about_to_write: Callable[[Any], None]) -> Iterator[None]:
    """Inside, ``watcher`` is told of every compiled op that this thread calls, ``about_to_write`` as by
    ``watching_writes``."""
    with replaced(_every_op()):
        _watchers.writes.append(about_to_write)
        _watchers.standing.append(watcher)
        _watchers.settle()
        try:
            yield
        finally:
            _watchers.standing.remove(watcher)
            _watchers.writes.remove(about_to_write)
            _watchers.settle()


@contextmanager
def seen_again() -> Iterator[None]:
    """Inside, what this thread calls is seen, though padiff calls it: a model that it runs."""
    before, _watchers.unseen = _watchers.unseen, 0
    _watchers.settle()
    try:
        yield
    finally:
        _watchers.unseen = before
        _watchers.settle()


@contextmanager
def watching_writes(about_to_write: Callable[[Any], None]) -> Iterator[None]:
    """Inside, ``about_to_write`` is called with the tensors that an op of this thread may be about to write."""
    with replaced(_writing_ops()):
        _watchers.writes.append(about_to_write)
        try:
            yield
        finally:
            _watchers.writes.remove(about_to_write)


class Unseen:
    """Inside, what this thread calls is nobody's business: padiff's own work, amid the model's."""

    def __enter__(self) -> None:
        _watchers.unseen += 1
        _watchers.ops, _watchers.seen = (), None

    def __exit__(self, *_: object) -> None:
        _watchers.unseen -= 1
        if _watchers.standing:
            _watchers.settle()


@functools.cache
def _writing_ops() -> tuple[Patch, ...]:
    return tuple((owner, name, _watched(op)) for owner, name, op in _own_names() if _writes(name))


def _every_op() -> Sequence[Patch]:
    """All ops, also where other modules imported them by themselves, and those that are methods of tensors.

    Looking through all modules takes longer than all the rest: one that has no more names than it had is as it was."""
    found = list(_own_places())
    standing: dict[int, Any] | None = None
    for title, module in list(sys.modules.items()):
        own = getattr(module, "__dict__", ())
        known = _scanned.get(title)
        if known is None or known[0] is not module or known[1] != len(own):
            if standing is None:
                standing = originals()
            known = _scanned[title] = (module, len(own), _places_in(title, module, standing))
        if known[2]:
            found += known[2]
    return found


_scanned: dict[str, tuple[Any, int, tuple[Patch, ...]]] = {}
"""Title of a module to the module, how many names it had, and which of them are ops."""


def _places_in(title: str, module: Any, standing: dict[int, Any]) -> tuple[Patch, ...]:
    if any(part in title for part in _APART):
        return ()
    ops, found = _ops(), []
    for name, value in list(getattr(module, "__dict__", {}).items()):
        label = ops.get(id(standing.get(id(value), value)))
        if label is not None:
            found.append((module, name, _watched(label)))
    return tuple(found)


def places_of(wraps: Mapping[str, Wrap]) -> list[Patch]:
    """Where compiled ops of these names stand: some of paddle's modules keep their own reference."""
    standing, kernels = originals(), vars(paddle._C_ops)
    known = {name: wrap for name, wrap in wraps.items() if name in kernels}
    found: list[Patch] = [(paddle._C_ops, name, wrap) for name, wrap in known.items()]
    by_identity = {id(standing.get(id(kernels[name]), kernels[name])): wrap for name, wrap in known.items()}
    for title, module in list(sys.modules.items()):
        if (title == "paddle" or title.startswith("paddle.")) and "_ops" not in title and "libpaddle" not in title:
            for name, value in list(getattr(module, "__dict__", {}).items()):
                wrap = by_identity.get(id(standing.get(id(value), value)))
                if wrap is not None:
                    found.append((module, name, wrap))
    return found


@functools.cache
def _ops() -> dict[int, str]:
    """By identity, what compiled ops are called, under whatever name somebody imported them. They never go."""
    standing = originals()
    found = {}
    for now in vars(paddle._C_ops).values():
        op = standing.get(id(now), now)
        if isinstance(op, BuiltinFunctionType):
            found[id(op)] = op.__name__
    return found


@functools.cache
def _own_places() -> tuple[Patch, ...]:
    return tuple((owner, name, _watched(op)) for owner, name, op in _own_names())


def _own_names() -> list[tuple[Any, str, str]]:
    """Who has an op, under which name, and what it is called itself."""
    standing = originals()
    found: list[tuple[Any, str, str]] = []
    for name, now in list(vars(paddle._C_ops).items()):
        op = standing.get(id(now), now)
        if isinstance(op, BuiltinFunctionType) and not name.endswith("_grad"):
            found.append((paddle._C_ops, name, op.__name__))
    methods = METHODS | set(WRITERS)
    return [*found, *((paddle.Tensor, name, name) for name in methods if hasattr(paddle.Tensor, name))]


def _writes(name: str) -> bool:
    return (name.endswith("_") and not name.startswith("_")) or name in WRITERS


@functools.cache
def _watched(name: str) -> Wrap:
    """What is made of an op of this name."""
    writes = _writes(name)
    watchers, frame_above = _watchers, sys._getframe

    @functools.cache
    def wrap(op: Any) -> Any:
        plain = _telling(op) if writes else op
        if name == "set_value":  # what it calls is seen by itself
            return plain

        if writes or name == CUSTOM:

            def replacement(*args: Any, **kwargs: Any) -> Any:
                return _around(name, plain, args, kwargs, frame_above(1)) if watchers.ops else plain(*args, **kwargs)

        else:

            def replacement(*args: Any, **kwargs: Any) -> Any:
                seen = watchers.seen
                if seen is not None:
                    output = op(*args, **kwargs)
                    seen(name, args, kwargs, output, frame_above(1))
                    return output
                return _around(name, op, args, kwargs, frame_above(1)) if watchers.ops else op(*args, **kwargs)

        return functools.wraps(op)(replacement)

    return wrap


def _around(name: str, op: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> Any:
    """An op that may write, or that several watch."""
    watchers = _watchers.ops
    custom = name == CUSTOM and bool(args)
    told, given = (LibraryOp(args[0]), args[1:]) if custom else (name, args)
    with Unseen():  # looking at a tensor may take ops itself
        tokens = [watcher.begin(told, given, kwargs, frame) for watcher in watchers]
    output = op(*args, **kwargs)
    with Unseen():
        for watcher, token in zip(watchers, tokens, strict=True):
            if token is not None:
                watcher.end(token, output, given)
    return output


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
