"""Calls that are held back until it is known what they are to be held against."""

from __future__ import annotations

from typing import TYPE_CHECKING

from padiff.records import Array, Call, Value

if TYPE_CHECKING:  # it asks for this one
    from padiff.capture.recorder import Observer


class Late:
    """Told of a model's forward; tells somebody else when that is over, and of backward as it runs."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._whom: Observer | None = None

    def hand_on(self, whom: Observer) -> None:
        """All that was seen so far, and from now on everything at once."""
        for call in self._calls:
            (whom.on_tag if call.tag else whom.on_call)(call)
        self._calls.clear()
        self._whom = whom

    def on_call(self, call: Call) -> None:
        self._calls.append(call)

    def on_tag(self, tag: Call) -> None:
        self._calls.append(tag)

    def on_gradient(self, tensor: int, gradient: Value) -> Array | None:
        return None if self._whom is None else self._whom.on_gradient(tensor, gradient)

    def before_write(self) -> None:
        """What is about to be written is copied by who records it."""
