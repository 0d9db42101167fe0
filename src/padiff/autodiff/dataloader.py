"""``check_dataloader``: two sources of batches, held against each other."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np

from padiff.autodiff.log import say
from padiff.autodiff.options import read_tolerance
from padiff.compare.arrays import compare_arrays
from padiff.errors import ArgumentError
from padiff.frameworks import adapter_of_tensor
from padiff.frameworks.containers import flatten
from padiff.records import Array

_END = object()


def check_dataloader(loader_0: Iterable[Any], loader_1: Iterable[Any], **options: Any) -> bool:
    """True when both yield the same batches; else the first batch and field that differ are named."""
    unknown = set(options) - {"atol", "rtol", "compare_mode"}
    if unknown:
        raise ArgumentError(f"check_dataloader has no option {unknown.pop()!r}", "known are atol, rtol, compare_mode")
    for name, loader in (("loader_0", loader_0), ("loader_1", loader_1)):
        if not isinstance(loader, Iterable):
            raise ArgumentError(f"{name} is a {type(loader).__name__}, expected something that yields batches")
    tolerance = read_tolerance(options.get("atol", 0.0), options.get("rtol", 1e-7), options.get("compare_mode", "mean"))
    count = 0
    for index, (one, two) in enumerate(itertools.zip_longest(loader_0, loader_1, fillvalue=_END)):
        if one is _END or two is _END:
            say(f"loader_{0 if one is _END else 1} ends after {index} batches, the other goes on", "FAILED !!!")
            return False
        wrong = _differing_field(one, two, tolerance)
        if wrong is not None:
            say(f"batch {index} differs in field {wrong[0]}: {wrong[1]}", "FAILED !!!")
            return False
        count += 1
    say(f"{count} batches compared.", "SUCCESS !!!")
    return True


def _differing_field(one: Any, two: Any, tolerance: Any) -> tuple[str, str] | None:
    left, right = dict(_fields(one)), dict(_fields(two))
    if left.keys() != right.keys():
        for name in [*left, *right]:
            if name not in left or name not in right:
                return repr(name), f"only loader_{0 if name in left else 1} has it"
    for name, value in left.items():
        other = right[name]
        if isinstance(value, np.ndarray) and isinstance(other, np.ndarray):
            outcome = compare_arrays(value, other, tolerance)
            if not outcome.agrees:
                return repr(name or "batch"), outcome.message
        elif type(value) is not type(other) or value != other:
            return repr(name or "batch"), f"{value!r} in loader_0, {other!r} in loader_1"
    return None


def _fields(batch: Any) -> list[tuple[str, Any]]:
    return [(name, _array(value)) for name, value in flatten(batch, _is_value)]


def _is_value(value: Any) -> bool:
    return isinstance(value, (np.ndarray, np.generic, int, float, str, bytes)) or adapter_of_tensor(value) is not None


def _array(value: Any) -> Array | str | bytes:
    if isinstance(value, (str, bytes)):
        return value
    adapter = adapter_of_tensor(value)
    return np.asarray(value) if adapter is None else adapter.to_numpy(value)
