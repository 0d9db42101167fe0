"""``check_dataloader``: two sources of batches, held against each other."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from padiff.autodiff.log import say, wrapped
from padiff.autodiff.options import read_tolerance, refuse_option
from padiff.compare.arrays import compare_arrays
from padiff.errors import ArgumentError
from padiff.frameworks import adapter_of_tensor
from padiff.frameworks.containers import flatten
from padiff.records import Tolerance

OPTIONS = ("atol", "rtol", "compare_mode")
_END = object()


def check_dataloader(loader_0: Iterable[Any], loader_1: Iterable[Any], **options: Any) -> bool:
    """True when both yield the same batches; else the first batch and field that differ are named.

    Loaders that yield nothing show nothing: that is no success.
    """
    for name in options:
        if name not in OPTIONS:
            refuse_option("check_dataloader", name, OPTIONS)
    for name, loader in (("loader_0", loader_0), ("loader_1", loader_1)):
        if not isinstance(loader, Iterable):
            raise ArgumentError(f"{name} is a {type(loader).__name__}, expected something that yields batches")
    tolerance = read_tolerance(options.get("atol", 0.0), options.get("rtol", 1e-7), options.get("compare_mode", "mean"))
    batches = fields = 0
    for one, two in itertools.zip_longest(loader_0, loader_1, fillvalue=_END):
        if one is _END or two is _END:
            ended = 0 if one is _END else 1
            say(f"loader_{ended} ends after {count_batches(batches)}, loader_{1 - ended} goes on", "FAILED !!!")
            return False
        left, right = dict(_fields(one)), dict(_fields(two))
        wrong = _differing_field(left, right, tolerance)
        if wrong is not None:
            say(*wrapped(f"batch {batches} differs in {wrong[0]}: {wrong[1]}", after="    "), "FAILED !!!")
            return False
        batches, fields = batches + 1, fields + len(left)
    if not fields:
        say(*wrapped(f"{_why_nothing(batches)}: there was nothing to compare", after="    "), "FAILED !!!")
        return False
    say(f"{count_batches(batches)} compared. ({tolerance})", "SUCCESS !!!")
    return True


def count_batches(number: int) -> str:
    return f"{number} batches" if number != 1 else "1 batch"


def _why_nothing(batches: int) -> str:
    if batches:
        return f"{count_batches(batches)} of both loaders hold nothing"
    return "neither loader yields a batch (an iterator that was read before is at its end)"


def _differing_field(left: Mapping[str, Any], right: Mapping[str, Any], tolerance: Tolerance) -> tuple[str, str] | None:
    for name in [*left, *right]:
        if name not in left or name not in right:
            return _named(name), f"only loader_{0 if name in left else 1} has it"
    for name, value in left.items():
        difference = _difference(value, right[name], tolerance)
        if difference:
            return _named(name), difference
    return None


def _difference(value: Any, other: Any, tolerance: Tolerance) -> str:
    """What tells two values apart; "" when they are the same."""
    if isinstance(value, np.ndarray) and isinstance(other, np.ndarray):
        if value.dtype.kind not in "OSUMm" and other.dtype.kind not in "OSUMm":
            outcome = compare_arrays(value, other, tolerance)
            return "" if outcome.agrees else outcome.message.replace("base", "loader_0").replace("raw", "loader_1")
        if value.shape != other.shape:
            return f"shapes differ: loader_0 {list(value.shape)}, loader_1 {list(other.shape)}"
        same = bool(np.all(value == other))
    else:
        same = type(value) is type(other) and bool(value == other)
    return "" if same else f"{value!r} in loader_0, {other!r} in loader_1"


def _named(place: str) -> str:
    return f"field {place!r}" if place else "the batch itself"


def _fields(batch: Any) -> list[tuple[str, Any]]:
    return [(place, _comparable(value)) for place, value in flatten(batch, _is_value)]


def _is_value(value: Any) -> bool:
    """Whatever holds no other fields."""
    if isinstance(value, (Mapping, tuple, list)) or value is None:
        return False
    return isinstance(value, type) or not dataclasses.is_dataclass(value)


def _comparable(value: Any) -> Any:
    adapter = adapter_of_tensor(value)
    if adapter is not None:
        return adapter.to_numpy(value)
    return np.asarray(value) if isinstance(value, (bool, int, float, complex, np.generic)) else value
