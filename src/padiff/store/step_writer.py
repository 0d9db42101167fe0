"""One step of a dump in the making: what is seen goes to disk, who is who stays until the step ends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from padiff.errors import ArgumentError
from padiff.records import Array, Call, Draw, ModuleTree, StepTrace, Value
from padiff.store import nested, strict
from padiff.store.calls import StackTable, encode_call
from padiff.store.draws import encode_draw
from padiff.store.index import SCHEMA
from padiff.store.slabs import Handle
from padiff.store.steps import FORMAT

_ARRAYS = (np.ndarray, np.generic)


class Seen(int):
    """A tensor of the trace by its number, among arguments."""


class Takes(Protocol):
    """Takes tensors, and steps that have ended."""

    def add(self, array: Array, key: str | None = None) -> Handle: ...

    def end_step(self, step: StepWriter, document: Mapping[str, Any]) -> None: ...


class StepWriter:
    """One step in the making: takes calls, gradients and state as they come."""

    def __init__(self, writer: Takes, step: int, tree: ModuleTree) -> None:
        self.step = step
        self.stacks = StackTable()
        self._writer = writer
        self._tree = tree
        self._calls: list[dict[str, Any]] = []
        self._tensors: dict[int, Any] = {}
        self._gradients: dict[int, Any] = {}
        self._more: dict[str, Any] = {}

    def tensor(self, number: int, value: Value | Array) -> None:
        """A tensor of the trace, by its number there; the first sight of it counts, unless it was left out there."""
        known = self._tensors.get(number)
        if known is None or (type(known) is dict and known["lost"] == "left out"):
            self._tensors[number] = self._reference(value)

    def leave_out(self, number: int, value: Value) -> None:
        """A tensor of which only shape and dtype are kept."""
        self._tensors.setdefault(number, _lost(value, "left out"))

    def call(self, call: Call, *, kept: bool = True) -> None:
        """A call that has ended, with its ops and those tensors of both that were not seen before, or without them."""
        ops = call.ops if kept else ()
        for one in (call, *ops):
            for slot in (*one.inputs, *one.outputs):
                if kept:
                    self.tensor(slot.tensor, slot.value)
                else:
                    self.leave_out(slot.tensor, slot.value)
        self._calls.append(encode_call(call, self._tree, self.stacks, ops))

    def gradient(self, number: int, value: Value | Array, *, bordered: bool = False) -> None:
        """The gradient of a tensor, in the order in which backward makes them; a later one replaces an earlier.

        ``bordered`` says that ``borders`` will come, of which most are the same."""
        self._gradients.pop(number, None)
        self._gradients[number] = self._reference(value, f"gradient {number}" if bordered else None)

    def loss(self, value: Value | Array | None) -> None:
        if value is not None:
            self._more["loss"] = self._reference(value)

    def parameter_gradients(self, values: Mapping[str, Value | Array | None]) -> None:
        """By path; None where backward reached the parameter not at all."""
        self._more["parameter_gradients"] = {
            path: None if value is None else self._reference(value) for path, value in values.items()
        }

    def weights(self, values: Mapping[str, Value | Array]) -> None:
        """Parameters by path; one that has not changed since an earlier step is not stored again."""
        self._more["weights"] = self._state("weight", values)

    def buffers(self, values: Mapping[str, Value | Array]) -> None:
        self._more["buffers"] = self._state("buffer", values)

    def before(self, weights: Mapping[str, Value | Array], buffers: Mapping[str, Value | Array]) -> None:
        """Parameters and buffers as the step found them."""
        self._more["weights_before"] = self._state("weight", weights)
        self._more["buffers_before"] = self._state("buffer", buffers)

    def moments(self, moments: Mapping[str, Mapping[str, Value | Array]]) -> None:
        """What the optimizer remembers of each parameter after the step: name to path to value."""
        self._more["moments"] = {
            name: {path: self._reference(value) for path, value in row.items()} for name, row in moments.items()
        }

    def borders(
        self,
        contributions: Mapping[tuple[int, int], Value | Array],
        arrivals: Mapping[int, Value | Array],
        same: Mapping[int, int] | None = None,
    ) -> None:
        """Gradients at the borders of each call; one that is the tensor's own gradient is not stored again.

        ``same`` leads from the numbers used here to those of the trace, where they are others."""
        number = same or {}

        def kept(tensor: int, value: Value | Array) -> Any:
            return self._reference(value, f"gradient {number.get(tensor, tensor)}")

        self._more["borders"] = {
            "contributions": [[call, tensor, kept(tensor, one)] for (call, tensor), one in contributions.items()],
            "arrivals": [[tensor, kept(tensor, one)] for tensor, one in arrivals.items()],
        }

    def arguments(self, arguments: tuple[tuple[Any, ...], Mapping[str, Any]]) -> None:
        """What the model was called with: (positional, by name), tensors as arrays or values."""
        args, kwargs = arguments
        self._more["arguments"] = {
            "args": [nested.encode(item, self._argument) for item in args],
            "kwargs": {str(name): nested.encode(item, self._argument) for name, item in kwargs.items()},
        }

    def draw(self, draw: Draw) -> None:
        """Random numbers that the model drew."""
        self.heard()
        self._more["draws"].append(encode_draw(draw, lambda array: self._reference(array)))

    def heard(self, unseen: Sequence[tuple[str, str]] = ()) -> None:
        """It is known what the model draws, be it nothing; ``unseen`` are ops, with the path of their module, that drew
        where nobody could see it."""
        self._more.setdefault("draws", [])
        if unseen:
            self._more["unseen"] = [list(one) for one in unseen]

    def noise(self, noise: Mapping[str, Mapping[Any, float]]) -> None:
        """Predicted rounding noise: role (``tensors``, ``gradients``, ``weights``) to key to number."""
        self._more["noise"] = {
            role: {str(key): float(x) if math.isfinite(x) else None for key, x in row.items()}
            for role, row in noise.items()
        }

    def extra(self, extra: Mapping[str, Any]) -> None:
        """Anything that JSON can say."""
        self._more["extra"] = plain_json(extra, "extra")

    def trace(self, trace: StepTrace) -> None:
        """All of a step that is over."""
        for call in trace.calls:
            self.call(call)
        for number, gradient in trace.gradients.items():
            self.gradient(number, gradient)
        self.loss(trace.loss)
        self.parameter_gradients(trace.parameter_gradients)

    def end(self, *, ran_backward: bool = False) -> None:
        """The step is over."""
        document = {
            "format": FORMAT,
            "schema": SCHEMA,
            "step": self.step,
            "ran_backward": ran_backward,
            "calls": self._calls,
            "frames": [list(frame) for frame in self.stacks.frames],
            "stacks": [list(stack) for stack in self.stacks.stacks],
            "tensors": [self._tensors.get(number) for number in range(max(self._tensors, default=-1) + 1)],
            "gradients": [[number, entry] for number, entry in self._gradients.items()],
            **self._more,
        }
        self._writer.end_step(self, document)

    def _state(self, role: str, values: Mapping[str, Value | Array]) -> dict[str, Any]:
        return {path: self._reference(value, f"{role} {path}") for path, value in values.items()}

    def _argument(self, value: Any) -> Any:
        if isinstance(value, Seen):
            return self._tensors.get(value)
        return self._reference(value) if isinstance(value, _ARRAYS) or _is_value(value) else None

    def _reference(self, value: Any, key: str | None = None) -> Any:
        """A handle or, for a value whose elements are gone, what is still known of it."""
        if type(value) is np.ndarray:
            return self._writer.add(value, key)
        if isinstance(value, _ARRAYS):
            return self._writer.add(np.asarray(value), key)
        if value.overwritten:
            return _lost(value, "overwritten")
        handle = self._writer.add(value.numpy(), key)
        return _lost(value, "overwritten") if value.overwritten else handle


def number_of(thing: Any) -> int | None:
    """What stands in JSON for a handle."""
    if type(thing) is Handle:
        return thing.number
    raise TypeError(f"JSON cannot say {type(thing).__name__}")


def _lost(value: Value, why: str) -> dict[str, Any]:
    return {"dtype": value.dtype, "shape": list(value.shape), "lost": why}


def _is_value(thing: Any) -> bool:
    return all(hasattr(thing, name) for name in ("shape", "dtype", "overwritten", "numpy", "release"))


def plain_json(value: Mapping[str, Any], what: str) -> Any:
    """A copy that JSON can say, taken now."""
    try:
        return strict.decode(strict.encode(dict(value)))
    except (TypeError, ValueError, RecursionError, strict.Malformed) as error:
        raise ArgumentError(
            f"{what} cannot be written as JSON: {error}", "use strings, numbers, lists, dicts"
        ) from None
