"""Factors, offsets, biases, residuals and operands: raw's tensor is base's but for one step of arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import permutations

import numpy as np

from padiff.diagnose.causes.ratios import readings, told
from padiff.diagnose.causes.trial import Trial, factor, gap, plain, rms
from padiff.records import Array, Cause

LEFT_OUT = -1e3
"""What is added to scores that are to be left out is less."""


def scale(trial: Trial) -> Iterator[Cause]:
    """Raw's tensor is base's times one number."""
    if not trial.rich:
        return
    if abs(factor(trial.few_expected, trial.few_found)) < 1e-6:
        return
    back = factor(trial.expected, trial.found)
    if not (math.isfinite(back) and back != 0 and trial.repairs(trial.found * back)) or trial.hollow:
        return
    ratio = 1 / back
    where = "gradient" if trial.scene.phase in ("backward", "gradient") else "output"
    if trial.near(ratio, -1.0):
        yield Cause("sign", "raw's values are base's with the other sign", 0.92)
        return
    known = bool(readings(trial, ratio))
    dropped = [p for p in trial.numbers("p", "dropout") if 0 < p < 1 and trial.near(ratio, 1 - p, 1 / (1 - p))]
    text = f"every {where} of raw is base's times {told(trial, ratio)}"
    if dropped and trial.scene.phase == "forward":
        yield Cause("dropout", f"{text}: dropout scales where it should not, or not where it should", 0.93)
    elif abs(ratio - 1) < 1e-4:
        yield Cause("scale", text, 0.35)  # an eps, an n - 1 in place of n, look the same from here
    else:
        yield Cause("scale", text, 0.9 if known else 0.75)


def scale_before_bias(trial: Trial) -> Iterator[Cause]:
    """Raw's tensor, less a bias that is added last, is base's times one number."""
    if not trial.rich or trial.expected.ndim < 2 or trial.scene.phase != "forward":
        return
    inner = {name: plain(w) for name, w in trial.scene.inner_weights.items() if w.dtype.kind in "fV"}
    for name, weight in (trial.base_weights | trial.raw_weights | inner).items():
        if weight.ndim != 1 or not name.endswith("bias") or weight.size not in trial.expected.shape[1:]:
            continue
        axis = trial.expected.ndim - 1 - trial.expected.shape[::-1].index(weight.size)
        vector = weight.reshape([-1 if place == axis else 1 for place in range(trial.expected.ndim)])
        base, raw = trial.expected - vector, trial.found - vector
        back = factor(base, raw)
        if not math.isfinite(back) or abs(back) < 1e-6 or rms(weight) == 0 or not trial.repairs(raw * back + vector):
            continue
        if trial.near(back, -1.0):
            yield Cause("sign", f"what raw adds {name} to is base's with the other sign", 0.9)
        else:
            yield Cause("scale", f"what raw adds {name} to is base's times {told(trial, 1 / back)}", 0.88)
        return


def bias(trial: Trial) -> Iterator[Cause]:
    """The difference is the same everywhere, or the same along all axes but one."""
    apart = trial.expected - trial.found
    if not trial.rich:
        return
    level = float(apart.mean())
    if trial.repairs(trial.found + level):
        yield Cause("offset", f"every value of base is raw's plus {told(trial, level)}", 0.85)
        return
    for axis in range(apart.ndim):
        others = tuple(other for other in range(apart.ndim) if other != axis)
        if not others or apart.size < 4 * apart.shape[axis]:
            continue
        vector = apart.mean(axis=others)
        shape = [1] * apart.ndim
        shape[axis] = -1
        if trial.repairs(trial.found + vector.reshape(shape)):
            yield _named_bias(trial, vector, axis)
            return


def _named_bias(trial: Trial, vector: Array, axis: int) -> Cause:
    size = trial.within(1e-3) * rms(vector)
    for name, weight in trial.base_weights.items():
        if weight.size == vector.size and gap(weight.ravel(), vector) <= size:
            return Cause("missing bias", f"raw's values plus base's {name} agree with base's", 0.95)
    for name, weight in trial.raw_weights.items():
        if weight.size == vector.size and gap(-weight.ravel(), vector) <= size:
            return Cause("extra bias", f"raw's values less raw's {name} agree with base's", 0.95)
    for name, weight in trial.raw_weights.items():
        own = trial.base_weights.get(name, weight)
        if own.size == weight.size == vector.size and gap(own.ravel() - weight.ravel(), vector) <= size:
            return Cause("weights differ", f"raw's {name} is not base's; with base's the values agree", 0.95)
    for name, tensor in trial.at_hand.items():
        if tensor.size == vector.size and gap(tensor.ravel(), vector) <= size:
            return Cause("missing bias", f"raw's values plus {name} agree with base's", 0.9)
    text = f"the difference is one vector of {vector.size} values along axis {axis}, the same everywhere else"
    return Cause("bias", text, 0.6)


def channel_scale(trial: Trial) -> Iterator[Cause]:
    """Raw's tensor is base's times one vector: the weight of a norm or a layer scale, missing or twice."""
    if not trial.rich or trial.expected.ndim < 2:
        return
    weights = [(f"base's {name}", w) for name, w in trial.base_weights.items()]
    for name, weight in weights:
        for axis, length in enumerate(trial.expected.shape):
            if weight.size != length or length < 2:
                continue
            shape = [1] * trial.expected.ndim
            shape[axis] = -1
            vector = weight.reshape(shape)
            if float(weight.std()) <= 1e-6 * rms(weight):
                continue
            for by, words in ((vector, name), (1 + vector, f"1 + {name}")):  # some norms keep their weights about zero
                if trial.repairs(trial.found * by):
                    yield Cause("missing weight", f"raw's values times {words} agree with base's", 0.94)
                    return
                if not np.any(by == 0) and trial.repairs(trial.found / by):
                    yield Cause("extra weight", f"raw's values divided by {words} agree with base's", 0.94)
                    return


def residual(trial: Trial) -> Iterator[Cause]:
    """The difference is a tensor at hand, times one number."""
    apart = trial.expected - trial.found
    few = trial.few_expected - trial.few_found
    for name, tensor in (trial.like | trial.spread).items():
        if not np.any(tensor):
            continue
        few_tensor = trial.few(tensor)
        share = factor(few, few_tensor)
        if not math.isfinite(share) or gap(few, share * few_tensor) > 0.3 * rms(few) or not trial.rich:
            continue
        share = factor(apart, tensor)
        if trial.near(share, 1.0, -1.0):
            share = float(round(share))
        if not trial.repairs(trial.found + share * tensor):
            continue
        yield _named_residual(trial, name, share, tensor)
        return


def _named_residual(trial: Trial, name: str, share: float, tensor: Array) -> Cause:
    noun = "residual" if name not in trial.base_weights else name
    if share in (1.0, -1.0) and leaves_out(tensor):
        side = "base" if share == 1.0 else "raw"
        return Cause("mask", f"{side} adds {_owned(trial, name)}, a mask, and the other side does not", 0.95)
    if share == 1.0 and not np.any(trial.found):
        return Cause("operands", f"base has {_owned(trial, name)} there, raw nothing but zeros", 0.94)
    if share == 1.0:
        return Cause(f"missing {noun}", f"raw's values plus {_owned(trial, name)} agree with base's", 0.94)
    if share == -1.0:
        return Cause(f"extra {noun}", f"raw's values less {_owned(trial, name)} agree with base's", 0.94)
    known = 0.88 if readings(trial, share) else 0.7
    text = f"raw's values plus {told(trial, share)} times {_owned(trial, name)} agree with base's"
    return Cause("residual scale" if noun == "residual" else f"scale of {noun}", text, known)


def leaves_out(tensor: Array) -> bool:
    """Whether it leaves out what it is added to in some places, and nothing elsewhere."""
    return bool(np.any(tensor == 0) and np.any(tensor < 0) and np.all((tensor == 0) | (tensor < LEFT_OUT)))


def _owned(trial: Trial, name: str) -> str:
    return f"base's {name}" if name in trial.base_weights else name


def another_residual(trial: Trial) -> Iterator[Cause]:
    """One tensor at hand was added in place of another."""
    few = trial.few_expected - trial.few_found
    like = {name: (tensor, trial.few(tensor)) for name, tensor in (trial.like | trial.spread).items()}
    for (right, (base, few_base)), (wrong, (raw, few_raw)) in permutations(like.items(), 2):
        if gap(few, few_base - few_raw) <= 0.3 * rms(few) and trial.repairs(trial.found + base - raw):
            if trial.repairs(trial.found + base):
                continue  # what raw should add for it says nothing
            left_out = _left_out(trial, right, wrong, raw)
            if left_out is None and gap(trial.found, raw) <= 1e-6 * rms(raw):
                continue  # that raw's tensor is itself says nothing
            steps = _steps(base, raw)
            if left_out is None and steps is not None:
                text = f"{wrong}, which raw adds, is {right}, which base adds, {steps[0]:+d} along axis {steps[1]}"
                yield Cause("off by one", text, 0.94)
                return
            yield left_out or Cause("misplaced residual", f"raw adds {wrong} where base adds {right}", 0.93)
            return


def _steps(base: Array, raw: Array) -> tuple[int, int] | None:
    """By how many places, along which axis, one tensor is another moved on; whatever stands where it began."""
    for axis in range(base.ndim):
        for step in (1, -1):
            if base.shape[axis] < 4:
                continue
            one, other = np.moveaxis(base, axis, 0), np.moveaxis(raw, axis, 0)
            here, there = (one[:-1], other[1:]) if step > 0 else (one[1:], other[:-1])
            if rms(here) > 0 and gap(here, there) <= 1e-6 * rms(here) < 1e-3 * gap(one, other):
                return step, axis
    return None


def _left_out(trial: Trial, right: str, wrong: str, raw: Array) -> Cause | None:
    """Where base takes what a module returned, raw takes what that module was given."""
    for path, returned in trial.scene.around.items():
        given = trial.scene.handed.get(path)
        if given is None or given.size != raw.size or right != f"what {path} returned" or returned.size != raw.size:
            continue
        own = trial.like.get(f"what {path} was given")
        if own is not None and gap(own, raw) <= 1e-6 * rms(raw):
            text = f"raw takes {wrong} where base takes what {path} makes of it: {path} is left out"
            return Cause("left out", text, 0.94)
    return None


def branch_scale(trial: Trial) -> Iterator[Cause]:
    """A sum of which one part is at hand: the other part is scaled in raw."""
    if not trial.rich:
        return
    for name, tensor in (trial.like | trial.spread).items():
        part = trial.few(tensor)
        base, raw = trial.few_expected - part, trial.few_found - part
        back = factor(base, raw)
        if not math.isfinite(back) or abs(back) < 1e-6 or gap(base, back * raw) > 0.3 * gap(base, raw):
            continue
        if rms(base) < 1e-3 * rms(trial.few_expected):
            continue
        back = factor(trial.expected - tensor, trial.found - tensor)
        if trial.repairs(tensor + back * (trial.found - tensor)):
            known = readings(trial, 1 / back)
            text = f"what is added to {_owned(trial, name)} is base's times {told(trial, 1 / back)}"
            yield Cause("scale", text, 0.87 if known else 0.7)
            return


_OPERATIONS: tuple[tuple[str, Callable[[Array, Array], Array]], ...] = (
    ("the sum of {} and {}", np.add),
    ("{} less {}", np.subtract),
    ("the product of {} and {}", np.multiply),
    ("{} divided by {}", np.divide),
    ("the larger of {} and {}", np.maximum),
    ("the smaller of {} and {}", np.minimum),
    ("the mean of {} and {}", lambda one, other: (one + other) / 2),
)


def operands(trial: Trial) -> Iterator[Cause]:
    """Base combines two tensors at hand in one way and raw two in another; or raw takes one of them for the other."""
    like = {name: (tensor, trial.few(tensor)) for name, tensor in (trial.like | trial.spread).items()}
    base: list[tuple[str, Array]] = []
    raw: list[tuple[str, Array]] = []
    with np.errstate(all="ignore"):
        for name, (tensor, few) in like.items():
            if trial.may_be_base(few):
                base.append((name, tensor))
            if trial.may_be_raw(few):
                raw.append((name, tensor))
        for (one, (a, few_a)), (other, (b, few_b)) in permutations(like.items(), 2):
            for words, operation in _OPERATIONS:
                few = operation(few_a, few_b)
                if trial.may_be_base(few):
                    base.append((words.format(one, other), operation(a, b)))
                if trial.may_be_raw(few):
                    raw.append((words.format(one, other), operation(a, b)))
            if len(base) > 8 or len(raw) > 8:
                break
    for told_base, right in base[:4]:
        for told_raw, wrong in raw[:4]:
            if trial.models(right, wrong):
                yield Cause("operands", f"base takes {told_base}, raw {told_raw}", 0.9)
                return
