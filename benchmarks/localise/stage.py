"""A pair of models that agrees, ready to have bugs planted in raw: what was seen of both, and how to put it back."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

import padiff
from benchmarks.localise.either import is_torch, modules_of, own_tensors, paths_of, put_back, state_of
from benchmarks.localise.partners import Partners
from benchmarks.localise.watch import Seen, watched

Models = tuple[Any, Any, Any]


@dataclass(frozen=True)
class Source:
    """Where a pair comes from."""

    name: str
    build: Callable[[], Models]
    """Base, raw and inputs."""
    phase: Literal["both", "forward"] = "both"
    whole: str = ""
    """Raw's modules that base has as one, as a pattern whose first group is that one."""


@dataclass
class Stage:
    """A pair after base's weights were copied into raw, and one plain run of each."""

    source: Source
    base: Any
    raw: Any
    inputs: Any
    modules: dict[str, Any]
    """Raw's, by path."""
    calls: list[Seen]
    """Raw's, in order."""
    partners: Partners
    aliases: dict[int, tuple[str, ...]]
    saved: list[tuple[Any, np.ndarray]]
    holders: dict[int, list[str]]
    """Tensor, by identity, to the modules that hold it."""

    @property
    def name(self) -> str:
        return self.source.name

    def run_raw(self) -> list[Seen]:
        with quiet():
            return watched(self.raw, *arguments(self.inputs, 1, self.raw))

    def restore(self) -> None:
        """Both models' tensors as they were after the copy."""
        put_back(self.saved)

    def expected(self, path: str) -> tuple[str, ...]:
        """Names by which a fault in this module may be called: its paths, and where base has nothing that returns
        the same, the nearest module around it for which base has."""
        places = list(self.aliases.get(id(self.modules[path]), (path,)))
        places.append(self.partners.visible(path))
        caller = self.partners.caller(path)
        if caller is not None and self.partners.wrapped(path):
            places.append(caller)
        if self.source.whole:
            places += [re.sub(self.source.whole, r"\1", place) for place in places]
        return tuple(dict.fromkeys(places))

    def first_calls(self) -> list[Seen]:
        """The first call of every module that returns floating numbers, in order."""
        found: dict[str, Seen] = {}
        for call in self.calls:
            if call.outputs:
                found.setdefault(call.path, call)
        return list(found.values())

    def owners(self, tensor: Any) -> list[str]:
        """Paths of all modules that hold a tensor."""
        return self.holders[id(tensor)]


class NotClean(Exception):
    """The pair does not agree before anything is planted."""


def staged(source: Source) -> Stage:
    """Build, copy the weights, look at both once."""
    with quiet():
        base, raw, inputs = source.build()
        plan = padiff.plan_weights(base, raw, inputs)
        if plan.problems:
            raise NotClean(f"base's weights don't fit into raw: {plan.problems[0].message}")
        plan.apply()
        saved = [*state_of(base), *state_of(raw)]
        base_calls = watched(base, *arguments(inputs, 0, base))
        calls = watched(raw, *arguments(inputs, 1, raw))
        put_back(saved)
    modules = modules_of(raw)
    holders: dict[int, list[str]] = defaultdict(list)
    for path, module in modules.items():
        for tensor in own_tensors(module).values():
            holders[id(tensor)].append(path)
    return Stage(source, base, raw, inputs, modules, calls, Partners(base_calls, calls), paths_of(raw), saved, holders)


def arguments(inputs: Any, side: int, model: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """One side's arguments as tensors of its framework; what is given may be an array, a dict, or a pair."""
    if isinstance(inputs, tuple):
        inputs = inputs[side]
    some = next(iter(tensor for module in modules_of(model).values() for tensor in own_tensors(module).values()))
    if isinstance(inputs, padiff.Inputs):
        return tuple(_tensor(value, some) for value in inputs.args), {}
    if isinstance(inputs, Mapping):
        return (), {name: _tensor(value, some) for name, value in inputs.items()}
    return (_tensor(inputs, some),), {}


def _tensor(value: np.ndarray, some: Any) -> Any:
    narrow = np.asarray(value).dtype.name == "bfloat16"
    if is_torch(some):
        import torch

        made = torch.from_numpy(np.array(value, np.float32 if narrow else None))
        return made.bfloat16() if narrow else made
    import paddle

    made = paddle.to_tensor(np.array(value, np.float32 if narrow else None))
    return made.astype("bfloat16") if narrow else made


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # paddle's BatchNorm says at every call that it tracks statistics
        yield
