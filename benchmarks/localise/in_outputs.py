"""Mistakes in what a module returns, made by its own code."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.localise import plant
from benchmarks.localise.bug import Bug, Kind
from benchmarks.localise.either import change_first, like, roll, through
from benchmarks.localise.stage import Stage
from benchmarks.localise.watch import Seen


def scaled(factor: float) -> Callable[[Any], Any]:
    return lambda tensor: tensor * factor


def shifted(tensor: Any) -> Any:
    """By one word, or by one pixel."""
    return roll(tensor, 1, 1 if tensor.ndim == 3 else tensor.ndim - 1)


def channel_zeroed(tensor: Any) -> Any:
    axis = 1 if tensor.ndim == 4 else tensor.ndim - 1
    count = tensor.shape[axis]
    mask = np.ones(count)
    mask[count // 2] = 0.0
    return tensor * like(mask.reshape([count if place == axis else 1 for place in range(tensor.ndim)]), tensor)


def rounded(tensor: Any) -> Any:
    return through(tensor, "bfloat16")


def dropped(tensor: Any) -> Any:
    """Some values missing, the others larger: dropout that is on, always in the same places."""
    shape = tuple(tensor.shape)
    kept = np.random.default_rng(zlib.crc32(str(shape).encode())).random(shape) < 0.9
    return tensor * like(kept / 0.9, tensor)


def not_a_number(tensor: Any) -> Any:
    mask = np.zeros(tuple(tensor.shape))
    mask.flat[mask.size // 2] = np.nan
    return tensor + like(mask, tensor)


def anything(stage: Stage, call: Seen) -> bool:
    return call.path != ""


def sequence_or_picture(stage: Stage, call: Seen) -> bool:
    return call.path != "" and call.outputs[0].ndim >= 3


def dropout(stage: Stage, call: Seen) -> bool:
    return "drop" in type(stage.modules[call.path]).__name__.lower()


def _kind(
    name: str,
    change: Callable[[Any], Any],
    causes: tuple[str, ...] = (),
    wanted: Callable[[Stage, Seen], bool] = anything,
    **more: Any,
) -> Kind:
    def places(stage: Stage) -> Iterator[Bug]:
        calls = stage.first_calls()
        for place, call in enumerate(calls):
            if wanted(stage, call):
                yield Bug(
                    kind=name,
                    place=call.path,
                    expected=stage.expected(call.path),
                    plant=_planting(stage.modules[call.path], change),
                    causes=causes,
                    depth=place / len(calls),
                    **more,
                )

    return places


def _planting(module: Any, change: Callable[[Any], Any]) -> Callable[[], Any]:
    def run(forward: Any, /, *args: Any, **kwargs: Any) -> Any:
        return change_first(forward(*args, **kwargs), change)[0]

    return lambda: plant.forward_of(module, run)


SCALE = ("scale", "factor", "ratio", "constant", "times")

KINDS: tuple[Kind, ...] = (
    _kind("output: times 1.01", scaled(1.01), SCALE),
    _kind("output: times 1.001", scaled(1.001), SCALE, floor=9e-4),
    _kind("output: negated", scaled(-1.0), (*SCALE, "sign")),
    _kind("output: shifted by one", shifted, ("shift", "roll", "position", "off by one"), sequence_or_picture),
    _kind("output: one channel zero", channel_zeroed),
    _kind("output: rounded to bfloat16", rounded, ("precision", "bfloat16", "rounded"), floor=5e-4),
    _kind("output: one value not a number", not_a_number, ("nan", "finite", "number")),
    _kind("dropout: on at inference", dropped, ("dropout",), dropout),
)
