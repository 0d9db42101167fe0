"""Random draws of paddle, seen and replaced where its functions call the kernels that draw."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import paddle

from padiff.frameworks.draws import Bound, Dice, Drawn
from padiff.frameworks.paddle_builtins import places_of
from padiff.frameworks.paddle_rnn import layer_by_layer, layers_of, masks_of
from padiff.frameworks.patches import Patch, Wrap, replaced
from padiff.records import Array

Op = Callable[..., Any]
ToNumpy = Callable[[Any], Array]
ToNative = Callable[[Array], Any]

_BOUNDS: dict[str, Bound] = {
    "less_than": "less",
    "less_equal": "less",
    "greater_than": "greater",
    "greater_equal": "greater",
    "floor": "floor",
    "floor_": "floor",
}
_METHODS: dict[str, Bound] = {"__lt__": "less", "__le__": "less", "__gt__": "greater", "__ge__": "greater"}
_SMALLEST = np.finfo(np.float64).tiny


class _Listening:
    """Who listens in this thread, and how tensors are read and made."""

    def __init__(self, dice: Dice, to_numpy: ToNumpy, to_native: ToNative) -> None:
        self.dice, self.to_numpy, self._to_native = dice, to_numpy, to_native

    def told(
        self,
        kind: str,
        op: str,
        value: Array,
        before: Any,
        loc: Any = 0.0,
        scale: Any = 1.0,
        **parameters: Any,
    ) -> Array | None:
        """What takes the place of the numbers drawn; None where they stay."""
        known = {name: float(number) for name, number in parameters.items() if isinstance(number, (int, float))}
        state = functools.partial(_state_number, before)
        return self.dice.drawn(Drawn(kind, op, value, self._number(loc), self._number(scale), known, state))

    def native(self, value: Array, like: Any) -> Any:
        tensor = self._to_native(np.ascontiguousarray(value)).reshape(like.shape).astype(like.dtype)
        return tensor if str(tensor.place) == str(like.place) else tensor.to(like.place)

    def write(self, tensor: Any, value: Array) -> Any:
        with paddle.no_grad():
            tensor.set_value(self.native(value, tensor))
        return tensor

    def _number(self, value: Any) -> Any:
        if isinstance(value, paddle.Tensor):
            array = np.array(self.to_numpy(value))
            return float(array.reshape(-1)[0]) if array.size == 1 else array
        return float(value)


def _state_number(state: Any) -> int:
    return hash(tuple(str(one.__getstate__()) for one in state))


_here = threading.local()


def _listening() -> _Listening | None:
    stack = _here.__dict__.get("stack")
    return stack[-1] if stack else None


@contextmanager
def watching(dice: Dice, to_numpy: ToNumpy, to_native: ToNative) -> Iterator[None]:
    """Dice are per thread; the functions are replaced for the process, as long as anybody listens."""
    stack = _here.__dict__.setdefault("stack", [])
    with replaced(_patches()):
        stack.append(_Listening(dice, to_numpy, to_native))
        try:
            yield
        finally:
            stack.pop()


@functools.cache
def _patches() -> tuple[Patch, ...]:
    """Where the functions stand that draw, or hold numbers against a bound: some modules keep their own reference."""
    wraps = {name: _drawing(see) for name, see in _DRAWS.items()}
    wraps |= {name: _bounding(how) for name, how in _BOUNDS.items()}
    found = places_of(wraps)
    for name, how in (*_METHODS.items(), ("floor", "floor"), ("greater_than", "greater")):
        found.append((paddle.Tensor, name, _bounding(how)))
    return tuple(found)


def _drawing(see: Callable[[_Listening, Op, tuple[Any, ...], dict[str, Any]], Any]) -> Wrap:
    @functools.cache
    def wrap(op: Op) -> Op:
        @functools.wraps(op)
        def drawing(*args: Any, **kwargs: Any) -> Any:
            listening = _listening()
            if listening is None:
                return op(*args, **kwargs)
            return see(listening, op, args, kwargs)

        return drawing

    return wrap


def _bounding(how: Bound) -> Wrap:
    @functools.cache
    def wrap(op: Op) -> Op:
        @functools.wraps(op)
        def bounding(*args: Any, **kwargs: Any) -> Any:
            listening = _listening()
            if listening is None or not listening.dice.curious or not args or not isinstance(args[0], paddle.Tensor):
                return op(*args, **kwargs)
            numbers = np.array(listening.to_numpy(args[0]))
            bound = listening._number(args[1]) if len(args) > 1 else 0.0
            out = op(*args, **kwargs)
            if not isinstance(out, paddle.Tensor):
                return out
            other = listening.dice.bounded(how, numbers, np.asarray(bound), listening.to_numpy(out))
            return out if other is None else listening.write(out, other)

        return bounding

    return wrap


# ------------------------------------------------------------------ which kernel draws what


def _plain(kind: str, *names: str) -> Callable[[_Listening, Op, tuple[Any, ...], dict[str, Any]], Any]:
    """Kernels that return, or write, nothing but what they draw; ``names`` says what their arguments mean."""

    def see(listening: _Listening, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        before = paddle.get_rng_state()
        out = op(*args, **kwargs)
        given = {name: value for name, value in zip(names, args, strict=False) if name}
        low, high = given.get("low"), given.get("high")
        loc: Any = given.get("mean", 0.0)
        scale: Any = given.get("std", 1.0)
        if kind == "uniform":
            loc, scale = low, high - low  # type: ignore[operator]
        elif kind == "exponential":
            scale = 1.0 / given["rate"]
        elif kind == "choice":
            given |= _shares(listening.to_numpy(given.pop("weights")))
        elif "rates" in given:
            given["mean rate"] = _mean(listening.to_numpy(given.pop("rates")) * _times(listening, given))
        value = np.array(listening.to_numpy(out))
        other = listening.told(kind, _name(op), value, before, loc, scale, **given)
        return out if other is None else listening.write(out, other)

    return see


def _times(listening: _Listening, given: dict[str, Any]) -> Any:
    """How often each is tried, where that is given, too."""
    times = given.pop("times", None)
    return 1.0 if times is None else listening.to_numpy(times)


def _shares(weights: Array) -> dict[str, Any]:
    """What is known of a choice by weight: among how many, and which place it falls on average."""
    wide = weights.astype(np.float64)
    with np.errstate(all="ignore"):
        middle = (wide / wide.sum(-1, keepdims=True) * np.arange(wide.shape[-1])).sum(-1)
    return {"high": wide.shape[-1], "mean index": _mean(middle)}


def _mean(numbers: Array) -> float | None:
    """None where that is no number."""
    mean = float(np.mean(numbers, dtype=np.float64)) if numbers.size else math.nan
    return mean if math.isfinite(mean) else None


def _bernoulli(listening: _Listening, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    before = paddle.get_rng_state()
    out = op(*args, **kwargs)
    chances = listening.to_numpy(args[0])
    alike = chances.size > 0 and bool((chances == chances.reshape(-1)[0]).all())
    known = {"keep": float(chances.reshape(-1)[0])} if alike else {"mean chance": _mean(chances)}
    other = listening.told("mask", _name(op), listening.to_numpy(out) != 0, before, **known)
    return out if other is None else listening.write(out, other)


def _dropout(listening: _Listening, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What is kept shows where ones are dropped; then, where nothing takes its place, the kernel runs for good."""
    x, _, p, is_test, mode = args[:5]
    p = float(p)
    if is_test or p in (0.0, 1.0):
        return op(*args, **kwargs)
    in_place = _name(op).endswith("_")
    before = paddle.get_rng_state()
    with paddle.no_grad():
        kept = op(paddle.ones_like(x.detach()), *args[1:], **kwargs)
    other = listening.told("mask", _name(op), listening.to_numpy(kept) != 0, before, keep=1.0 - p)
    if other is None:
        paddle.set_rng_state(before)
        return op(*args, **kwargs)
    factor = listening.native(other / (1.0 - p) if mode == "upscale_in_train" else other.astype(np.float32), x)
    return x.multiply_(factor) if in_place else x * factor


def _rrelu(listening: _Listening, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, low, high, is_test = args[:4]
    if is_test:
        return op(*args, **kwargs)
    before = paddle.get_rng_state()
    out = op(*args, **kwargs)
    given, made = (listening.to_numpy(one).astype(np.float64) for one in (x, out))
    with np.errstate(all="ignore"):
        slopes = np.where(given < 0, made / given, (low + high) / 2)
    other = listening.told("uniform", _name(op), slopes, before, low, high - low, low=low, high=high)
    if other is None:
        return out
    return paddle.where(x < 0, x * listening.native(other, x), x)


def _gumbel_softmax(listening: _Listening, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The noise shows in the soft result of zeros, up to a factor for each row, which a softmax takes out again."""
    x, temperature, hard, axis = args[:4]
    before = paddle.get_rng_state()
    with paddle.no_grad():
        soft = listening.to_numpy(op(paddle.zeros_like(x), 1.0, False, axis)).astype(np.float64)
    noise = np.log(np.maximum(soft, _SMALLEST))
    noise -= noise.max(axis=axis, keepdims=True)
    other = listening.told("exponential", _name(op), np.exp(-noise), before, rate=1.0)
    if other is None:
        paddle.set_rng_state(before)
        return op(*args, **kwargs)
    gumbels = -np.log(np.maximum(other.astype(np.float64), _SMALLEST))
    knows, hands_on = _gradient_of_gumbel(op)
    followed = x
    if not knows and not x.stop_gradient:
        followed = x.clone()  # no PyLayer: paddle 3.3 crashes where backward passes through one twice
        followed.register_hook(lambda gradient: gradient * temperature)
    y = paddle.nn.functional.softmax((followed + listening.native(gumbels, x)) / temperature, axis=axis)
    if not hard:
        return y
    chosen = paddle.nn.functional.one_hot(y.argmax(axis=axis), y.shape[axis]).astype(y.dtype)
    chosen = paddle.moveaxis(chosen, -1, axis)
    return chosen - y.detach() + y if hands_on else paddle.where(paddle.ones_like(chosen, "bool"), chosen, y)


@functools.cache
def _gradient_of_gumbel(op: Op) -> tuple[bool, bool]:
    """Whether the kernel's gradient knows of the temperature, and whether a hard result hands any on: neither in paddle
    3.3, and a model that is given other draws is to have the gradients that it has by itself."""
    before = paddle.get_rng_state()
    start = np.arange(4, dtype=np.float32)[None]
    sizes: list[float] = []
    softs: list[Array] = []
    with paddle.enable_grad():
        for temperature, hard in ((0.5, False), (1.0, True)):
            x = paddle.zeros([1, 4])
            x.stop_gradient = False
            y = op(x, temperature, hard, -1)
            (gradient,) = paddle.grad([y], [x], grad_outputs=[paddle.to_tensor(start)])
            sizes.append(float(np.abs(gradient.numpy()).sum()))
            softs.append(y.numpy())
    paddle.set_rng_state(before)
    without = np.abs(softs[0] * (start - (softs[0] * start).sum())).sum()
    return bool(sizes[0] > 1.5 * without), sizes[1] > 0.0


def _rnn(listening: _Listening, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Dropout between layers, inside the kernel: seen by having it drop ones, replaced by running layer by layer."""
    dropping = layers_of(args)
    if dropping is None:
        return op(*args, **kwargs)
    before = paddle.get_rng_state()
    found: list[Array] = []
    replaced = False
    for mask in masks_of(op, args):
        own = listening.to_numpy(mask) != 0
        other = listening.told("mask", _name(op), own, before, keep=1.0 - dropping)
        replaced = replaced or other is not None
        found.append(own if other is None else other)
    if not replaced:
        paddle.set_rng_state(before)
        return op(*args, **kwargs)
    factors = [listening.native(mask / (1.0 - dropping), paddle.empty(mask.shape, args[0].dtype)) for mask in found]
    return layer_by_layer(op, args, factors)


def _hidden(listening: _Listening, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    before = paddle.get_rng_state()
    out = op(*args, **kwargs)
    if _state_number(before) != _state_number(paddle.get_rng_state()):
        listening.dice.hidden(f"paddle._C_ops.{_name(op)}")
    return out


def _name(op: Op) -> str:
    return getattr(op, "__name__", "op")


_DRAWS: dict[str, Callable[[_Listening, Op, tuple[Any, ...], dict[str, Any]], Any]] = {
    "dropout": _dropout,
    "dropout_": _dropout,
    "bernoulli": _bernoulli,
    "gaussian": _plain("gaussian", "", "mean", "std"),
    "gaussian_inplace_": _plain("gaussian", "", "mean", "std"),
    "uniform": _plain("uniform", "", "", "low", "high"),
    "uniform_inplace_": _plain("uniform", "", "low", "high"),
    "exponential_": _plain("exponential", "", "rate"),
    "randint": _plain("integers", "low", "high"),
    "random_": _plain("integers", "", "low", "high"),
    "randperm": _plain("permutation", "high"),
    "multinomial": _plain("choice", "weights"),
    "poisson": _plain("poisson", "rates"),
    "binomial": _plain("binomial", "times", "rates"),
    "standard_gamma": _plain("gamma", "rates"),
    "dirichlet": _plain("dirichlet", "rates"),
    "truncated_gaussian_random": _plain("truncated gaussian"),
    "rrelu": _rrelu,
    "gumbel_softmax": _gumbel_softmax,
    "rnn": _rnn,
    **dict.fromkeys(
        (
            "flash_attn",
            "flash_attn_qkvpacked",
            "flash_attn_unpadded",
            "flashmask_attention",
            "fused_dropout_add",
            "fused_bias_dropout_residual_layer_norm",
            "class_center_sample",
            "shuffle_batch",
            "random_routing",
        ),
        _hidden,
    ),
}
"""Kernel to how its draw is read."""
