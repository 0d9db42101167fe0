"""Numbers themselves: where NaN comes from, what a narrower type loses, what an integer cuts off."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np

from padiff.diagnose.causes.trial import Trial, gap, plain, rms
from padiff.records import Array, Cause

_LARGEST = {"float16": 65504.0, "float32": float(np.finfo(np.float32).max)}


def nan_origin(trial: Trial) -> Iterator[Cause]:
    """What is not finite on one side, and what it may have come from."""
    scene = trial.scene
    expected, found = trial.expected, trial.found
    if not trial.same_shape or trial.finite:
        return
    base_bad, raw_bad = ~np.isfinite(expected), ~np.isfinite(found)
    if np.array_equal(base_bad, raw_bad) and not np.any(np.isnan(expected) != np.isnan(found)):
        return
    if np.all(np.isneginf(expected[base_bad])) and np.all(np.isneginf(found[raw_bad])):
        return  # masks
    side = "raw" if raw_bad.sum() >= base_bad.sum() else "base"
    bad = raw_bad if side == "raw" else base_bad
    what = "NaN" if np.isnan(found if side == "raw" else expected).any() else "Inf"
    own = scene.raw_weights if side == "raw" else scene.base_weights
    where = tuple(int(place) for place in np.argwhere(bad)[0])
    count = f"{int(bad.sum())} of {bad.size} values of {side} are {what} or Inf, the first at {where}"
    for name, weight in own.items():
        if weight.dtype.kind in "fV" and not np.isfinite(plain(weight)).all():
            yield Cause("nan", f"{count}; {side}'s {name} holds values that are not finite", 0.99)
            return
    for name, tensor in trial.at_hand.items():
        if np.any(np.isnan(tensor) | np.isposinf(tensor)):  # -inf is what masks are made of
            yield Cause("nan", f"{count}; {name} holds values that are not finite, which the other side survives", 0.98)
            return
    other = expected if side == "raw" else found
    biggest = float(np.abs(other[bad & np.isfinite(other)]).max(initial=0.0))
    if biggest > _LARGEST["float16"] and what == "Inf":
        text = f"{count}; the other side has values up to {biggest:.3g} there, more than float16 holds"
        yield Cause("overflow", text, 0.98)
        return
    yield Cause("nan", f"{count}; inputs and weights are finite, so it arises here", 0.97)


def nan_from_mask(trial: Trial) -> Iterator[Cause]:
    """What is -inf in a mask at hand turns into NaN when it is multiplied by zero, or when a row has nothing else."""
    if trial.finite or not trial.same_shape or np.isnan(trial.expected).any() or not np.isnan(trial.found).any():
        return
    for name, tensor in trial.at_hand.items():
        if tensor.ndim < 2 or not np.any(np.isneginf(tensor)) or np.any(tensor[np.isfinite(tensor)] != 0):
            continue
        text = f"{name} is a mask of 0 and -inf: times zero, or in a row that keeps nothing, -inf gives NaN"
        yield Cause("mask", text, 0.6, tested=False)
        return


def integers(trial: Trial) -> Iterator[Cause]:
    """Raw's values are base's without their fraction, or the other way round; or one more or less everywhere."""
    expected, found = trial.expected, trial.found
    if trial.scene.expected.dtype.kind in "iu" and trial.scene.found.dtype.kind in "iu":
        apart = found - expected
        step = float(apart.flat[0]) if apart.size else 0.0
        if step and np.all(apart == step) and apart.size > 1:
            yield Cause("off by one", f"every index of raw is base's plus {step:g}", 0.93)
            return
        if not np.any(found) and np.any(expected):
            yield Cause("zeroed", f"all {found.size} integers of raw are zero", 0.9)
            return
        steps = apart[apart != 0]
        if steps.size and np.all(np.abs(steps) == 1) and np.all(steps == steps[0]):
            text = f"{steps.size} of {apart.size} integers of raw are base's plus {steps[0]:g}: another rounding"
            yield Cause("integer rounding", text, 0.85)
        return
    if not np.any(expected != np.trunc(expected)) and not np.any(found != np.trunc(found)):
        return
    for words, function in (("cut to integers", np.trunc), ("rounded down", np.floor), ("rounded", np.rint)):
        if not np.any(function(expected)):
            continue
        if trial.models(expected, function(expected)):
            yield Cause("integer", f"raw's values are base's {words}", 0.93)
            return
        if trial.models(function(found), found):
            yield Cause("integer", f"base's values are raw's {words}", 0.93)
            return


NARROW = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16)}


def rounded(array: Array, name: str) -> Array:
    """In double, as far as a narrower type holds it; TF32 keeps ten bits of the fraction."""
    if name == "TF32":
        bits = array.astype(np.float32).view(np.uint32)
        kept = (bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
        return plain(kept.view(np.float32))
    with np.errstate(all="ignore"):
        return plain(array.astype(NARROW[name]))


def precision(trial: Trial) -> Iterator[Cause]:
    """One side's values are all ones that a narrower type can hold, and the other's rounded to it come close."""
    if trial.scene.expected.dtype.itemsize < 4 or trial.scene.found.dtype.itemsize < 4:
        return
    if trial.scene.expected.dtype.kind != "f" or trial.scene.found.dtype.kind != "f":
        return
    for name in NARROW:
        held = {side: _held(few, name) for side, few in (("base", trial.few_expected), ("raw", trial.few_found))}
        if held["base"] == held["raw"]:
            continue
        side = "raw" if held["raw"] else "base"
        narrow, wide = (trial.found, trial.expected) if side == "raw" else (trial.expected, trial.found)
        if gap(rounded(narrow, name), narrow) > 1e-9 * rms(narrow):
            continue
        bound = float(ml_dtypes.finfo(NARROW[name]).eps)
        if gap(wide, narrow) > 4 * bound * rms(wide):
            continue
        exact = gap(rounded(wide, name), narrow) <= 0.3 * trial.gap
        text = f"all of {side}'s values are {name} numbers; they are "
        text += f"the other side's rounded to {name}" if exact else f"the other side's as far as {name} can tell"
        yield Cause("precision", text, 0.93 if exact else 0.85)
        return


def _held(few: Array, name: str) -> bool:
    """Whether a type can hold all of it; whole numbers and the like fit anything and say nothing."""
    telling = few[(few != 0) & np.isfinite(few)]
    return telling.size >= 8 and bool(np.all(rounded(telling, name) == telling))
