"""What every module of a model is given and returns, seen by hooks of our own: padiff has no part in it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.localise.either import array, is_floating, is_tensor, is_torch, modules_of, tensors_in


@dataclass
class Seen:
    """One call of a module."""

    path: str
    caller: str | None
    """Path of the module whose code made the call; None for the model."""
    inputs: list[np.ndarray]
    outputs: list[np.ndarray] = field(default_factory=list)
    """Floating tensors only."""
    lone: bool = False
    """Returns one tensor, not a collection."""

    @property
    def passes_through(self) -> bool:
        """Returns what it was given."""
        return bool(self.inputs and self.outputs) and any(_same(self.outputs[0], one) for one in self.inputs)


@contextlib.contextmanager
def watching(model: Any) -> Iterator[list[Seen]]:
    """Calls in the order in which they begin."""
    found: list[Seen] = []
    open_calls: list[Seen] = []
    handles: list[Any] = []

    def enter(path: str, args: Any, kwargs: Any) -> None:
        call = Seen(path, open_calls[-1].path if open_calls else None, _floats((args, kwargs)))
        found.append(call)
        open_calls.append(call)

    def leave(output: Any) -> None:
        call = open_calls.pop()
        call.outputs, call.lone = _floats(output), is_tensor(output)

    for path, module in modules_of(model).items():
        before = _before(enter, path)
        if is_torch(module):
            handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            handles.append(module.register_forward_hook(lambda _, __, output: leave(output)))
        else:
            handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            handles.append(module.register_forward_post_hook(lambda _, __, output: leave(output)))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def watched(model: Any, args: Any, kwargs: Any) -> list[Seen]:
    """Run the model once."""
    with watching(model) as found:
        model(*args, **kwargs)
    return found


def _before(enter: Any, path: str) -> Any:
    return lambda _, args, kwargs: enter(path, args, kwargs)


def _floats(tree: Any) -> list[np.ndarray]:
    return [array(tensor) for tensor in tensors_in(tree) if is_floating(tensor)]


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.size == other.size and np.array_equal(one.ravel(), other.ravel())


def distance(before: list[np.ndarray], after: list[np.ndarray]) -> float:
    """The largest relative change (root mean square) of any of the tensors."""
    if len(before) != len(after):
        return float("inf")
    worst = 0.0
    for one, other in zip(before, after, strict=True):
        if one.shape != other.shape:
            return float("inf")
        if one.size == 0:
            continue
        usable = np.abs(one) < 1e30  # a mask near the float minimum would swamp everything
        if not np.isfinite(other[usable]).all():
            return float("inf")
        scale = float(np.sqrt(np.mean(one[usable] ** 2))) if usable.any() else 0.0
        apart = float(np.sqrt(np.mean((one[usable] - other[usable]) ** 2))) if usable.any() else 0.0
        if apart:
            worst = max(worst, apart / scale if scale else float("inf"))
        if (np.abs(other[~usable]) < 1e30).any():
            worst = max(worst, 1.0)
    return worst
