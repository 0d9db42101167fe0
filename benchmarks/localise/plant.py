"""How a bug gets into a model and out again: each way is a context, and none changes the tree of modules."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.localise.either import children_of, write

Run = Callable[..., Any]
"""Takes the original first, then its arguments."""


@contextlib.contextmanager
def forward_of(module: Any, run: Run) -> Iterator[None]:
    """The module's own code is another: ``run(forward, *args, **kwargs)``."""
    before = module.forward
    own = module.__dict__.get("forward")

    @functools.wraps(before)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return run(before, *args, **kwargs)

    module.__dict__["forward"] = forward  # past __setattr__, which some libraries watch
    try:
        yield
    finally:
        if own is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = own


@contextlib.contextmanager
def fed(caller: Any, holder: Any, name: str, run: Run) -> Iterator[None]:
    """While the caller's code runs, what it takes for its child is a stand-in: ``run(child, *args, **kwargs)``.

    The child and its hooks stay as they are, and see what the stand-in hands on: the caller's code is wrong.
    """

    def call(forward: Run, /, *args: Any, **kwargs: Any) -> Any:
        children = children_of(holder)
        child = children[name]
        children[name] = _stand_in(child, run)
        try:
            return forward(*args, **kwargs)
        finally:
            children[name] = child

    with forward_of(caller, call):
        yield


def _stand_in(child: Any, run: Run) -> Any:
    """An instance of the child's class that shares all it holds, and calls it."""
    kind = type(child)

    class StandIn(kind):  # type: ignore[misc, valid-type]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return run(child, *args, **kwargs)

    StandIn.__name__ = kind.__name__
    found = object.__new__(StandIn)
    object.__setattr__(found, "__dict__", child.__dict__)
    return found


@contextlib.contextmanager
def attribute(thing: Any, name: str, value: Any) -> Iterator[None]:
    """An attribute has another value."""
    held = vars(thing)
    before = held[name]
    held[name] = value
    try:
        yield
    finally:
        held[name] = before


@contextlib.contextmanager
def functions(places: Sequence[tuple[Any, str]], run: Run) -> Iterator[None]:
    """Functions of a library are others: ``run(function, *args, **kwargs)``."""
    before = [(holder, name, getattr(holder, name)) for holder, name in places]

    def other(function: Run) -> Run:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not args:  # the one thing it works on may come by name
                args = tuple(kwargs.pop(name) for name in ("x", "input", "query") if name in kwargs)
            return run(function, *args, **kwargs)

        return call

    for holder, name, function in before:
        setattr(holder, name, other(function))
    try:
        yield
    finally:
        for holder, name, function in before:
            setattr(holder, name, function)


@contextlib.contextmanager
def functions_in(module: Any, places: Sequence[tuple[Any, str]], run: Run) -> Iterator[None]:
    """The same, but only while the module's code runs; of nested functions the outermost is changed."""
    inside = False

    def once(function: Run, /, *args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        if inside:
            return function(*args, **kwargs)
        inside = True
        try:
            return run(function, *args, **kwargs)
        finally:
            inside = False

    def call(forward: Run, /, *args: Any, **kwargs: Any) -> Any:
        with functions(places, once):
            return forward(*args, **kwargs)

    with forward_of(module, call):
        yield


@contextlib.contextmanager
def values(tensor: Any, changed: np.ndarray) -> Iterator[None]:
    """A parameter or buffer holds other numbers; to be compared with ``weights="keep"``."""
    before = np.array(tensor.detach().numpy())
    write(tensor, changed)
    try:
        yield
    finally:
        write(tensor, before)


@contextlib.contextmanager
def gradient_of(parameter: Any, factor: float) -> Iterator[None]:
    """A parameter's gradient is scaled."""
    handle = parameter.register_hook(lambda gradient: gradient * factor)
    try:
        yield
    finally:
        handle.remove()
