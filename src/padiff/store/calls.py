"""Calls as JSON, and back: who called whom, with which tensors, from which lines; ops and tags with them."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from padiff.records import FIRST_OP, Call, Frame, ModuleTree, Slot, Value
from padiff.store import nested, strict
from padiff.store.strict import Malformed

_CALL = frozenset({"index", "parent", "node"})
_CALL_MORE = frozenset({"path", "kind", "occurrence", "inputs", "outputs", "tensors", "stack", "ops"})
_OP = frozenset({"index", "name", "begun"})
_OP_MORE = frozenset({"kind", "occurrence", "inputs", "outputs", "stack", "options"})


class StackTable:
    """Every frame once, every stack once."""

    def __init__(self) -> None:
        self.frames: dict[Frame, int] = {}
        self.stacks: dict[tuple[int, ...], int] = {}
        self._numbers: dict[int, tuple[tuple[Frame, ...], int]] = {}
        """Of stacks by identity: to spell one anew takes longer than all the rest of a call."""

    def number(self, stack: tuple[Frame, ...]) -> int:
        known = self._numbers.get(id(stack))
        if known is not None:
            return known[1]
        frames = tuple([self.frames.setdefault(frame, len(self.frames)) for frame in stack])
        number = self.stacks.setdefault(frames, len(self.stacks))
        self._numbers[id(stack)] = stack, number  # while it is held, no other has its identity
        return number


def encode_call(call: Call, tree: ModuleTree, stacks: StackTable, ops: Sequence[Call] = ()) -> dict[str, Any]:
    """A call without what is as usual."""
    row: dict[str, Any] = {"index": call.index, "parent": call.parent, "node": call.node}
    node = tree.nodes[call.node] if 0 <= call.node < len(tree.nodes) else None
    if node is None or call.path != node.path:
        row["path"] = call.path
    if node is None or call.kind != node.kind:
        row["kind"] = call.kind
    if call.occurrence:
        row["occurrence"] = call.occurrence
    for role, slots in (("inputs", call.inputs), ("outputs", call.outputs)):
        if slots:
            row[role] = tuple([_encode_slot(slot) for slot in slots])
    if call.tensors != (0, 0):
        row["tensors"] = call.tensors
    if call.stack:
        row["stack"] = stacks.number(call.stack)
    if ops:
        row["ops"] = [_encode_op(op, call.path, stacks) for op in ops]
    return row


def _encode_op(op: Call, path: str, stacks: StackTable) -> dict[str, Any]:
    """An op or a tag, which belong to the call in whose code they are."""
    row: dict[str, Any] = {"index": op.index, "name": op.path[len(path) :], "begun": op.begun}
    if not op.tag:
        row["kind"] = op.kind
    if op.occurrence:
        row["occurrence"] = op.occurrence
    for role, slots in (("inputs", () if op.tag else op.inputs), ("outputs", op.outputs)):
        if slots:
            row[role] = tuple([_encode_slot(slot) for slot in slots])
    if op.stack:
        row["stack"] = stacks.number(op.stack)
    if op.options:
        row["options"] = {name: nested.encode(value, _no_tensor) for name, value in op.options}
    return row


def _no_tensor(value: Any) -> Any:
    """Options are what an op is given besides tensors."""
    return None


def _encode_slot(slot: Slot) -> tuple[Any, ...]:
    """A tuple: Python's collector walks a list, of which there are thousands, again and again."""
    if slot.stands_for >= 0:
        return slot.name, slot.tensor, slot.tracked, slot.stands_for
    return (slot.name, slot.tensor, True) if slot.tracked else (slot.name, slot.tensor)


def decode_stacks(frames: Any, stacks: Any) -> list[tuple[Frame, ...]]:
    known = []
    for row in strict.array(frames, "frames"):
        file, line, function = strict.array(row, "a frame", 3)
        frame = Frame(strict.text(file, "file"), strict.integer(line, "line"), strict.text(function, "function"))
        known.append(frame)
    last = len(known) - 1
    return [
        tuple(known[strict.integer(number, "a frame", 0, last)] for number in strict.array(row, "a stack"))
        for row in strict.array(stacks, "stacks")
    ]


def decode_call(value: Any, tree: ModuleTree, tensors: Mapping[int, Value], stacks: list[tuple[Frame, ...]]) -> Call:
    row = strict.table(value, "a call", _CALL, _CALL_MORE)
    number = strict.integer(row["node"], "node", -1, len(tree.nodes) - 1)
    node = tree.nodes[number]
    slots = functools.partial(_decode_slots, tensors=tensors)
    stack = row.get("stack")
    first, last = (strict.integer(n, "tensors") for n in strict.array(row.get("tensors", [0, 0]), "tensors", 2))
    index = strict.integer(row["index"], "index")
    if first > last or (number < 0 and not {"path", "kind"} <= row.keys()):
        raise Malformed("a call contradicts itself")
    path = strict.text(row.get("path", node.path), "path")
    ops = tuple(_decode_op(op, index, number, path, tensors, stacks) for op in strict.array(row.get("ops", []), "ops"))
    return Call(
        index=index,
        parent=strict.integer(row["parent"], "parent", -1),
        node=number,
        path=path,
        kind=strict.text(row.get("kind", node.kind), "kind"),
        occurrence=strict.integer(row.get("occurrence", 0), "occurrence"),
        inputs=slots(row.get("inputs", [])),
        outputs=slots(row.get("outputs", [])),
        tensors=(first, last),
        stack=() if stack is None else stacks[strict.integer(stack, "stack", 0, len(stacks) - 1)],
        ops=ops,
    )


def _decode_op(
    value: Any,
    parent: int,
    node: int,
    path: str,
    tensors: Mapping[int, Value],
    stacks: list[tuple[Frame, ...]],
) -> Call:
    row = strict.table(value, "an op", _OP, _OP_MORE)
    stack, name = row.get("stack"), strict.text(row["name"], "name")
    options = strict.table(row.get("options", {}), "options")
    tag = name.startswith("@")
    if not tag and not name.startswith("/"):
        raise strict.wrong(name, "name", "the name of an op or of a tag")
    return Call(
        index=strict.integer(row["index"], "index", *((0, FIRST_OP - 1) if tag else (FIRST_OP, strict.LARGEST))),
        parent=parent,
        node=node,
        path=path + name,
        kind=strict.text(row.get("kind", "tag"), "kind"),
        occurrence=strict.integer(row.get("occurrence", 0), "occurrence"),
        inputs=_decode_slots(row.get("inputs", []), tensors),
        outputs=_decode_slots(row.get("outputs", []), tensors),
        stack=() if stack is None else stacks[strict.integer(stack, "stack", 0, len(stacks) - 1)],
        begun=strict.integer(row["begun"], "begun"),
        options=tuple((key, nested.decode(item, _refused)) for key, item in options.items()),
        tag=tag,
    )


def _refused(value: Any) -> Any:
    raise Malformed("an option of an op is a tensor")


def _decode_slots(value: Any, tensors: Mapping[int, Value]) -> tuple[Slot, ...]:
    found = []
    for row in strict.array(value, "slots"):
        if len(strict.array(row, "a slot")) not in (2, 3, 4):
            raise Malformed("a slot has neither two nor three nor four members")
        number = strict.integer(row[1], "a tensor")
        if number not in tensors:
            raise Malformed(f"a slot holds tensor {number}, which is not there")
        tracked = len(row) > 2 and strict.boolean(row[2], "tracked")
        instead = strict.integer(row[3], "a tensor") if len(row) > 3 else -1
        found.append(Slot(strict.text(row[0], "a slot"), number, tensors[number], tracked, instead))
    return tuple(found)


def check_calls(calls: tuple[Call, ...]) -> None:
    """A call happens in one that was entered before it; so calls make a tree."""
    known = {call.index for call in calls}
    if len(known) != len(calls):
        raise Malformed("two calls have one index")
    ops = [op.index for call in calls for op in call.ops]
    if len(set(ops)) != len(ops):
        raise Malformed("two ops have one index")
    for call in calls:
        if call.parent >= call.index:
            raise Malformed(f"call {call.index} cannot have happened in call {call.parent}")
