"""What one side does in one op and the other step by step: the one op, spelled out.

Its steps are computed from what it was given, and stand for it only where they lead to what it returned. So the line at
which the other side's steps go wrong can be told.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from padiff.compare.arrays import compare_arrays
from padiff.diagnose.likes import Event, Inside
from padiff.records import Array, Slot, Tolerance

FIRST_STEP = 1 << 40
"""Tensors that nobody made are numbered from here on."""
_MOVES = frozenset({"transpose", "repeat_interleave"})

Work = Callable[..., Any]


class _Computed:
    """A tensor that a step would return."""

    overwritten = False

    def __init__(self, array: Array) -> None:
        self._array = array

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._array.shape)

    @property
    def dtype(self) -> str:
        return str(self._array.dtype)

    def numpy(self) -> Array:
        return self._array

    def release(self) -> None:
        """It is small, and goes with the step."""


@dataclass(frozen=True)
class _Made:
    """A tensor on the way: its number and its elements, as exact as they can be had."""

    tensor: int
    exact: Array


class _Steps:
    """Writes down what an op does."""

    def __init__(self, event: Event, first: int) -> None:
        self.options = dict(event.call.options)
        self.kind = event.call.kind
        self.given = [_Made(slot.tensor, _wide(slot.value.numpy())) for slot in event.call.inputs]
        self.events: list[Event] = []
        self._event, self._next = event, first
        self._dtype = event.call.outputs[0].value.numpy().dtype
        self._slots = {slot.tensor: slot for slot in event.call.inputs}

    def do(self, part: str, thing: str, work: Work, *given: _Made) -> _Made:
        """One step; ``part`` says in words what it is."""
        exact = np.asarray(work(*(one.exact for one in given)))
        shown = exact.astype(self._dtype) if exact.dtype.kind == "f" else exact
        made = Slot("", self._next, _Computed(shown))
        self._next += 1
        self._slots[made.tensor] = made
        inputs = tuple(self._slots[one.tensor] for one in given)
        call = replace(self._event.call, inputs=inputs, outputs=(made,), options=())
        self.events.append(Event(call, thing, moving=thing in _MOVES, part=part))
        return _Made(made.tensor, exact)

    def rest(self, *names: str) -> dict[str, _Made]:
        """The last tensors that it was given, of which some may be left out, by name."""
        there = [name for name in names if self.options.get(name, "") is not None]
        return dict(zip(there, self.given[1:], strict=False))

    def finished(self, tolerance: Tolerance) -> list[Event]:
        """The steps, the last of which returns what the op did; none where they lead elsewhere."""
        returned = self._event.call.outputs[0]
        last = self.events[-1]
        computed = last.call.outputs[0].value.numpy()
        if not compare_arrays(returned.value.numpy(), computed, tolerance).agrees:
            return []
        return [*self.events[:-1], replace(last, call=replace(last.call, outputs=(returned,)))]


def _wide(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind == "f" else array


# ------------------------------------------------------------------ the steps


def _attention(steps: _Steps) -> None:
    query, key, *rest = steps.given
    own = bool(rest) and rest[0].exact.shape[:-1] == key.exact.shape[:-1]
    value, mask = (rest[0], rest[1:]) if own else (key, rest)  # a tensor that is key and value may be told once
    if steps.kind.startswith("paddle"):
        query, key, value = (steps.do("heads", "transpose", _heads_first, one) for one in (query, key, value))
    groups = query.exact.shape[-3] // key.exact.shape[-3] if query.exact.ndim > 2 else 1
    if groups > 1:
        key, value = (
            steps.do("groups", "repeat_interleave", lambda one: one.repeat(groups, -3), one) for one in (key, value)
        )
    turned = steps.do("key", "transpose", lambda one: one.swapaxes(-1, -2), key)
    scores = steps.do("scores", "matmul", np.matmul, query, turned)
    scale = steps.options.get("scale") or steps.options.get("softmax_scale") or query.exact.shape[-1] ** -0.5
    scores = steps.do("scale", "mul", lambda one: one * scale, scores)
    if steps.options.get("is_causal") or steps.options.get("causal"):
        seen = np.tri(*scores.exact.shape[-2:]) > 0
        mask = [*mask, steps.do("mask", "triu", lambda: seen)]
    for one in mask:
        scores = steps.do("mask", "masked_fill" if one.exact.dtype.kind == "b" else "add", _masked, scores, one)
    weights = steps.do("softmax", "softmax", _softmax, scores)
    found = steps.do("weighted sum", "matmul", np.matmul, weights, value)
    if steps.kind.startswith("paddle"):
        steps.do("heads", "transpose", _heads_first, found)


def _heads_first(array: Array) -> Array:
    return np.swapaxes(array, -2, -3)


def _masked(scores: Array, mask: Array) -> Array:
    return np.where(mask, scores, -np.inf) if mask.dtype.kind == "b" else np.add(scores, mask, dtype=scores.dtype)


def _softmax(scores: Array, axis: int = -1) -> Array:
    powers = np.exp(scores - scores.max(axis, keepdims=True))
    return np.asarray(powers / powers.sum(axis, keepdims=True))


def _layer_norm(steps: _Steps) -> None:
    axes = _last_axes(steps)
    mean = steps.do("mean", "mean", lambda one: one.mean(axes, keepdims=True), steps.given[0])
    centred = steps.do("centring", "sub", np.subtract, steps.given[0], mean)
    _normalised(steps, centred, axes, 1e-5)


def _rms_norm(steps: _Steps) -> None:
    _normalised(steps, steps.given[0], _last_axes(steps), float(np.finfo(np.float32).eps))


def _last_axes(steps: _Steps) -> tuple[int, ...]:
    size = steps.options.get("normalized_shape")
    return tuple(range(-(len(size) if isinstance(size, tuple) else 1), 0))


def _normalised(steps: _Steps, x: _Made, axes: tuple[int, ...], default: float) -> None:
    eps = steps.options.get("eps")
    eps = default if eps is None else eps
    squares = steps.do("squares", "pow", np.square, x)
    variance = steps.do("variance", "mean", lambda one: one.mean(axes, keepdims=True), squares)
    shifted = steps.do("eps", "add", lambda one: one + eps, variance)
    root = steps.do("root", "rsqrt", lambda one: 1 / np.sqrt(one), shifted)
    found = steps.do("scaling", "mul", np.multiply, x, root)
    rest = steps.rest("weight", "bias")
    if "weight" in rest:
        found = steps.do("weight", "mul", np.multiply, found, rest["weight"])
    if "bias" in rest:
        steps.do("bias", "add", np.add, found, rest["bias"])


def _linear(steps: _Steps) -> None:
    x, weight, *bias = steps.given
    if not steps.kind.startswith("paddle"):
        weight = steps.do("weight", "transpose", lambda one: one.swapaxes(-1, -2), weight)
    found = steps.do("product", "matmul", np.matmul, x, weight)
    for one in bias:
        steps.do("bias", "add", np.add, found, one)


def _gelu(steps: _Steps) -> None:
    (x,) = steps.given
    if steps.options.get("approximate") in ("tanh", True):
        cubed = steps.do("cube", "pow", lambda one: one**3, x)
        cubed = steps.do("factor", "mul", lambda one: one * 0.044715, cubed)
        inner = steps.do("sum", "add", np.add, x, cubed)
        inner = steps.do("factor", "mul", lambda one: one * math.sqrt(2 / math.pi), inner)
        bent = steps.do("tanh", "tanh", np.tanh, inner)
    else:
        inner = steps.do("factor", "mul", lambda one: one / math.sqrt(2), x)
        bent = steps.do("erf", "erf", np.vectorize(math.erf, otypes=[np.float64]), inner)
    raised = steps.do("sum", "add", lambda one: one + 1, bent)
    half = steps.do("half", "mul", lambda one: one * 0.5, x)
    steps.do("product", "mul", np.multiply, half, raised)


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _silu(steps: _Steps) -> None:
    gate = steps.do("sigmoid", "sigmoid", _sigmoid, steps.given[0])
    steps.do("product", "mul", np.multiply, steps.given[0], gate)


def _swiglu(steps: _Steps) -> None:
    x, *rest = steps.given
    other = rest[0] if rest else None
    if other is None:
        half = x.exact.shape[-1] // 2
        x, other = (
            steps.do("half", "getitem", lambda one, part=part: one[..., part], steps.given[0])
            for part in (slice(half), slice(half, None))
        )
    gate = steps.do("silu", "silu", lambda one: one * _sigmoid(one), x)
    steps.do("product", "mul", np.multiply, gate, other)


def _soft(steps: _Steps) -> None:
    axis = steps.options.get("dim", -1)
    most = steps.do("maximum", "max", lambda one: one.max(axis, keepdims=True), steps.given[0])
    shifted = steps.do("shift", "sub", np.subtract, steps.given[0], most)
    powers = steps.do("powers", "exp", np.exp, shifted)
    whole = steps.do("sum", "sum", lambda one: one.sum(axis, keepdims=True), powers)
    steps.do("share", "div", np.divide, powers, whole)


def _normalize(steps: _Steps) -> None:
    axis, eps = steps.options.get("dim", 1), steps.options.get("eps", 1e-12)
    squares = steps.do("squares", "pow", np.square, steps.given[0])
    whole = steps.do("sum", "sum", lambda one: one.sum(axis, keepdims=True), squares)
    root = steps.do("length", "sqrt", np.sqrt, whole)
    least = steps.do("eps", "clip", lambda one: np.maximum(one, eps), root)
    steps.do("share", "div", np.divide, steps.given[0], least)


RECIPES: dict[str, Callable[[_Steps], None]] = {
    "scaled_dot_product_attention": _attention,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "linear": _linear,
    "gelu": _gelu,
    "silu": _silu,
    "swiglu": _swiglu,
    "softmax": _soft,
    "normalize": _normalize,
}
"""What an op does, by the one word for it, to how it is spelled out."""


WHOLE = frozenset({"relu", "leaky_relu", "elu", "hardswish", "mish", "glu", "log_softmax", "batch_norm", "group_norm"})
"""What is done in one op by everybody."""


def spelled_out(
    sides: tuple[Inside, Inside], unlike: tuple[Sequence[Event], Sequence[Event]]
) -> tuple[Inside, Inside] | None:
    """Both sides with one sort of op spelled out, which lies between what both have and the tensor that differs on one
    side alone; None where there is none. What does most comes first: its steps may be ops of the other side's."""
    things = [{event.thing for event in events} for events in unlike]
    for word in RECIPES:
        found = list(sides)
        for side, inside in enumerate(sides):
            lone = [event for event in unlike[side] if event.thing not in things[1 - side]]
            fused = {id(event) for event in lone if _word(event) == word}
            found[side] = replace(inside, events=tuple(_spelled(inside, fused))) if fused else inside
        if any(len(one.events) != len(other.events) for one, other in zip(found, sides, strict=True)):
            return found[0], found[1]
    return None


def is_whole(event: Event) -> bool:
    """Whether an op stands for itself, and is no step of what another does at once."""
    return _word(event) in RECIPES or event.thing in WHOLE


def _word(event: Event) -> str:
    """What to look an op up by; nothing for the step of one."""
    last = event.call.kind.rpartition(".")[2]
    return "" if event.child or event.part else last if last in RECIPES else event.thing


def _spelled(inside: Inside, fused: set[int]) -> Iterator[Event]:
    made = (slot.tensor for event in inside.events for slot in event.call.outputs)
    first = max((*made, FIRST_STEP)) + 1
    for event in inside.events:
        steps = _in_steps(event, first, inside.tolerance()) if id(event) in fused else []
        first += len(steps)
        yield from steps or [event]


def _in_steps(event: Event, first: int, tolerance: Tolerance) -> list[Event]:
    slots = (*event.call.inputs, *event.call.outputs)
    if len(event.call.outputs) != 1 or any(slot.value.overwritten for slot in slots):
        return []
    steps = _Steps(event, first)
    try:
        with np.errstate(all="ignore"):
            RECIPES[_word(event)](steps)
        return steps.finished(tolerance)
    except Exception:  # given something that the recipe does not know
        return []
