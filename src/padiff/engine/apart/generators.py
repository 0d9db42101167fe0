"""numpy's and Python's generators in dumps: their draws are not heard, so raw begins each call from where base did."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from padiff.errors import DumpError
from padiff.store import StepDump

States = dict[str, list[Any]]
"""Generator to its state, as JSON can say it."""


def states() -> States:
    """Where both generators are now."""
    name, keys, *rest = np.random.get_state(legacy=True)
    version, numbers, gauss = random.getstate()
    found: States = {"python": [version, list(numbers), gauss]}
    if name == "MT19937":
        found["numpy"] = [np.asarray(keys).tolist(), *rest]
    return found


def moved_since(before: States) -> States:
    """Of these states those that are others by now."""
    now = states()
    return {name: state for name, state in before.items() if now.get(name) != state}


@contextmanager
def as_in(step: StepDump, call: int) -> Iterator[None]:
    """Inside, the generators that base's model drew from are where base's were before this call of the model."""
    told = step.extra.get("generators")
    row = told.get(str(call)) if isinstance(told, Mapping) else None
    if not isinstance(row, Mapping) or not row:
        yield
        return
    own = np.random.get_state(), random.getstate()
    try:
        try:
            _restore(row)
        except (TypeError, ValueError, OverflowError, IndexError) as error:
            raise DumpError(f"step {step.number}: the state of a generator is not understood: {error}") from None
        yield
    finally:
        np.random.set_state(own[0])
        random.setstate(own[1])


def _restore(row: Mapping[str, Any]) -> None:
    if "numpy" in row:
        keys, place, has_gauss, gauss = row["numpy"]
        np.random.set_state(("MT19937", np.asarray(keys, np.uint32), int(place), int(has_gauss), float(gauss)))
    if "python" in row:
        version, numbers, gauss = row["python"]
        random.setstate((version, tuple(numbers), gauss))
