"""Whose call stands beside a call of the model that runs: base's own, or the one of base that raw's corresponds to."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Protocol

import numpy as np

from padiff.align import CallPairing, tag_key, tags_of
from padiff.compare.layouts import agree_in_any_layout
from padiff.engine.fed.doubts import CONTAINERS
from padiff.engine.fed.frames import Frames
from padiff.engine.fed.prints import rows_among
from padiff.engine.free.partners import Partners, alters
from padiff.records import Call, ModuleNode, ModuleTree, Slot, StepTrace, Tolerance, Value


class Beside(Protocol):
    """Finds base's call for a call of the model that runs."""

    def at_start(self, call: Call) -> Call | None: ...

    def at_end(self, call: Call) -> Call | None: ...

    def tagged(self, tag: Call) -> Call | None:
        """What base marked with the same name."""
        ...

    def told_late(self, call: Call) -> bool:
        """Whether it is known only when the call has ended."""
        ...

    def lacking(self, call: Call) -> bool:
        """Whether base has no such module at all."""
        ...

    def forgiven(self, call: Call) -> int | None:
        """An earlier call whose output turns out to be what base's was, with this one added."""
        ...

    def parts(self, tensor: int) -> tuple[int, ...]:
        """The tensors of base that one of its tensors is made of, or itself."""
        ...

    def arrival(self, tensor: int, arrivals: Mapping[int, Value]) -> Value | None:
        """The gradient of such a tensor."""
        ...

    def members(self, base: Call, raw: Call) -> list[Call] | None:
        """Base's calls that together do what raw's does; None where it does a part of what one does."""
        ...

    def by_the_way(self, raw: Call, slot: Slot) -> bool:
        """Whether a call that does a part of what base's does is given something because of that."""
        ...

    def loose(self, base: Call, raw: Call) -> bool:
        """Whether the two may end at different places without anything being wrong."""
        ...

    def begins_elsewhere(self, base: Call, raw: Call) -> bool:
        """Whether they may begin at different places, too."""
        ...

    def looks_up(self, base: Call, raw: Call) -> bool:
        """Whether raw's returns rows of a table that base's adds up by itself."""
        ...

    def begun_alike(self, base: Call, raw: Call) -> None:
        """They were given the same first: others of their sort begin at the same place."""
        ...

    def sort(self, base: Call, raw: Call) -> Hashable:
        """Equal for pairs of calls of the same two classes with the same parts."""
        ...

    def framed_otherwise(self, base: Call, raw: Call) -> bool:
        """Whether a call is given more than base's, which adds to it by itself, and not the same."""
        ...


class Itself:
    """Base beside itself."""

    def __init__(self, trace: StepTrace) -> None:
        self._calls = {call.index: call for call in trace.calls}
        self._tags = tags_of(trace.calls)

    def at_start(self, call: Call) -> Call | None:
        found = self._calls.get(call.index)
        return found if found is not None and found.node == call.node else None

    at_end = at_start

    def tagged(self, tag: Call) -> Call | None:
        return self._tags.get(tag_key(tag))

    def told_late(self, call: Call) -> bool:
        return False

    lacking = told_late

    def forgiven(self, call: Call) -> int | None:
        return None

    def parts(self, tensor: int) -> tuple[int, ...]:
        return (tensor,)

    def arrival(self, tensor: int, arrivals: Mapping[int, Value]) -> Value | None:
        return arrivals.get(tensor)

    def members(self, base: Call, raw: Call) -> list[Call] | None:
        return [base]

    def by_the_way(self, raw: Call, slot: Slot) -> bool:
        return False

    def loose(self, base: Call, raw: Call) -> bool:
        return False

    begins_elsewhere = framed_otherwise = looks_up = loose

    def begun_alike(self, base: Call, raw: Call) -> None:
        pass

    def sort(self, base: Call, raw: Call) -> Hashable:
        return base.kind


class Other:
    """Raw beside base."""

    def __init__(
        self,
        pairing: CallPairing,
        base_tree: ModuleTree,
        tolerance: Tolerance,
        alike: frozenset[Hashable] = frozenset(),
        frames: Frames | None = None,
    ) -> None:
        self._pairing, self._tree, self._frames = pairing, base_tree, frames
        self._partners = Partners(pairing, base_tree, tolerance)
        self._alike: set[Hashable] = set(alike)
        """Sorts of calls that are known to begin at the same place."""
        self._scattered: set[int] = set()
        """Raw calls that are given rows of what base's is given, or all of which that is given some."""

    def at_start(self, call: Call) -> Call | None:
        base = self._pairing.base_call(call)
        whole = self._pairing.whole(call)
        if whole is not None:
            return None if self._given_rows(whole, call) else whole
        if base is not None and call.parent >= 0 and self._given_other_rows(base, call):
            return None
        return None if base is not None and self._partners.idles(base) and not self._given_alike(base, call) else base

    def _given_rows(self, base: Call, call: Call) -> bool:
        """Whether a call is given some rows of what base's is given, and others of the same module the rest: it is
        right, and nothing of base's stands beside it."""
        values = [slot.value for slot in (*base.inputs[:1], *call.inputs[:1])]
        known = len(values) == 2 and not any(value.overwritten for value in values)
        if known and rows_among(values[0].numpy(), values[1].numpy()):
            self._scattered.add(call.index)
        return call.index in self._scattered

    def _given_other_rows(self, base: Call, call: Call) -> bool:
        """Whether a call is given all rows where base's is given some that were picked, or the other way round: an
        expert that is given its tokens here, and there all of them, of whose results most are left out."""
        values = [slot.value for slot in (*base.inputs[:1], *call.inputs[:1])]
        if len(values) == 2 and not any(value.overwritten for value in values) and _picked(*values):
            some, every = sorted((value.numpy() for value in values), key=np.size)
            if rows_among(every, some):
                self._scattered.add(call.index)
        return call.index in self._scattered

    def _given_alike(self, base: Call, call: Call) -> bool:
        return len(base.inputs) != 1 or len(call.inputs) != 1 or _same(base.inputs[0], call.inputs[0])

    def at_end(self, call: Call) -> Call | None:
        if call.index in self._scattered:
            return None
        whole = self._pairing.whole(call)
        return whole if whole is not None else self._partners.of(call, _same)

    def tagged(self, tag: Call) -> Call | None:
        return self._pairing.tagged(tag)

    def told_late(self, call: Call) -> bool:
        return self._pairing.told_late(call)

    def lacking(self, call: Call) -> bool:
        return self._pairing.lacking(call)

    def forgiven(self, call: Call) -> int | None:
        found = self._partners.finishes(call)
        return None if found is None else found.index

    def parts(self, tensor: int) -> tuple[int, ...]:
        return self._pairing.parts.get(tensor, (tensor,))

    def arrival(self, tensor: int, arrivals: Mapping[int, Value]) -> Value | None:
        made = self._pairing.derived.get(tensor)
        return arrivals.get(tensor) if made is None else made(arrivals)

    def members(self, base: Call, raw: Call) -> list[Call] | None:
        found = self._pairing.together(raw)
        return [base] if found is not None and len(found) < 2 else found

    def by_the_way(self, raw: Call, slot: Slot) -> bool:
        return self._pairing.by_the_way(raw, slot)

    def loose(self, base: Call, raw: Call) -> bool:
        node = self._tree.nodes[base.node]
        unfinished = "norm" in (node.layer or node.kind).lower()  # its activation may come with it, or apart
        unfinished = unfinished or self._pairing.adds_up(base, raw) or self._pairing.varied(base, raw)
        return not self._pairing.alike and (node.layer is None or unfinished or self._holds(node))

    def begins_elsewhere(self, base: Call, raw: Call) -> bool:
        if self._pairing.alike or raw.parent < 0:
            return False
        if not self._holds(self._tree.nodes[base.node]):
            return _hands_on_cut_otherwise(base, raw)
        return not self._pairing.same_inside(base, raw) and self._pairing.sort(base, raw) not in self._alike

    def looks_up(self, base: Call, raw: Call) -> bool:
        return self._pairing.looks_up(base, raw)

    def begun_alike(self, base: Call, raw: Call) -> None:
        if not self._pairing.alike and base.kind not in CONTAINERS and raw.kind not in CONTAINERS:
            self._alike.add(self._pairing.sort(base, raw))

    def sort(self, base: Call, raw: Call) -> Hashable:
        return self._pairing.sort(base, raw)

    def framed_otherwise(self, base: Call, raw: Call) -> bool:
        return self._frames is not None and self._frames.otherwise(base, raw)

    def _holds(self, node: ModuleNode) -> bool:
        """Whether it is there for the modules in it, and not a layer of its own."""
        return bool(node.children) and not node.atomic


def _hands_on_cut_otherwise(base: Call, raw: Call) -> bool:
    """Whether a call of base's does nothing (an idle dropout), beside one that is given another shape: there are many
    such, and they stand at many places."""
    if alters(base) or not base.inputs or not raw.inputs:
        return False
    return base.inputs[0].value.shape != raw.inputs[0].value.shape


def resized(base: Call, raw: Call) -> bool:
    """Whether a call is given more or less than base's, and returns more or less: one author pads before a convolution,
    the other has it pad and crops after it. If that is wrong, something later will be."""
    if not (base.inputs and raw.inputs and base.outputs and raw.outputs):
        return False
    firsts = ((base.inputs[0].value, raw.inputs[0].value), (base.outputs[0].value, raw.outputs[0].value))
    return all(math.prod(one.shape) != math.prod(other.shape) for one, other in firsts)


def _picked(base: Value, raw: Value) -> bool:
    """Whether the rows of one may have been picked from the other's, by their shapes: tokens of any sequence, one after
    the other. What is cut along an axis of several is a stretch, and may be the mistake."""
    one, other = sorted((base.shape, raw.shape), key=math.prod)
    return len(one) == 2 and len(other) > 1 and one[-1] == other[-1] > 1 and one[0] < math.prod(other[:-1])


def _same(base: Slot, raw: Slot) -> bool:
    if math.prod(base.value.shape) != math.prod(raw.value.shape) or base.value.overwritten or raw.value.overwritten:
        return False
    return agree_in_any_layout(base.value.numpy(), raw.value.numpy(), Tolerance(mode="auto"))
