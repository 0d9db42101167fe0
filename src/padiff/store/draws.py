"""Random draws of a step: their numbers among the tensors of the dump, masks eight to a byte."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from padiff.records import Array, Draw, Value
from padiff.store import strict
from padiff.store.strict import Malformed
from padiff.store.trees import decode_shape

_DRAW = frozenset({"kind", "value"})
_DRAW_MORE = frozenset({"parameters", "loc", "scale", "op", "call", "path", "clock", "event", "chance"})
_NOT_READ: Array = np.empty(0)


@dataclass(frozen=True)
class StoredNumbers:
    """Numbers that were drawn, on disk: as they are, or eight trues and falses to a byte."""

    value: Value
    shape: tuple[int, ...] | None = None
    """Of what is packed; None for what is not."""

    def load(self) -> Array:
        array = self.value.numpy()
        if self.shape is None:
            return np.array(array)
        found: Array = np.unpackbits(array, count=math.prod(self.shape)).astype(np.bool_).reshape(self.shape)
        return found


@dataclass(frozen=True)
class StoredDraw:
    """Random numbers that a model drew at once; ``load`` reads them."""

    facts: Draw
    """Everything but the numbers."""
    numbers: StoredNumbers
    event: StoredNumbers | None = None

    def load(self) -> Draw:
        """The draw as it was heard."""
        event = None if self.event is None else self.event.load()
        return replace(self.facts, value=self.numbers.load(), event=event)

    def values(self) -> tuple[Value, ...]:
        return (self.numbers.value,) if self.event is None else (self.numbers.value, self.event.value)


def encode_draw(draw: Draw, keep: Callable[[Array], Any]) -> dict[str, Any]:
    """A draw without what is as usual; ``keep`` hands numbers over and says how they are referred to."""

    def kept(array: Array) -> dict[str, Any]:
        if array.dtype != np.bool_:
            return {"tensor": keep(array)}
        return {"tensor": keep(np.packbits(array)), "shape": list(array.shape)}

    row: dict[str, Any] = {"kind": draw.kind, "value": kept(np.asarray(draw.value))}
    parameters = {name: float(number) for name, number in draw.parameters.items() if math.isfinite(number)}
    if parameters:
        row["parameters"] = parameters
    if (draw.loc, draw.scale) != (0.0, 1.0) and math.isfinite(draw.loc) and math.isfinite(draw.scale):
        row |= {"loc": draw.loc, "scale": draw.scale}
    row |= {name: text for name, text in (("op", draw.op), ("path", draw.path)) if text}
    row |= {name: number for name, number in (("call", draw.call), ("clock", draw.clock)) if number}
    if draw.event is not None:
        row["event"] = kept(np.asarray(draw.event) != 0)
    if draw.chance is not None and math.isfinite(draw.chance):
        row["chance"] = draw.chance
    return row


def decode_draw(value: Any, refer: Callable[[Any], Value]) -> StoredDraw:
    row = strict.table(value, "a draw", _DRAW, _DRAW_MORE)
    chance, event = row.get("chance"), row.get("event")
    parameters = strict.table(row.get("parameters", {}), "parameters")
    scale = strict.number(row.get("scale", 1.0), "scale")
    if not scale:
        raise Malformed("the scale of a draw is 0")
    facts = Draw(
        kind=strict.text(row["kind"], "kind"),
        value=_NOT_READ,
        parameters={name: strict.number(number, name) for name, number in parameters.items()},
        loc=strict.number(row.get("loc", 0.0), "loc"),
        scale=scale,
        op=strict.text(row.get("op", ""), "op"),
        call=strict.integer(row.get("call", 0), "call", -1),
        path=strict.text(row.get("path", ""), "path"),
        clock=strict.integer(row.get("clock", 0), "clock"),
        chance=None if chance is None else strict.number(chance, "chance"),
    )
    numbers = _decode_numbers(row["value"], refer)
    return StoredDraw(facts, numbers, None if event is None else _decode_numbers(event, refer))


def _decode_numbers(value: Any, refer: Callable[[Any], Value]) -> StoredNumbers:
    row = strict.table(value, "the numbers of a draw", frozenset({"tensor"}), frozenset({"shape"}))
    value = refer(row["tensor"])
    if "shape" not in row:
        return StoredNumbers(value)
    shape = decode_shape(row["shape"])
    if value.dtype != "uint8" or value.shape != (-(-math.prod(shape) // 8),):
        raise Malformed(f"a draw of shape {list(shape)} cannot be kept as {value.dtype}{list(value.shape)}")
    return StoredNumbers(value, shape)


def decode_unseen(value: Any) -> tuple[tuple[str, str], ...]:
    """(op, path) of what drew where nobody could see it."""
    found = []
    for item in strict.array(value, "unseen"):
        op, path = strict.array(item, "unseen", 2)
        found.append((strict.text(op, "op"), strict.text(path, "path")))
    return tuple(found)
