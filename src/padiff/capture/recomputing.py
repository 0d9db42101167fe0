"""Checkpoints: regions of a model whose forward runs again in backward, and which calls these second runs repeat.

Where the first run does not follow gradients (torch's reentrant form, paddle's recompute), they are seen in the second
one. Each call is told of once, with the numbers its tensors were given in the first run.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from padiff.capture.held import Held
from padiff.capture.seen_tensors import SeenTensors
from padiff.frameworks import Adapter
from padiff.records import Call, Slot

_CHECKPOINTS = tuple(
    str(Path(*parts))
    for parts in (
        ("torch", "utils", "checkpoint.py"),
        ("paddle", "distributed", "fleet", "recompute", "recompute.py"),
        ("paddle", "distributed", "fleet", "recompute", "recompute_hybrid.py"),
    )
)
"""Files of the functions that run something again in backward."""


class Recomputation:
    """Finds the call of the first run that a call seen in backward repeats.

    Regions come in the reverse order of the first run, the calls of one region in its own order. A region starts on the
    tensors that the first run was given, so its first call is known by their memory.
    """

    def __init__(self) -> None:
        self._memory: dict[tuple[int, int], list[int]] = defaultdict(list)
        """(Node, memory of the first input) to calls, by their numbers."""
        self._calls: dict[int, Call] = {}
        self._by_node: dict[int, list[int]] = defaultdict(list)
        self._done: set[int] = set()
        self._next = -1

    def remember(self, index: int, node: int, storage: int | None) -> None:
        """A call of the first run that may be repeated."""
        if storage is not None:
            self._memory[node, storage].append(index)

    def starts(self, calls: Iterable[Call]) -> None:
        """Backward begins."""
        for call in calls:
            self._calls[call.index] = call
            self._by_node[call.node].append(call.index)

    def repeated(self, node: int, storage: int | None) -> Call | None:
        """The call that a call of this module repeats, on a first input in that memory."""
        index = self._next if self._free(self._next, node) else self._known(node, storage)
        if index is None:
            return None
        self._done.add(index)
        self._next = index + 1
        return self._calls[index]

    def not_followed(self, call: Call) -> None:
        """A call was repeated without being followed: a checkpoint inside another one, which repeats it once more."""
        self._done.discard(call.index)

    def _free(self, index: int, node: int) -> bool:
        call = self._calls.get(index)
        return call is not None and call.node == node and index not in self._done

    def _known(self, node: int, storage: int | None) -> int | None:
        found = [] if storage is None else self._memory.get((node, storage), [])
        for indices in (found, self._by_node[node]):
            open_ones = [index for index in indices if index not in self._done]
            if open_ones:
                return max(open_ones)
        return None


class SecondRun:
    """What checkpoints' second runs tell of tensors whose gradients the first run did not follow."""

    def __init__(self, adapter: Adapter, tensors: SeenTensors) -> None:
        self._adapter, self._tensors = adapter, tensors
        self.assumed: set[int] = set()
        """Tensors of a checkpoint's first run, in which nothing is followed: the second one tells."""
        self._followed: set[int] = set()
        """Those of them that the second run followed."""
        self._repeats = Recomputation()
        self._open: list[tuple[Any, Call | None]] = []
        """Calls that have begun and not ended, with the call they repeat."""

    def may_repeat(self, index: int, node: int, inputs: Sequence[Slot]) -> None:
        """A call of the first run has ended."""
        if inputs:
            value = inputs[0].value
            self._repeats.remember(index, node, value.storage() if isinstance(value, Held) else None)

    def starts(self, calls: Iterable[Call]) -> None:
        """Backward begins."""
        self._repeats.starts(calls)

    def begins(self, module: Any, node: int, given: Sequence[Any]) -> Call | None:
        """A call of a second run: which one it repeats, and the gradients of what it is given are told."""
        call = self._repeats.repeated(node, self._adapter.storage(given[0]) if given else None)
        self._open.append((module, call))
        if call is not None:
            self.tells(call.inputs, given)
        return call

    def ends(self, module: Any) -> Call | None:
        """It has ended, or was left as soon as it had made what is needed."""
        while self._open:
            begun, call = self._open.pop()
            if begun is module:
                if call is not None and not self._adapter.grad_enabled():
                    self._repeats.not_followed(call)
                return call
        return None

    def tells(self, slots: Sequence[Slot], tensors: Sequence[Any]) -> None:
        """Have the gradients told that the first run did not follow."""
        for slot, tensor in zip(slots, tensors, strict=False):
            if slot.tensor not in self.assumed or not self._adapter.requires_grad(tensor):
                continue
            self._followed.add(slot.tensor)
            if slot.tensor not in self._tensors.hooked:
                again = Held(self._adapter, tensor)
                again.number = slot.tensor
                self._tensors.hook(tensor, again)

    def settled(self, calls: Iterable[Call]) -> tuple[Call, ...]:
        """Calls with what is known, once backward has run, of the tensors that it followed."""
        if not self.assumed:
            return tuple(calls)
        known = self._followed | (self._tensors.hooked.keys() - self.assumed)
        return tuple(
            replace(
                call,
                inputs=tuple(self._settled(slot, known) for slot in call.inputs),
                outputs=tuple(self._settled(slot, known) for slot in call.outputs),
            )
            for call in calls
        )

    def _settled(self, slot: Slot, known: set[int]) -> Slot:
        if slot.tensor not in self.assumed or slot.tracked == (slot.tensor in known):
            return slot
        return replace(slot, tracked=slot.tensor in known)


def in_checkpoint() -> bool:
    """Whether what runs may run again in backward: it runs inside a function of torch or paddle that sees to that, or
    inside a custom autograd function, which may be another's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.endswith(_CHECKPOINTS) or (code.co_name == "forward" and code.co_varnames[:1] == ("ctx",)):
            return True
        frame = frame.f_back
    return False


def in_custom_function(boundary: CodeType) -> bool:
    """Whether the forward of a custom autograd function is under way: what runs inside is not followed by autograd,
    and gradients come from its own backward. ``boundary`` is the code around the call of the model."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not boundary:
        if frame.f_code.co_name == "forward" and frame.f_code.co_varnames[:1] == ("ctx",):
            return True
        frame = frame.f_back
    return False
