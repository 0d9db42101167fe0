"""Random draws of torch, seen and replaced below autograd: there dropout inside attention or an LSTM is seen, too."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from padiff.frameworks.draws import Bound, Dice, Drawn
from padiff.records import Array

ToNumpy = Callable[[Any], Array]
ToNative = Callable[[Array], Any]
_BOUNDS: dict[str, Bound] = {"lt": "less", "le": "less", "gt": "greater", "ge": "greater", "floor": "floor"}


@dataclass
class _Seen:
    """A draw of an op that has run, and how other numbers are put in its place."""

    kind: str
    tensor: Any
    """Holds the numbers."""
    parameters: Mapping[str, float] = field(default_factory=dict)
    loc: Any = 0.0
    scale: Any = 1.0
    read: Callable[[Array], Array] = lambda value: value
    """From what the tensor holds to the numbers of this kind."""
    back: Callable[[Array], Array] = lambda value: value
    afterwards: Callable[[], None] = lambda: None
    """Mend what the op made of the numbers, once others are in their place."""


class DrawWatch(TorchDispatchMode):
    """Tells dice of every op that draws. torch has tagged them all."""

    def __init__(self, dice: Dice, to_numpy: ToNumpy, to_native: ToNative) -> None:
        super().__init__()
        self._dice, self._to_numpy, self._to_native = dice, to_numpy, to_native

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        sort = _sort(func)
        if sort == "draw":
            return self._draw(func, args, kwargs)
        if sort == "bound" and self._dice.curious:
            return self._bound(func, args, kwargs)
        return func(*args, **kwargs)

    def _draw(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = func.overloadpacket.__name__
        find = _DRAWS.get(name.removesuffix("_"))
        if find is None:
            with self:  # in inference mode ops arrive here that are made of others elsewhere: dropout, attention
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        given = _by_name(func, args, kwargs)
        before = _copy_of_input(func, given)
        generators = _generators(given)
        states = [one.get_state() for one in generators]
        out = func(*args, **kwargs)
        seen = None if find is None else find(given, out, before)
        if seen is None:
            if find is None and _moved(generators, states):
                self._dice.hidden(f"torch.ops.aten.{name}")
            return out
        if type(seen.tensor) not in (torch.Tensor, torch.nn.Parameter):  # nothing to read: fake, functional, wrapped
            return out
        drawn = Drawn(
            seen.kind,
            f"aten.{name}",
            seen.read(self._to_numpy(seen.tensor)),
            self._number(seen.loc),
            self._number(seen.scale),
            seen.parameters,
            lambda: hash(tuple(state.numpy().tobytes() for state in states)),
        )
        other = self._dice.drawn(drawn)
        if other is not None:
            self._write(seen.tensor, seen.back(other))
            seen.afterwards()
        return out

    def _bound(self, func: Any, args: Any, kwargs: Any) -> Any:
        how = _BOUNDS[func.overloadpacket.__name__.removesuffix("_")]
        left = args[0]
        right = args[1] if len(args) > 1 else 0.0
        if not isinstance(left, torch.Tensor):
            return func(*args, **kwargs)
        numbers, bound = np.array(self._to_numpy(left)), np.asarray(self._number(right))
        out = func(*args, **kwargs)
        other = self._dice.bounded(how, numbers, bound, self._to_numpy(out))
        if other is not None:
            self._write(out, other)
        return out

    def _number(self, value: Any) -> Any:
        return np.array(self._to_numpy(value)) if isinstance(value, torch.Tensor) else value

    def _write(self, tensor: Any, value: Array) -> None:
        tensor.copy_(self._to_native(np.ascontiguousarray(value)).reshape(tensor.shape))


@contextmanager
def watching(dice: Dice, to_numpy: ToNumpy, to_native: ToNative) -> Iterator[None]:
    """Inside, dice hear of every draw of this thread. On a GPU attention runs unfused, or its dropout is not seen."""
    with ExitStack() as stack:
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(DrawWatch(dice, to_numpy, to_native))
        yield


_sorts: dict[Any, Literal["draw", "bound"] | None] = {}  # a cache keyed by the framework's own functions


def _sort(func: Any) -> Literal["draw", "bound"] | None:
    try:
        return _sorts[func]
    except KeyError:
        found: Literal["draw", "bound"] | None = None
        if torch.Tag.nondeterministic_seeded in func.tags:
            found = "draw"
        elif func.namespace == "aten" and func.overloadpacket.__name__.removesuffix("_") in _BOUNDS:
            found = "bound"
        _sorts[func] = found
        return found


def _by_name(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Arguments by the names of the op's schema, defaults filled in."""
    schema = func._schema.arguments
    given = {one.name: one.default_value for one in schema if one.has_default_value()}
    return given | {one.name: value for one, value in zip(schema, args, strict=False)} | kwargs


def _generators(given: Mapping[str, Any]) -> list[Any]:
    """The generators an op may draw from."""
    if isinstance(given.get("generator"), torch.Generator):
        return [given["generator"]]
    found = [torch.default_generator]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        found += torch.cuda.default_generators
    return found


def _moved(generators: list[Any], states: list[Any]) -> bool:
    return any(not torch.equal(one.get_state(), state) for one, state in zip(generators, states, strict=True))


def _copy_of_input(func: Any, given: Mapping[str, Any]) -> Any:
    """What an op overwrites and is still needed."""
    if func.overloadpacket.__name__ == "rrelu_with_noise_":
        return given["self"].clone()
    return None


# ------------------------------------------------------------------ which op draws what

Find = Callable[[Mapping[str, Any], Any, Any], _Seen | None]


def _first(out: Any) -> Any:
    return out[0] if isinstance(out, (tuple, list)) else out


def _one_number(value: Any) -> float | None:
    """A number, or what all elements of a tensor are."""
    if isinstance(value, (int, float)):
        return float(value)
    if isinstance(value, torch.Tensor) and value.numel():
        low, high = value.min(), value.max()
        return float(low) if bool(low == high) else None
    return None


def _mean(name: str, value: Any) -> dict[str, float]:
    """What a tensor of parameters is on average, under that name; nothing where that is no number."""
    if not isinstance(value, torch.Tensor) or not value.numel():
        return {}
    mean = float(value.detach().double().mean())
    return {name: mean} if math.isfinite(mean) else {}


def _mask(given: Mapping[str, Any], out: Any, before: Any) -> _Seen:
    chance = given.get("p", given["self"])
    keep = _one_number(chance)
    known = _mean("mean chance", chance) if keep is None else {"keep": keep}
    return _Seen("mask", _first(out), known, read=lambda value: value != 0)


def _dropout(given: Mapping[str, Any], out: Any, before: Any) -> _Seen | None:
    """The fused kernel of devices: the mask is its second output."""
    x, p, train = given["input"], float(given["p"]), given["train"]
    if train is False or p in (0.0, 1.0):
        return None
    made, mask = out

    def again() -> None:
        made.copy_(x * mask.to(x.dtype) * (1.0 / (1.0 - p)))

    return _Seen("mask", mask, {"keep": 1.0 - p}, read=lambda value: value != 0, afterwards=again)


def _uniform(given: Mapping[str, Any], out: Any, before: Any) -> _Seen:
    low, high = float(given.get("from", 0.0)), float(given.get("to", 1.0))
    return _Seen("uniform", _first(out), {"low": low, "high": high}, low, high - low)


def _gaussian(given: Mapping[str, Any], out: Any, before: Any) -> _Seen:
    mean, std = given.get("mean", 0.0), given.get("std", 1.0)
    known = not isinstance(mean, torch.Tensor) and not isinstance(std, torch.Tensor)
    return _Seen("gaussian", _first(out), {"mean": float(mean), "std": float(std)} if known else {}, mean, std)


def _log_gaussian(given: Mapping[str, Any], out: Any, before: Any) -> _Seen:
    mean, std = float(given["mean"]), float(given["std"])
    return _Seen("gaussian", _first(out), {"mean": mean, "std": std}, mean, std, np.log, np.exp)


def _cauchy(given: Mapping[str, Any], out: Any, before: Any) -> _Seen:
    median, sigma = float(given["median"]), float(given["sigma"])

    def read(value: Array) -> Array:
        angle: Array = np.arctan((value - median) / sigma) / math.pi + 0.5
        return angle

    def back(value: Array) -> Array:
        found: Array = median + sigma * np.tan(math.pi * (value.astype(np.float64) - 0.5))
        return found

    return _Seen("uniform", _first(out), {"low": 0.0, "high": 1.0}, read=read, back=back)


def _exponential(given: Mapping[str, Any], out: Any, before: Any) -> _Seen:
    rate = float(given["lambd"])
    return _Seen("exponential", _first(out), {"rate": rate}, 0.0, 1.0 / rate)


def _integers(given: Mapping[str, Any], out: Any, before: Any) -> _Seen:
    low = given.get("low", given.get("from", 0))
    high = given.get("high", given.get("to"))
    found = {"low": float(low)} if high is None else {"low": float(low), "high": float(high)}
    return _Seen("integers", _first(out), found)


def _permutation(given: Mapping[str, Any], out: Any, before: Any) -> _Seen:
    return _Seen("permutation", _first(out), {"high": float(given["n"])})


def _choice(given: Mapping[str, Any], out: Any, before: Any) -> _Seen:
    weights = given["self"].detach().double()
    shares = weights / weights.sum(-1, keepdim=True)
    middle = (shares * torch.arange(weights.shape[-1], device=weights.device)).sum(-1)
    return _Seen("choice", _first(out), {"high": float(weights.shape[-1]), **_mean("mean index", middle)})


def _rrelu(given: Mapping[str, Any], out: Any, before: Any) -> _Seen | None:
    if not given["training"]:
        return None
    x = given["self"] if before is None else before
    noise, low, high = given["noise"], float(given["lower"]), float(given["upper"])
    made = _first(out)

    def again() -> None:
        noise.copy_(torch.where(x < 0, noise, torch.ones_like(noise)))  # backward multiplies by all of it
        made.copy_(x * noise)

    return _Seen("uniform", noise, {"low": low, "high": high}, low, high - low, afterwards=again)


def _named(kind: str) -> Find:
    return lambda given, out, before: _Seen(kind, _first(out), _mean("mean rate", given["self"]))


def _binomial(given: Mapping[str, Any], out: Any, before: Any) -> _Seen:
    return _Seen("binomial", _first(out), _mean("mean rate", given["count"] * given["prob"]))


_DRAWS: dict[str, Find] = {
    "bernoulli": _mask,
    "native_dropout": _dropout,
    "rand": _uniform,
    "rand_like": _uniform,
    "uniform": _uniform,
    "randn": _gaussian,
    "randn_like": _gaussian,
    "normal": _gaussian,
    "normal_functional": _gaussian,
    "log_normal": _log_gaussian,
    "cauchy": _cauchy,
    "exponential": _exponential,
    "randint": _integers,
    "randint_like": _integers,
    "random": _integers,
    "randperm": _permutation,
    "multinomial": _choice,
    "rrelu_with_noise": _rrelu,
    "geometric": lambda given, out, before: _Seen("geometric", _first(out)),
    "poisson": _named("poisson"),
    "binomial": _binomial,
    "_standard_gamma": _named("gamma"),
    "_sample_dirichlet": _named("dirichlet"),
}
"""Op to how its draw is read; what is not listed is said to be hidden, if it moves a generator."""
