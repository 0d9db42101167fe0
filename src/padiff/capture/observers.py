"""Who is told of calls and gradients while a model runs."""

from __future__ import annotations

from typing import Protocol

from padiff.records import Array, Call, Value


class Observer(Protocol):
    """Told of calls and gradients while the model runs."""

    def on_call(self, call: Call) -> None: ...

    def on_gradient(self, tensor: int, gradient: Value) -> Array | None:
        """May say what backward is to go on with instead."""
        ...

    def on_tag(self, tag: Call) -> None:
        """The user marked a tensor."""
        ...

    def before_write(self) -> None:
        """Some tensor is about to be written: whatever was only looked at must be read now."""
        ...


class Nobody:
    """Lets everything go."""

    def on_call(self, call: Call) -> None: ...

    def on_tag(self, tag: Call) -> None: ...

    def on_gradient(self, tensor: int, gradient: Value) -> Array | None:
        return None

    def before_write(self) -> None: ...


class Late:
    """Holds calls back until it is known what they are held against: told of a model's forward, it tells somebody else
    when that is over, and of backward as it runs."""

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
