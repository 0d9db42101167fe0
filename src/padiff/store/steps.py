"""One step of a trace as JSON, and back: calls, stacks, and which stored tensor is whose."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from padiff.records import Call, Frame, ModuleTree, Slot, Value
from padiff.store import nested, strict
from padiff.store.draws import StoredDraw, decode_draw, decode_unseen
from padiff.store.index import SCHEMA
from padiff.store.strict import Malformed
from padiff.store.trees import decode_shape

Refer = Callable[[Any], Value]
"""Makes a value of a reference to a stored tensor."""

_CALL = frozenset({"index", "parent", "node"})
_CALL_MORE = frozenset({"path", "kind", "occurrence", "inputs", "outputs", "tensors", "stack"})
_STEP = frozenset({"format", "schema", "step", "ran_backward", "calls", "frames", "stacks", "tensors", "gradients"})
_STATE = ("weights", "buffers", "weights_before", "buffers_before")
_STEP_MORE = frozenset(
    {"loss", "parameter_gradients", *_STATE, "borders", "arguments", "draws", "unseen", "noise", "extra"}
)
FORMAT = "padiff-dump-step"
LOST = ("overwritten", "left out")


@dataclass(frozen=True)
class Borders:
    """The gradients at the borders of each call by themselves, as ``Witness`` sees them."""

    contributions: Mapping[tuple[int, int], Value] = field(default_factory=dict)
    """(Call, tensor) to the gradient that the call sends back to that input."""
    arrivals: Mapping[int, Value] = field(default_factory=dict)
    """Tensor to the gradient that arrives at it from all that uses it."""


class StackTable:
    """Every frame once, every stack once."""

    def __init__(self) -> None:
        self.frames: dict[Frame, int] = {}
        self.stacks: dict[tuple[int, ...], int] = {}

    def number(self, stack: tuple[Frame, ...]) -> int:
        frames = tuple(self.frames.setdefault(frame, len(self.frames)) for frame in stack)
        return self.stacks.setdefault(frames, len(self.stacks))


def encode_call(call: Call, tree: ModuleTree, stacks: StackTable) -> dict[str, Any]:
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
            row[role] = [[s.name, s.tensor, True] if s.tracked else [s.name, s.tensor] for s in slots]
    if call.tensors != (0, 0):
        row["tensors"] = list(call.tensors)
    if call.stack:
        row["stack"] = stacks.number(call.stack)
    return row


@dataclass(frozen=True)
class StepDocument:
    """A step file, read and checked."""

    step: int
    ran_backward: bool
    calls: tuple[Call, ...]
    tensors: Mapping[int, Value]
    gradients: Mapping[int, Value]
    loss: Value | None
    parameter_gradients: Mapping[str, Value | None]
    weights: Mapping[str, Value]
    buffers: Mapping[str, Value]
    weights_before: Mapping[str, Value]
    buffers_before: Mapping[str, Value]
    borders: Borders | None
    arguments: tuple[tuple[Any, ...], dict[str, Any]] | None
    draws: tuple[StoredDraw, ...] | None
    """None where nobody listened."""
    unseen: tuple[tuple[str, str], ...]
    noise: Mapping[str, Mapping[str, float]]
    extra: Mapping[str, Any] = field(default_factory=dict)


def decode_step(document: Any, tree: ModuleTree, refer: Refer) -> StepDocument:
    """Read a step; every number in it is held against what there is."""
    table = strict.table(document, "the step", _STEP, _STEP_MORE)
    if table["format"] != FORMAT:
        raise Malformed("it is no step of a dump")
    strict.integer(table["schema"], "schema", SCHEMA, SCHEMA)
    tensors = {
        number: refer(entry)
        for number, entry in enumerate(strict.array(table["tensors"], "tensors"))
        if entry is not None
    }
    stacks = _decode_stacks(table["frames"], table["stacks"])
    calls = tuple(_decode_call(row, tree, tensors, stacks) for row in strict.array(table["calls"], "calls"))
    _check_calls(calls)
    loss = table.get("loss")
    parameter_gradients = strict.table(table.get("parameter_gradients", {}), "parameter_gradients")
    return StepDocument(
        step=strict.integer(table["step"], "step"),
        ran_backward=strict.boolean(table["ran_backward"], "ran_backward"),
        calls=calls,
        tensors=tensors,
        gradients=_decode_gradients(table["gradients"], refer),
        loss=None if loss is None else refer(loss),
        parameter_gradients={k: None if v is None else refer(v) for k, v in parameter_gradients.items()},
        **{name: {k: refer(v) for k, v in strict.table(table.get(name, {}), name).items()} for name in _STATE},
        borders=_decode_borders(table.get("borders"), refer),
        arguments=_decode_arguments(table.get("arguments"), refer),
        draws=_decode_draws(table.get("draws"), refer),
        unseen=decode_unseen(table.get("unseen", [])),
        noise=_decode_noise(table.get("noise", {})),
        extra=strict.table(table.get("extra", {}), "extra"),
    )


def decode_lost(value: Any) -> tuple[str, tuple[int, ...], bool]:
    """(dtype, shape, overwritten) of a tensor that was seen and is not kept."""
    table = strict.table(value, "a tensor", frozenset({"dtype", "shape", "lost"}))
    if table["lost"] not in LOST:
        raise strict.wrong(table["lost"], "lost", " or ".join(LOST))
    return strict.text(table["dtype"], "dtype"), decode_shape(table["shape"]), table["lost"] == "overwritten"


def _decode_stacks(frames: Any, stacks: Any) -> list[tuple[Frame, ...]]:
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


def _decode_call(value: Any, tree: ModuleTree, tensors: Mapping[int, Value], stacks: list[tuple[Frame, ...]]) -> Call:
    row = strict.table(value, "a call", _CALL, _CALL_MORE)
    number = strict.integer(row["node"], "node", -1, len(tree.nodes) - 1)
    node = tree.nodes[number]
    slots = functools.partial(_decode_slots, tensors=tensors)
    stack = row.get("stack")
    first, last = (strict.integer(n, "tensors") for n in strict.array(row.get("tensors", [0, 0]), "tensors", 2))
    if first > last or (number < 0 and not {"path", "kind"} <= row.keys()):
        raise Malformed("a call contradicts itself")
    return Call(
        index=strict.integer(row["index"], "index"),
        parent=strict.integer(row["parent"], "parent", -1),
        node=number,
        path=strict.text(row.get("path", node.path), "path"),
        kind=strict.text(row.get("kind", node.kind), "kind"),
        occurrence=strict.integer(row.get("occurrence", 0), "occurrence"),
        inputs=slots(row.get("inputs", [])),
        outputs=slots(row.get("outputs", [])),
        tensors=(first, last),
        stack=() if stack is None else stacks[strict.integer(stack, "stack", 0, len(stacks) - 1)],
    )


def _decode_slots(value: Any, tensors: Mapping[int, Value]) -> tuple[Slot, ...]:
    found = []
    for row in strict.array(value, "slots"):
        if len(strict.array(row, "a slot")) not in (2, 3):
            raise Malformed("a slot has neither two nor three members")
        number = strict.integer(row[1], "a tensor")
        if number not in tensors:
            raise Malformed(f"a slot holds tensor {number}, which is not there")
        tracked = len(row) == 3 and strict.boolean(row[2], "tracked")
        found.append(Slot(strict.text(row[0], "a slot"), number, tensors[number], tracked))
    return tuple(found)


def _check_calls(calls: tuple[Call, ...]) -> None:
    """A call happens in one that was entered before it; so calls make a tree."""
    known = {call.index for call in calls}
    if len(known) != len(calls):
        raise Malformed("two calls have one index")
    for call in calls:
        if call.parent >= call.index:
            raise Malformed(f"call {call.index} cannot have happened in call {call.parent}")


def _decode_gradients(value: Any, refer: Refer) -> dict[int, Value]:
    found: dict[int, Value] = {}
    for row in strict.array(value, "gradients"):
        number, entry = strict.array(row, "a gradient", 2)
        if strict.integer(number, "a gradient") in found:
            raise Malformed(f"tensor {number} has two gradients")
        found[number] = refer(entry)
    return found


def _decode_borders(value: Any, refer: Refer) -> Borders | None:
    if value is None:
        return None
    table = strict.table(value, "borders", frozenset({"contributions", "arrivals"}))
    contributions: dict[tuple[int, int], Value] = {}
    for row in strict.array(table["contributions"], "contributions"):
        call, tensor, entry = strict.array(row, "a contribution", 3)
        place = strict.integer(call, "a call"), strict.integer(tensor, "a tensor")
        if place in contributions:
            raise Malformed(f"call {call} sends two gradients back to tensor {tensor}")
        contributions[place] = refer(entry)
    return Borders(contributions, _decode_gradients(table["arrivals"], refer))


def _decode_arguments(value: Any, refer: Refer) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    if value is None:
        return None
    table = strict.table(value, "arguments", frozenset({"args", "kwargs"}))
    args = [nested.decode(item, refer) for item in strict.array(table["args"], "args")]
    kwargs = {name: nested.decode(item, refer) for name, item in strict.table(table["kwargs"], "kwargs").items()}
    return tuple(args), kwargs


def _decode_draws(value: Any, refer: Refer) -> tuple[StoredDraw, ...] | None:
    return None if value is None else tuple(decode_draw(row, refer) for row in strict.array(value, "draws"))


def _decode_noise(value: Any) -> dict[str, dict[str, float]]:
    return {
        role: {
            key: float("nan") if item is None else strict.number(item, "noise")
            for key, item in strict.table(row, "noise").items()
        }
        for role, row in strict.table(value, "noise").items()
    }
