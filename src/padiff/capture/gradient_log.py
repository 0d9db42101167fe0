"""Gradients as backward tells them, put down where nobody has anything to say to them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from padiff.capture.held import Held
from padiff.capture.scaling import unscaled
from padiff.frameworks import Adapter
from padiff.frameworks.protocol import Handle, Take
from padiff.records import Value

Follow = Callable[[Any, int], Handle | None]
"""Given a tensor and its number: have its gradient told."""


class GradientLog:
    """The gradients of one run by the numbers of their tensors.

    A graph may hold its hooks as long as anybody holds a tensor of it, and no collector looks into a graph. So hooks
    hold this, which knows nothing of the run, and never a recorder, which holds tensors."""

    __slots__ = ("_adapter", "made", "scale", "taking", "values")

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self.values: dict[int, Value] = {}
        self.taking = False
        """Whether gradients count now: a forward or a loss may run backward passes of its own."""
        self.scale = 1.0
        """By what the loss was multiplied for mixed precision."""
        self.made: Callable[[int, Value], None] | None = None
        """Told of every gradient that was put there."""

    def follow(self) -> Follow:
        """How tensors are followed whose gradients are put down here."""
        adapter, values = self._adapter, self.values

        def take(number: int, gradient: Any, version: int) -> None:
            """A gradient has come. Called once for every tensor that is followed: it must cost little."""
            if not self.taking:
                return
            value: Value = Held(adapter, gradient, version)
            if self.scale != 1.0:
                value = unscaled(value, self.scale)
            values[number] = value
            if self.made is not None:
                self.made(number, value)

        keeping = getattr(adapter, "keeping_gradients", None)
        if keeping is not None:
            quick: Follow = keeping(take)
            return quick
        return partial(_followed, adapter, take)


def _followed(adapter: Adapter, take: Take, tensor: Any, number: int) -> Handle | None:
    """With what every adapter has."""

    def told(gradient: Any) -> None:
        take(number, gradient, adapter.version(gradient))

    return adapter.on_gradient(tensor, told)
