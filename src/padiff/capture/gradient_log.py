"""Gradients as backward tells them, put down where nobody has anything to say to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from padiff.capture.held import Held
from padiff.capture.scaling import unscaled
from padiff.frameworks import Adapter
from padiff.frameworks.protocol import Follow, Handle, Seen
from padiff.records import Array, Value


class GradientLog(Mapping[int, Value]):
    """The gradients of one run by the numbers of their tensors, in the order in which they came.

    A graph may hold its hooks as long as anybody holds a tensor of it, and no collector looks into a graph. So hooks
    hold this, which knows nothing of the run, and never a recorder, which holds tensors. What hooks put here are the
    framework's own tensors, which become values when somebody looks: a hook must cost little."""

    __slots__ = ("_adapter", "made", "scale", "taking", "told", "versions")

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self.told: dict[int, Any] = {}
        """The framework's gradients, and values in the place of those that were looked at."""
        self.versions: dict[int, int] = {}
        """How often those gradients had been written when they came that had been written at all."""
        self.taking = False
        """Whether gradients count now: a forward or a loss may run backward passes of its own."""
        self.scale = 1.0
        """By what the loss was multiplied for mixed precision."""
        self.made: Callable[[int, Any], None] | None = None
        """Told of every gradient that was put there."""

    def follow(self) -> Follow:
        """How tensors are followed whose gradients are put down here."""
        keeping = getattr(self._adapter, "keeping_gradients", None)
        if keeping is not None:
            quick: Follow = keeping(self)
            return quick
        return following(self._adapter, self._take)

    def __getitem__(self, number: int) -> Value:
        found = self.told[number]
        if not self._adapter.is_tensor(found):
            known: Value = found
            return known
        value: Value = Held(self._adapter, found, self.versions.get(number, 0))
        if self.scale != 1.0:
            value = unscaled(value, self.scale)
        self.told[number] = value
        return value

    def __contains__(self, number: object) -> bool:
        return number in self.told

    def __iter__(self) -> Iterator[int]:
        return iter(self.told)

    def __len__(self) -> int:
        return len(self.told)

    def _take(self, number: int, gradient: Any) -> None:
        if self.taking:
            self.told[number] = gradient
            self.versions[number] = self._adapter.version(gradient)
            if self.made is not None:
                self.made(number, gradient)


def following(adapter: Adapter, take: Callable[[int, Any], Array | None]) -> Follow:
    """With what every adapter has: ``take`` is told of the number and the gradient, and may have another passed on."""

    def follow(tensors: Iterable[tuple[Any, Seen]], handles: dict[int, Handle | None]) -> None:
        for tensor, seen in tensors:
            handle = adapter.on_gradient(tensor, partial(take, seen.number))
            if handle is not None:
                seen.tracked = True
                handles[seen.number] = handle

    return follow
