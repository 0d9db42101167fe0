"""Leaving models and generators as the caller left them."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from padiff.capture.attributes import SavedAttributes, put_attributes_back, saved_attributes
from padiff.frameworks import Adapter, cycles
from padiff.frameworks.tree import LiveTree
from padiff.records import Array


@dataclass
class SavedBuffers:
    """What runs of a model may leave in it, as it was."""

    buffers: list[tuple[Any, str, Any, Any]] = field(default_factory=list)
    """(module, name, buffer, copy) of every buffer."""
    attributes: SavedAttributes = field(default_factory=list)


_collector = threading.Lock()
_sparing = False
"""Whether the collector is spared now, in whichever thread."""
_SELDOM = 30_000
"""After how many new containers the collector comes: an op that is recorded leaves about twelve."""
_NEVER = 1_000_000
"""After how many times of coming it looks again at what it has seen once."""
_FROZEN_AT_START = 1000
"""Up to so many objects are frozen by nobody: Python 3.12 begins with some hundreds."""


def random_state(adapter: Adapter) -> Any:
    """State of every generator a model may draw from: the framework's, numpy's, Python's."""
    return adapter.random_state(), np.random.get_state(), random.getstate()


def restore_random_state(adapter: Adapter, state: Any) -> None:
    framework, from_numpy, from_python = state
    adapter.restore_random_state(framework)
    np.random.set_state(from_numpy)
    random.setstate(from_python)


def moved(adapter: Adapter, before: Any, after: Any) -> bool:
    """Whether the framework's generators are in another state now; a framework that cannot tell is taken at rest."""
    key = getattr(adapter, "random_key", None)
    return key is not None and key(before[0]) != key(after[0])


@contextmanager
def preserved(live: LiveTree, *, buffers: bool) -> Iterator[SavedBuffers]:
    """Afterwards random state, train/eval flags, gradients and, on request, buffers and tensors that modules keep in
    attributes are as they were before; what these will be then is handed out."""
    adapter = live.adapter
    randomness = random_state(adapter)
    training = [adapter.is_training(module) for module in live.modules]
    gradients: list[tuple[Any, Any]] = []
    for parameter in live.parameters().values():  # one by one: the copies take the place of what is copied
        gradients.append((parameter, _kept(adapter, parameter)))
        adapter.set_gradient(parameter, None)
    saved = saved_buffers(live) if buffers else SavedBuffers()
    try:
        yield saved
    finally:
        restore_random_state(adapter, randomness)
        for module, flag in zip(live.modules, training, strict=True):
            if adapter.is_training(module) != flag:
                adapter.set_training(module, flag)
        for parameter, gradient in gradients:
            adapter.set_gradient(parameter, gradient)
        put_back(live, saved)


@contextmanager
def spared_collector() -> Iterator[None]:
    """Inside, Python's cycle collector looks only at what is made inside.

    Records are many and live long, which makes it walk everything there is: 110 ms with torch and paddle loaded. What
    is made inside is walked at most once, too: most of it stays.
    """
    global _sparing
    with _collector:
        # Frozen already is the user's own doing, or another thread's, and to be left alone. Asking takes 30 ms where
        # everything is, so that what we did ourselves is known without.
        ours = not _sparing and cycles.may_wait() and gc.get_freeze_count() <= _FROZEN_AT_START
        often = gc.get_threshold()
        if ours:
            _sparing = True
            gc.freeze()
            gc.set_threshold(max(often[0], _SELDOM) if often[0] else 0, _NEVER, _NEVER)
    try:
        yield
    finally:
        if ours:
            with _collector:
                gc.set_threshold(*often)
                gc.unfreeze()
                _sparing = False


def gradient_stays(adapter: Adapter, parameter: Any) -> bool:
    """Whether a gradient can be held while its parameter gets another: paddle frees its memory."""
    stays: Callable[[Any], bool] | None = getattr(adapter, "gradient_stays", None)
    return stays is not None and stays(parameter)


def _kept(adapter: Adapter, parameter: Any) -> Any | None:
    """A parameter's gradient, such that it can be put back."""
    gradient = adapter.gradient(parameter)
    return gradient if gradient is None or gradient_stays(adapter, parameter) else adapter.clone(gradient)


def saved_buffers(live: LiveTree) -> SavedBuffers:
    """Copies of every buffer, and what modules keep besides, to be put back."""
    found = []
    for module in {id(module): module for module in live.modules}.values():
        found += [(module, name, b, live.adapter.clone(b)) for name, b in live.adapter.own_buffers(module)]
    return SavedBuffers(found, saved_attributes(live.modules))


def put_back(live: LiveTree, saved: SavedBuffers) -> None:
    adapter = live.adapter
    for module, name, buffer, value in saved.buffers:
        before = adapter.to_numpy(value)
        if not _identical(before, adapter.to_numpy(buffer)):  # what did not change need not look written
            adapter.assign(buffer, before)
        if getattr(module, name, None) is not buffer:  # ``self.count = self.count + 1`` put another in its place
            setattr(module, name, buffer)
    put_attributes_back(adapter, saved.attributes)


def _identical(one: Array, other: Array) -> bool:
    """To the bit; NaN is itself."""
    return one.shape == other.shape and one.tobytes() == other.tobytes()
