"""What an op would do step by step, each step with what it would return."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from padiff.compare.arrays import compare_arrays
from padiff.compare.measure import rms
from padiff.diagnose.likes import Event
from padiff.records import Array, Slot, Tolerance

_MOVES = frozenset({"transpose", "repeat_interleave", "split", "getitem"})

DROPPED = 2.0
"""Times the deviation of what is dropped: so far a sum of weights may be from one of which none is dropped."""

Work = Callable[..., Any]


class _Computed:
    """A tensor that a step would return."""

    overwritten = False

    def __init__(self, array: Array) -> None:
        self._array = array

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._array.shape)

    @property
    def dtype(self) -> str:
        return str(self._array.dtype)

    def numpy(self) -> Array:
        return self._array

    def release(self) -> None:
        """It is small, and goes with the step."""


@dataclass(frozen=True)
class Made:
    """A tensor on the way: its number and its elements, as exact as they can be had."""

    tensor: int
    exact: Array


class Steps:
    """Writes down what an op does."""

    def __init__(self, event: Event, first: int) -> None:
        self.options = dict(event.call.options)
        self.kind = event.call.kind
        self.given = [Made(slot.tensor, _wide(slot.value.numpy())) for slot in event.call.inputs]
        self.events: list[Event] = []
        self._event, self._next = event, first
        self._dtype = event.call.outputs[0].value.numpy().dtype
        self._slots = {slot.tensor: slot for slot in event.call.inputs}

    def do(self, part: str, thing: str, work: Work, *given: Made) -> Made:
        """One step; ``part`` says in words what it is."""
        exact = np.asarray(work(*(one.exact for one in given)))
        shown = exact.astype(self._dtype) if exact.dtype.kind == "f" else exact
        made = Slot("", self._next, _Computed(shown))
        self._next += 1
        self._slots[made.tensor] = made
        inputs = tuple(self._slots[one.tensor] for one in given)
        call = replace(self._event.call, inputs=inputs, outputs=(made,), options=())
        self.events.append(Event(call, thing, moving=thing in _MOVES, part=part))
        return Made(made.tensor, exact)

    def rest(self, *names: str, first: int = 1) -> dict[str, Made]:
        """The last tensors that it was given, of which some may be left out, by name."""
        there = [name for name in names if self.options.get(name, "") is not None]
        return dict(zip(there, self.given[first:], strict=False))

    def finished(self, tolerance: Tolerance) -> list[Event]:
        """The steps, the last of which returns what the op did; none where they lead elsewhere."""
        returned = self._event.call.outputs[0]
        last = self.events[-1]
        computed = last.call.outputs[0].value.numpy()
        found = returned.value.numpy()
        if not compare_arrays(found, computed, tolerance).agrees and not self._dropped(found, computed):
            return []
        outputs = (returned, *self._event.call.outputs[1:])
        return [*self.events[:-1], replace(last, call=replace(last.call, outputs=outputs))]

    def _dropped(self, returned: Array, computed: Array) -> bool:
        """Whether the op drops weights before its last step, by chance, and returned about what it does without."""
        chance = self.options.get("dropout_p") if self.options.get("training", True) else None
        if not isinstance(chance, float) or not 0 < chance < 1 or returned.shape != computed.shape:
            return False
        gap = _wide(returned) - _wide(computed)
        return rms(gap) <= DROPPED * math.sqrt(chance / (1 - chance)) * rms(_wide(computed))


def _wide(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind == "f" else array
