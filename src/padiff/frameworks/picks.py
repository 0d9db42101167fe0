"""Functions that pick some of many numbers by their size, told of while somebody wants to know."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from padiff.frameworks.listener import Listener
from padiff.frameworks.patches import Patch, Wrap
from padiff.records import Array


@dataclass(frozen=True, slots=True)
class Picked:
    """What a function has just picked."""

    scores: Array
    indices: Array
    """With as many axes as the scores have."""
    axis: int
    largest: bool
    ordered: bool
    """Whether what was picked is in order of its size."""
    put: Callable[[Array], None]
    """Have the function have picked others, of the same shape: also for what comes back in backward."""


Told = Callable[[Picked], None]
Put = Callable[[Any, Any, Any, int, Array], None]
"""Given scores, values or None, indices, the axis and what the indices shall be."""

NAMES: Mapping[str, Sequence[str]] = {
    "topk": ("input", "k", "dim", "largest", "sorted"),
    "sort": ("input", "dim", "descending"),
    "argmax": ("input", "dim"),
    "argmin": ("input", "dim"),
}
"""What functions are given by position, by their kind; ``max`` along an axis is an ``argmax`` that returns more."""


_listener = Listener()


def listening(told: Told, patches: Sequence[Patch]) -> AbstractContextManager[None]:
    """Inside, ``told`` hears of what this thread picks."""
    return _listener.hearing(told, patches)


def watching_picks(adapter: Any, told: Told | None) -> AbstractContextManager[None]:
    """Inside, ``told`` hears of picks; nothing where the adapter has no ``picking`` to listen with."""
    watch = getattr(adapter, "picking", None)
    if told is None or watch is None:
        return nullcontext()
    context: AbstractContextManager[None] = watch(told)
    return context


def telling(
    kind: str, aside: Callable[[], AbstractContextManager[Any]], to_numpy: Callable[[Any], Array], put: Put
) -> Wrap:
    """What is made of a function of this kind; inside of ``aside`` nobody else sees what the listener does."""

    def tell(told: Told, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> None:
        picked = _picked(kind, args, kwargs, output, to_numpy, put)
        if picked is not None:
            told(picked)

    return _listener.telling(aside, tell)


def _picked(
    kind: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    output: Any,
    to_numpy: Callable[[Any], Array],
    put: Put,
) -> Picked | None:
    """What was picked; None for what is no pick along an axis: a maximum of two tensors, or of all there is."""
    given = dict(zip(NAMES[kind], args, strict=False)) | dict(kwargs)
    scores, axis = given.get("input"), given.get("dim", None if kind.startswith("arg") else -1)
    values, indices = output if isinstance(output, tuple) else (None, output)
    if scores is None or not isinstance(axis, int) or given.get("out") is not None or not scores.is_floating_point():
        return None
    if not len(scores.shape) or "int" not in str(indices.dtype):
        return None
    axis %= len(scores.shape)
    flat = len(indices.shape) < len(scores.shape)
    shown = to_numpy(indices)
    return Picked(
        to_numpy(scores).copy(),
        (np.expand_dims(shown, axis) if flat else shown).copy(),
        axis,
        bool(given.get({"topk": "largest", "sort": "descending"}.get(kind, ""), kind in ("topk", "argmax"))),
        bool(given.get("sorted", True)),
        lambda others: put(scores, values, indices, axis, others.squeeze(axis) if flat else others),
    )
