"""Rounding, imitated: every floating number of a model and its inputs moved by one unit in its last place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from padiff.capture.cancelling import in_place_of, rounded_inside
from padiff.capture.jitter import Jitter
from padiff.capture.one_step import Arguments
from padiff.frameworks import Adapter
from padiff.frameworks.containers import map_leaves, once_each
from padiff.frameworks.tree import LiveTree
from padiff.records import Array


@contextmanager
def perturbed(live: LiveTree, jitter: Jitter, steps: Mapping[str, float] | None = None) -> Iterator[None]:
    """Inside, the model's parameters and floating buffers are moved by a rounding step; its own are kept aside. What
    functions return that is left of larger numbers is moved, too.

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
                moved = in_place_of(live, tensor, array)
            held = adapter.swap_elements(tensor, moved)
            stack.callback(adapter.swap_elements, tensor, held)
        stack.enter_context(rounded_inside(live, jitter))
        yield


def _moved(adapter: Adapter, tensor: Any, jitter: Jitter, step: float | None) -> Any | None:
    """A tensor that is not on the host, moved where it lies; None for others."""
    multiplied = getattr(adapter, "multiplied", None)
    if multiplied is None:
        return None
    return multiplied(tensor, lambda: jitter.moves(np.dtype(adapter.dtype(tensor)), step, trained=True))


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
