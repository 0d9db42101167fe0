"""Some elements of everything that a run shows, by which a run of the same step is held against it."""

from __future__ import annotations

import math

import numpy as np

from padiff.capture.held import HostValue
from padiff.capture.observers import Observer
from padiff.compare.measure import rms_gap
from padiff.records import Array, Call, Value
from padiff.store.statistics import positions

SAMPLED = 4096
"""Elements of a tensor by which two runs are held against each other."""


class Samples:
    """An observer that keeps some elements of everything, and passes everything on."""

    def __init__(self, inner: Observer | None = None, base: Samples | None = None, *, kept: bool = True) -> None:
        self._inner, self._kept = inner, kept
        self._base = base
        """Where given, gaps to these are taken, and nothing is kept."""
        self.tensors: dict[int, Array] = {}
        self.gradients: dict[int, Array] = {}
        self.parameters: dict[str, Array] = {}
        self.gaps: dict[int, float] = {}
        self.gradient_gaps: dict[int, float] = {}
        self.nbytes = 0
        self.root: Call | None = None
        """The model's own first call, once it has ended."""

    def on_call(self, call: Call) -> None:
        if call.parent < 0 and self.root is None:
            self.root = call
        inside = (slot for op in call.ops for slot in op.outputs)
        for slot in (*call.inputs, *call.outputs, *inside):
            if self._base is not None:
                known = self._base.tensors.get(slot.tensor)
                if known is not None and slot.tensor not in self.gaps:
                    self.gaps[slot.tensor] = sampled_gap(known, sampled(slot.value))
            elif self._kept and slot.tensor not in self.tensors:
                self.tensors[slot.tensor] = sampled(slot.value)
                self.nbytes += 4 * math.prod(slot.value.shape)
        if self._inner is not None:
            self._inner.on_call(call)

    def on_gradient(self, tensor: int, gradient: Value) -> None:
        if self._base is None:
            if self._kept:
                self.gradients[tensor] = sampled(gradient)
        elif tensor in self._base.gradients:
            self.gradient_gaps[tensor] = sampled_gap(self._base.gradients[tensor], sampled(gradient))
        if self._inner is not None:
            self._inner.on_gradient(tensor, gradient)

    def on_tag(self, tag: Call) -> None:
        """It comes with the call in whose code it is."""

    def before_write(self) -> None:
        if self._inner is not None:
            self._inner.before_write()


def sampled(value: Value) -> Array:
    """Some elements, at fixed places; none of what was overwritten."""
    if value.overwritten:
        return np.zeros(0)
    flat = np.ravel(value.numpy())
    return np.array(flat[positions(flat.size, SAMPLED)])


def few_of(value: Value) -> HostValue:
    """The same as a value."""
    return HostValue(sampled(value))


def sampled_gap(base: Array, other: Array) -> float:
    if base.shape != other.shape or base.dtype != other.dtype:
        return math.inf
    return rms_gap(base, other) if base.size else 0.0
