"""Checkpoints: regions of a model whose forward runs again in backward, and which calls these second runs repeat.

Where the first run does not follow gradients (torch's reentrant form, paddle's recompute), they are seen in the second
one. Each call is told of once, with the numbers its tensors were given in the first run.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, FrameType

from padiff.records import Call

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
