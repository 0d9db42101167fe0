"""Base's tensors and gradients while raw runs beside them, each let go as soon as nothing will ask for it again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from padiff.records import Call, StepTrace, Value


class HeldOfBase:
    """What is still held of base's step."""

    def __init__(self, base: StepTrace, members: Collection[int]) -> None:
        self._members = members
        """Tensors of which others are made for comparing; their gradients are asked for more than once."""
        self.gradients_met: set[int] = set()
        self._gradient_uses: Counter[int] = Counter()
        self._values: dict[int, Value] = {}
        self._uses: Counter[int] = Counter()
        """Tensor to the number of slots in which it has not been met yet."""
        self._ended = {call.index: place for place, call in enumerate(base.calls)}
        self._last: dict[int, int] = {}
        """Tensor to the last call, in the order in which they end, that was given or returned it: what a call inside
        returned may be kept by others, without their callers knowing, and be part of what the model returns."""
        for place, call in enumerate(base.calls):
            for slot in (*call.inputs, *call.outputs):
                self._values[slot.tensor] = slot.value
                self._uses[slot.tensor] += 1
                self._last[slot.tensor] = place
            for slot in (made for op in call.ops for made in op.outputs):
                self._values.setdefault(slot.tensor, slot.value)
                self._uses[slot.tensor] += 1
        self._parents = {call.index: call.parent for call in base.calls}
        self._waiting: dict[int, int] = {}
        """Call to the number of calls inside it, itself among them, that were not dealt with yet."""
        for call in base.calls:
            self._count(call.index, 1)

    def __contains__(self, tensor: int) -> bool:
        return tensor in self._values

    def dealt_with(self, call: Call) -> None:
        """A call was compared, or will not be."""
        for slot in (*call.inputs, *call.outputs, *(made for op in call.ops for made in op.outputs)):
            self._uses[slot.tensor] -= 1
            if not self._uses[slot.tensor] and slot.tensor in self._values:
                self._values.pop(slot.tensor).release()
        self._count(call.index, -1)
        if self._waiting[call.index] == 0:
            self._release(call)

    def gradient_met(self, tensor: int, gradient: Value, met: Iterable[int]) -> None:
        """A gradient was compared. Several tensors of raw may stand for one of base (a dropout that returns a copy),
        all of which are among ``met``: the last one lets go."""
        if not self._gradient_uses:
            self._gradient_uses.update(met)
        self.gradients_met.add(tensor)
        self._gradient_uses[tensor] -= 1
        if self._gradient_uses[tensor] <= 0 and tensor not in self._members:
            gradient.release()

    def _count(self, index: int, change: int) -> None:
        while index in self._parents:
            self._waiting[index] = self._waiting.get(index, 0) + change
            index = self._parents[index]

    def _release(self, call: Call) -> None:
        """Everything inside a call was compared: only what it returned, or a later call has, can be asked for again,
        not even what was met in calls that have no partner."""
        returned = {slot.tensor for slot in call.outputs}
        ended = self._ended[call.index]
        for number in range(*call.tensors):
            if number not in returned and number in self._values and self._last.get(number, -1) <= ended:
                self._values.pop(number).release()
