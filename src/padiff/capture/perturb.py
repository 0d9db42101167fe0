"""Rounding, imitated: every floating number of a model and its inputs moved by one unit in its last place."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import ml_dtypes
import numpy as np

from padiff.capture.one_step import Arguments
from padiff.frameworks import Adapter
from padiff.frameworks.containers import map_leaves, once_each
from padiff.frameworks.tree import LiveTree
from padiff.records import Array

_LARGEST = 1e30
"""Masks hold the largest number there is, which must not overflow."""
_CONSTANTS = 3e-8
"""In wide dtypes the steps are larger than rounding: constants and tables are kept in float32 more often than not."""
_PERIOD = 65_521
"""Signs are drawn once and used over and over; a prime, so that they fall differently into every row."""


class Jitter:
    """Moves numbers up or down by a relative step, at random, the same way for the same seed."""

    def __init__(self, step: float | None = None, seed: int = 0) -> None:
        self._step = step
        """None for the spacing of each tensor's own dtype."""
        self._signs = np.random.default_rng(seed).integers(0, 2, _PERIOD).astype(np.float64) * 2 - 1
        self._offset = 0
        self._made: dict[tuple[float, np.dtype[Any]], Array] = {}

    def _factors(self, step: float, work: np.dtype[Any]) -> Array:
        """One up or down for each of the next numbers, from another place of the signs each time."""
        if (step, work) not in self._made:
            once = 1.0 + step * self._signs
            self._made[step, work] = np.concatenate((once, once)).astype(work)
        self._offset = (self._offset + 7919) % _PERIOD
        return self._made[step, work][self._offset : self._offset + _PERIOD]

    def factors(self, dtype: np.dtype[Any], step: float | None = None) -> Array:
        """What the next tensor of a dtype is multiplied by, over and over."""
        work = np.dtype(np.float64 if dtype.itemsize == 8 else np.float32)
        return self._factors(max(spacing_of(dtype), step or self._step or 0.0), work)

    def step_of(self, dtype: np.dtype[Any]) -> float:
        """How far numbers of a dtype are moved, relative to themselves."""
        return max(spacing_of(dtype), self._step or 0.0)

    def __call__(self, array: Array, step: float | None = None, *, trained: bool = False) -> Array:
        """The array with every finite number moved. Integers stay, and so does what holds whole numbers only, unless
        it is ``trained``: masks and counts are exact."""
        own = spacing_of(array.dtype)
        if own == 0.0 or array.size == 0 or (not trained and _whole(array)):
            return np.array(array)
        factors = self.factors(array.dtype, step)
        work = factors.dtype
        flat = np.ascontiguousarray(array).reshape(-1).astype(work, copy=False)
        moved = np.empty(flat.shape, work)
        with np.errstate(all="ignore"):
            for start in range(0, flat.size, _PERIOD):
                block, into = flat[start : start + _PERIOD], moved[start : start + _PERIOD]
                if not (block.max() < _LARGEST and block.min() > -_LARGEST):
                    np.copyto(into, block)
                    np.multiply(block, factors[: block.size], out=into, where=np.abs(block) < _LARGEST)
                else:
                    np.multiply(block, factors[: block.size], out=into)
        return moved.astype(array.dtype, copy=False).reshape(array.shape)


@contextmanager
def perturbed(live: LiveTree, jitter: Jitter, steps: Mapping[str, float] | None = None) -> Iterator[None]:
    """Inside, the model's parameters and floating buffers are moved by a rounding step; its own are kept aside.

    ``steps`` may give parameters larger relative steps, by path.
    """
    adapter = live.adapter
    with ExitStack() as stack:
        parameters = live.parameters()
        for path, tensor in (*parameters.items(), *live.buffers().items()):
            if not adapter.dtype(tensor).startswith(("float", "bfloat")):
                continue
            moved = _moved(adapter, tensor, jitter, (steps or {}).get(path)) if path in parameters else None
            if moved is None:
                array = jitter(adapter.to_numpy(tensor), (steps or {}).get(path), trained=path in parameters)
                moved = _native(live, tensor, array)
            held = adapter.swap_elements(tensor, moved)
            stack.callback(adapter.swap_elements, tensor, held)
        yield


def _native(live: LiveTree, tensor: Any, array: Array) -> Any:
    """An array of ours as a tensor in a model's place, without a copy where that can be."""
    made_of = getattr(live.adapter, "made_of", None)
    if made_of is None or live.adapter.elsewhere(tensor):
        return live.adapter.to_native(array, like=live.model)
    return made_of(array)


def _moved(adapter: Adapter, tensor: Any, jitter: Jitter, step: float | None) -> Any | None:
    """A tensor that is not on the host, moved where it lies; None for others."""
    multiplied = getattr(adapter, "multiplied", None)
    if multiplied is None:
        return None
    return multiplied(tensor, lambda: jitter.factors(np.dtype(adapter.dtype(tensor)), step), _LARGEST)


def perturbed_arguments(live: LiveTree, arguments: Arguments, jitter: Jitter) -> Arguments:
    """The same arguments, floating tensors moved by a rounding step."""
    return changed_arguments(live, arguments, jitter)


def changed_arguments(live: LiveTree, arguments: Arguments, change: Callable[[Array], Array]) -> Arguments:
    """The same arguments with something done to floating tensors."""
    adapter = live.adapter

    @once_each
    def moved(leaf: Any) -> Any:
        if not adapter.is_tensor(leaf) or not adapter.dtype(leaf).startswith(("float", "bfloat")):
            return leaf
        flows = adapter.requires_grad(leaf)
        return adapter.to_native(change(adapter.to_numpy(leaf)), like=live.model, requires_grad=flows)

    return Arguments(
        tuple(map_leaves(value, moved) for value in arguments.args),
        {name: map_leaves(value, moved) for name, value in arguments.kwargs.items()},
    )


def _whole(array: Array) -> bool:
    """Whether all numbers are whole; the first few usually tell."""
    flat = array.reshape(-1)
    for part in (flat[:64], flat):
        with np.errstate(all="ignore"):
            finite = part[np.abs(part) < _LARGEST].astype(np.float64)
            if not np.array_equal(finite, np.rint(finite)):
                return False
    return True


@functools.cache
def spacing_of(dtype: np.dtype[Any]) -> float:
    """The relative step that stands for rounding in a dtype; 0 where numbers are exact."""
    try:
        return max(float(ml_dtypes.finfo(dtype).eps), _CONSTANTS)
    except (ValueError, TypeError):
        return 0.0
