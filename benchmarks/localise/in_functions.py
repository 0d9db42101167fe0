"""Mistakes in functions that a module's own code calls: activations, attention scores and masks, rotary positions."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import paddle
import torch

from benchmarks.localise import plant
from benchmarks.localise.bug import FAINT, Bug, Kind
from benchmarks.localise.either import array, is_tensor, is_torch, own_tensors, roll, through, where
from benchmarks.localise.stage import Stage, arguments, quiet

F, PF = torch.nn.functional, paddle.nn.functional

PLACES: dict[str, tuple[tuple[Any, str], ...]] = {
    "softmax": ((F, "softmax"), (torch, "softmax"), (torch.Tensor, "softmax"), (PF, "softmax")),
    "attention": ((F, "scaled_dot_product_attention"), (PF, "scaled_dot_product_attention")),
    "gelu": ((F, "gelu"), (PF, "gelu")),
    "relu": ((F, "relu"), (torch, "relu"), (torch.Tensor, "relu"), (PF, "relu")),
    "silu": ((F, "silu"), (PF, "silu"), (PF, "swish")),
}
"""Where libraries find the functions."""


# ------------------------------------------------------------------ who calls what


def users(stage: Stage) -> dict[str, dict[str, list[tuple[Any, ...]]]]:
    """Function to the modules whose own code calls it, and what they give it."""
    kept = getattr(stage, "_users", None)
    if kept is not None:
        return kept  # type: ignore[no-any-return]
    found: dict[str, dict[str, list[tuple[Any, ...]]]] = defaultdict(lambda: defaultdict(list))
    open_calls: list[str] = []

    def entering(path: str, forward: Any, /, *args: Any, **kwargs: Any) -> Any:
        open_calls.append(path)
        try:
            return forward(*args, **kwargs)
        finally:
            open_calls.pop()

    def noting(name: str, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        if open_calls:
            found[name][open_calls[-1]].append(tuple(array(one) for one in args if is_tensor(one)))
        return function(*args, **kwargs)

    with ExitStack() as stack, quiet():
        for path, module in stage.modules.items():
            stack.enter_context(plant.forward_of(module, partial(entering, path)))
        for name, places in PLACES.items():
            stack.enter_context(plant.functions(places, partial(noting, name)))
        args, kwargs = arguments(stage.inputs, 1, stage.raw)
        stage.raw(*args, **kwargs)
    stage.restore()
    stage.__dict__["_users"] = found
    return found


def _in(stage: Stage, name: str) -> Iterator[tuple[str, float, list[tuple[Any, ...]]]]:
    """Modules that call a function themselves while nothing below them does, with their depth."""
    calling = users(stage)[name]
    calls = stage.first_calls()
    for place, call in enumerate(calls):
        below = call.path + "." if call.path else ""
        if call.path in calling and not any(path != call.path and path.startswith(below) for path in calling):
            yield call.path, place / len(calls), calling[call.path]


# ------------------------------------------------------------------ activations

OTHER: dict[str, dict[str, Callable[[Any], Any]]] = {
    "gelu": {
        "tanh for erf": lambda x: F.gelu(x, approximate="tanh") if is_torch(x) else PF.gelu(x, approximate=True),
        "relu for gelu": lambda x: x * (x > 0).to(x.dtype) if is_torch(x) else x * (x > 0).astype(x.dtype),
    },
    "relu": {
        "gelu for relu": lambda x: x * _erf_gate(x),
        "leaky for relu": lambda x: F.leaky_relu(x, 0.01) if is_torch(x) else PF.leaky_relu(x, 0.01),
    },
    "silu": {"gelu for silu": lambda x: x * _erf_gate(x)},
}


def _erf_gate(x: Any) -> Any:
    return 0.5 * (1 + (torch if is_torch(x) else paddle).erf(x / 2**0.5))


def _activation(name: str, what: str, change: Callable[[Any], Any]) -> Kind:
    causes = ("gelu",) if what == "tanh for erf" else ("activation",)

    def run(function: Any, x: Any, /, *args: Any, **kwargs: Any) -> Any:
        return change(x)

    def places(stage: Stage) -> Iterator[Bug]:
        for path, depth, _ in _in(stage, name):
            yield Bug(
                kind=f"activation: {what}",
                place=path,
                expected=stage.expected(path),
                plant=partial(plant.functions_in, stage.modules[path], PLACES[name], run),
                causes=causes,
                floor=FAINT * 10 if what == "tanh for erf" else 1e-3,
                depth=depth,
            )
        for path, depth, key in _held(stage, name):
            yield Bug(
                kind=f"activation: {what}",
                place=path,
                expected=stage.expected(path),
                plant=partial(plant.attribute, stage.modules[path], key, change),
                causes=causes,
                floor=FAINT * 10 if what == "tanh for erf" else 1e-3,
                depth=depth,
            )

    return places


def _held(stage: Stage, name: str) -> Iterator[tuple[str, float, str]]:
    """Modules that keep the function itself as an attribute."""
    originals = {getattr(holder, attribute) for holder, attribute in PLACES[name]}
    calls = stage.first_calls()
    for place, call in enumerate(calls):
        for key, value in vars(stage.modules[call.path]).items():
            if callable(value) and _hashable(value) and value in originals:
                yield call.path, place / len(calls), key


def _hashable(value: Any) -> bool:
    return type(value).__hash__ is not None


# ------------------------------------------------------------------ attention


def _scores(change: Callable[[Any], Any]) -> plant.Run:
    def run(function: Any, scores: Any, /, *args: Any, **kwargs: Any) -> Any:
        return function(change(scores), *args, **kwargs)

    return run


def _masked(scores: Any) -> Any:
    return scores <= -1e4


def _mask_ignored(scores: Any) -> Any:
    return where(_masked(scores), scores * 0.0, scores)


def _mask_off_by_one(scores: Any) -> Any:
    """Every row sees one place more: what is masked there is taken from the place before."""
    shifted = roll(scores, 1, scores.ndim - 1)
    return where(_masked(scores) & ~_masked(shifted), shifted, scores)


def _softmax(what: str, run: plant.Run, causes: tuple[str, ...], masked: bool = False, **more: Any) -> Kind:
    def places(stage: Stage) -> Iterator[Bug]:
        for path, depth, given in _in(stage, "softmax"):
            scores = given[0][0] if given[0] else None
            if scores is None or scores.ndim < 3 or (masked and not (scores <= -1e4).any()):
                continue
            yield Bug(
                kind=f"attention: {what}",
                place=path,
                expected=stage.expected(path),
                plant=partial(plant.functions_in, stage.modules[path], PLACES["softmax"], run),
                causes=causes,
                depth=depth,
                **more,
            )

    return places


def _fused_attention(what: str, factor: float, causes: tuple[str, ...]) -> Kind:
    """The same for the function that does it all: its scale."""

    def run(function: Any, query: Any, /, *args: Any, **kwargs: Any) -> Any:
        return function(query * factor, *args, **kwargs)

    def places(stage: Stage) -> Iterator[Bug]:
        for path, depth, _ in _in(stage, "attention"):
            yield Bug(
                kind=f"attention: {what}",
                place=path,
                expected=stage.expected(path),
                plant=partial(plant.functions_in, stage.modules[path], PLACES["attention"], run),
                causes=causes,
                depth=depth,
            )

    return places


def _rounded_softmax(function: Any, scores: Any, /, *args: Any, **kwargs: Any) -> Any:
    return through(function(through(scores, "bfloat16"), *args, **kwargs), "bfloat16")


def _other_axis(function: Any, scores: Any, /, *args: Any, **kwargs: Any) -> Any:
    return torch.exp(torch.log_softmax(scores, -2)) if is_torch(scores) else paddle.exp(PF.log_softmax(scores, -2))


# ------------------------------------------------------------------ rotary positions


def interleaved(stage: Stage) -> Iterator[Bug]:
    """Pairs of neighbours are turned, not pairs of halves."""

    def run(function: Any, x: Any, /, *args: Any, **kwargs: Any) -> Any:
        first, second = x[..., ::2], x[..., 1::2]
        stack = torch.stack([-second, first], -1) if is_torch(x) else paddle.stack([-second, first], -1)
        return stack.reshape(x.shape)

    for path, depth, home in _rotating(stage):
        yield Bug(
            kind="rotary: neighbours for halves",
            place=path,
            expected=stage.expected(path),
            plant=partial(plant.functions_in, stage.modules[path], ((home, "rotate_half"),), run),
            causes=("rope", "rotary"),
            depth=depth,
        )


def _rotating(stage: Stage) -> Iterator[tuple[str, float, Any]]:
    calls = stage.first_calls()
    for place, call in enumerate(calls):
        kind = type(stage.modules[call.path])
        home = sys.modules.get(kind.__module__)
        if "attention" in kind.__name__.lower() and callable(getattr(home, "rotate_half", None)):
            yield call.path, place / len(calls), home


def other_base(stage: Stage) -> Iterator[Bug]:
    """Positions turn by the powers of 500000 and not of 10000."""
    for path, module in stage.modules.items():
        own = own_tensors(module) | {key: value for key, value in vars(module).items() if is_tensor(value)}
        tables = {key: _turned_otherwise(key, own) for key in own}
        changed = {key: table for key, table in tables.items() if table is not None}
        if changed:
            yield Bug(
                kind="rotary: another base",
                place=path,
                expected=stage.expected(path),
                plant=partial(_values, own, changed),
                causes=("rope", "rotary"),
                phases=("forward", "buffer"),
                weights="keep",
            )


def _turned_otherwise(key: str, own: dict[str, Any]) -> np.ndarray | None:
    power = float(np.log(500000) / np.log(10000))
    if key in ("inv_freq", "original_inv_freq"):
        return array(own[key]) ** power
    if key in ("cos_cached", "sin_cached") and {"cos_cached", "sin_cached"} <= own.keys():
        cosines, sines = array(own["cos_cached"]), array(own["sin_cached"])
        length = next((size for size in cosines.shape if size > 1), 1)
        axis = cosines.shape.index(length)
        turn = np.arctan2(np.take(sines, [1], axis), np.take(cosines, [1], axis)) ** power
        steps = np.arange(length).reshape([-1 if place == axis else 1 for place in range(cosines.ndim)])
        return np.cos(steps * turn) if key == "cos_cached" else np.sin(steps * turn)
    return None


def _values(own: dict[str, Any], changed: dict[str, np.ndarray]) -> Any:
    stack = ExitStack()
    for key, table in changed.items():
        stack.enter_context(plant.values(own[key], table))
    return stack


KINDS: tuple[Kind, ...] = (
    *(_activation(name, what, change) for name, others in OTHER.items() for what, change in others.items()),
    _softmax("scale missing", _scores(lambda s: where(_masked(s), s, s * 3.5)), ("scale", "factor", "ratio")),
    _softmax("scale of another size", _scores(lambda s: where(_masked(s), s, s * 0.7)), ("scale", "factor", "ratio")),
    _softmax("mask ignored", _scores(_mask_ignored), ("mask",), masked=True),
    _softmax("mask off by one", _scores(_mask_off_by_one), ("mask",), masked=True),
    _softmax("softmax in bfloat16", _rounded_softmax, ("softmax", "precision", "bfloat16"), floor=FAINT * 10),
    _softmax("softmax along another axis", _other_axis, ("axis", "softmax")),
    _fused_attention("scale missing", 3.5, ("scale", "factor", "ratio")),
    _fused_attention("scale of another size", 0.7, ("scale", "factor", "ratio")),
    interleaved,
    other_base,
)
