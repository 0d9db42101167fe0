"""Leaving models and generators as the caller left them."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from padiff.frameworks import Adapter
from padiff.frameworks.tree import LiveTree


def random_state(adapter: Adapter) -> Any:
    """State of every generator a model may draw from: the framework's, numpy's, Python's."""
    return adapter.random_state(), np.random.get_state(), random.getstate()


def restore_random_state(adapter: Adapter, state: Any) -> None:
    framework, from_numpy, from_python = state
    adapter.restore_random_state(framework)
    np.random.set_state(from_numpy)
    random.setstate(from_python)


@contextmanager
def preserved(live: LiveTree, *, buffers: bool) -> Iterator[None]:
    """Afterwards random state, train/eval flags, gradients and, on request, buffers are as they were before."""
    adapter = live.adapter
    randomness = random_state(adapter)
    training = [adapter.is_training(module) for module in live.modules]
    gradients = [(p, adapter.gradient(p)) for p in live.parameters().values()]
    saved = [(b, adapter.clone(b)) for b in live.buffers().values()] if buffers else []
    for parameter, _ in gradients:
        adapter.set_gradient(parameter, None)
    try:
        yield
    finally:
        restore_random_state(adapter, randomness)
        for module, flag in zip(live.modules, training, strict=True):
            adapter.set_training(module, flag)
        for parameter, gradient in gradients:
            adapter.set_gradient(parameter, gradient)
        for buffer, value in saved:
            adapter.assign(buffer, adapter.to_numpy(value))


@contextmanager
def spared_collector() -> Iterator[None]:
    """Inside, Python's cycle collector looks only at what is made inside.

    Records are many and live long, which makes it walk everything there is: 110 ms with torch and paddle loaded.
    """
    if gc.get_freeze_count():  # the user's own doing, and to be left alone
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
