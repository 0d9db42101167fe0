"""One step of a trace from JSON: what there is, and which stored tensor is whose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from padiff.records import Call, ModuleTree, Value
from padiff.store import nested, strict
from padiff.store.calls import check_calls, decode_call, decode_stacks
from padiff.store.draws import StoredDraw, decode_draw, decode_unseen
from padiff.store.index import SCHEMA
from padiff.store.strict import Malformed
from padiff.store.trees import decode_shape

Refer = Callable[[Any], Value]
"""Makes a value of a reference to a stored tensor."""

_STEP = frozenset({"format", "schema", "step", "ran_backward", "calls", "frames", "stacks", "tensors", "gradients"})
_STATE = ("weights", "buffers", "weights_before", "buffers_before")
_MORE = ("moments", "borders", "arguments", "draws", "unseen")
_STEP_MORE = frozenset({"loss", "parameter_gradients", *_STATE, *_MORE, "noise", "extra"})
FORMAT = "padiff-dump-step"
LOST = ("overwritten", "left out")


@dataclass(frozen=True)
class Borders:
    """The gradients at the borders of each call by themselves, as ``Witness`` sees them."""

    contributions: Mapping[tuple[int, int], Value] = field(default_factory=dict)
    """(Call, tensor) to the gradient that the call sends back to that input."""
    arrivals: Mapping[int, Value] = field(default_factory=dict)
    """Tensor to the gradient that arrives at it from all that uses it."""


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
    moments: Mapping[str, Mapping[str, Value]]
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
    stacks = decode_stacks(table["frames"], table["stacks"])
    calls = tuple(decode_call(row, tree, tensors, stacks) for row in strict.array(table["calls"], "calls"))
    check_calls(calls)
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
        moments={
            name: {path: refer(entry) for path, entry in strict.table(row, "moments").items()}
            for name, row in strict.table(table.get("moments", {}), "moments").items()
        },
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
