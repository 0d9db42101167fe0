"""Attention: base attends in one way, raw in another: mask, scale, rotary positions, heads, dtype."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from padiff.diagnose.causes.arithmetic import bias, scale_before_bias
from padiff.diagnose.causes.attending import Bench, Way
from padiff.diagnose.causes.layouts import shifted
from padiff.diagnose.causes.linear import transposed_weight
from padiff.diagnose.causes.projections import (
    Projections,
    added,
    head_counts,
    out_projections,
    projections,
    stated_heads,
    tables,
    usual_scales,
)
from padiff.diagnose.causes.ratios import told
from padiff.diagnose.causes.rope import PAIRINGS
from padiff.diagnose.causes.trial import Trial, factor, gap, plain, rms
from padiff.diagnose.scene import Scene
from padiff.records import Array, Cause

_BASES = (1e4, 5e5, 1e6, 1e5, 1e3, 5e4, 2e4, 100.0)
_WAYS = 1000
"""Ways that are tried for base's, for each reading."""
_READINGS = 8
"""Readings of a place as attention."""
_CLOSE = 1e-4
"""Projections that are closer, relative to them, are equal."""
_OF_A_LAYER = (scale_before_bias, bias, transposed_weight, shifted)
"""What may be wrong with one projection by itself."""


def attention(trial: Trial) -> Iterator[Cause]:
    """Base's tensor comes out in one usual way; raw's when one thing is otherwise."""
    if trial.scene.expected.ndim not in (3, 4) or trial.scene.phase != "forward":
        return
    for bench in islice(_benches(trial), _READINGS):
        right = _right(trial, bench)
        if right is None:
            continue
        bound = 0.3 * bench.gap(right)
        yield from _projected_otherwise(trial, bench.parts)
        yield from _turned_round(trial, bench, right, bound)
        for name, wrong in _variants(trial, bench, right):
            made, wanted = bench.attend(wrong), bench.target(bench.found, wrong)
            if made is None or wanted is None or gap(wanted, made) > bound:
                continue
            if wrong.dtype or trial.agree(made, wanted):  # of what is rounded, some falls the other way
                yield Cause(name, f"base attends with {right.told()}; raw with {wrong.told()}", 0.95)
                return
        yield from _exchanged(trial, bench, right, bound)
        yield from _scaled(trial, bench, right, bound)
        yield from _seen_besides(trial, bench, right)
        return


# ------------------------------------------------------------------ what is computed again


def _benches(trial: Trial) -> Iterator[Bench]:
    """Every reading of the place as attention: what its tensor is, and where query, key and value are."""
    expected, found = trial.scene.expected, trial.scene.found
    heads = list(dict.fromkeys([*stated_heads(trial), *head_counts(trial, expected.shape[-1])]))
    for view in _views(expected, heads):
        one, other = (view(tensor) for tensor in (expected, found))
        sample = int(np.argmax([gap(plain(a), plain(b)) for a, b in zip(one, other, strict=True)]))
        for parts in projections(trial, sample, heads):
            if len(parts.key) != len(parts.value):
                continue
            yield from _fitting(trial, parts, plain(one[sample]), plain(other[sample]), (sample, len(one)))


def _views(expected: Array, heads: list[int]) -> Iterator[Any]:
    if expected.ndim == 3:
        yield lambda tensor: tensor
        for count in heads:
            if len(expected) % count == 0 and count > 1:  # samples and heads on one axis
                yield lambda tensor, count=count: tensor.reshape(-1, count, *tensor.shape[1:])
    else:
        yield lambda tensor: tensor
        yield lambda tensor: tensor.transpose(0, 2, 1, 3).reshape(tensor.shape[0], tensor.shape[2], -1)
        yield lambda tensor: tensor.reshape(*tensor.shape[:2], -1)


def _fitting(
    trial: Trial, parts: Projections, expected: Array, found: Array, which: tuple[int, int]
) -> Iterator[Bench]:
    queries, keys = len(parts.query), len(parts.key)
    more = added(trial, *which, queries, keys)
    turns = tables(trial, which[0], keys) if queries == keys else []
    if expected.ndim == 3 and expected.shape[1:] == (queries, keys):
        chances = bool(expected.min() >= 0 and np.abs(expected.sum(axis=-1) - 1).max() < 1e-2)
        yield Bench(parts, expected, found, more, turns, what="weights" if chances else "scores")
    elif expected.ndim == 2 and len(expected) == queries:
        width = parts.value.shape[-1] * max(1, parts.query.shape[-1] // max(1, parts.key.shape[-1]))
        if expected.shape[-1] == width:
            yield Bench(parts, expected, found, more, turns, what="attended")
        for out in out_projections(trial, width):
            yield Bench(parts, expected, found, more, turns, what="projected", out=out)


def _right(trial: Trial, bench: Bench) -> Way | None:
    """The usual way in which base's tensor comes out; first on few rows."""
    few = bench.glance()
    for way in islice(_usual(trial, bench), _WAYS):
        if few.misses(few.expected, way) > 0.3 * few.gap(way) + 1e-3 * rms(few.expected):
            continue
        made, wanted = bench.attend(way), bench.target(bench.expected, way)
        if made is None or wanted is None or gap(wanted, made) > 0.3 * bench.gap(way):
            continue
        if trial.agree(wanted, made):
            return way
    return None


def _usual(trial: Trial, bench: Bench) -> Iterator[Way]:
    """Ways models attend, the most usual first."""
    width = bench.parts.query.shape[-1]
    turns: list[tuple[str, int, float]] = [("", -1, 0.0)]
    turns += [(pairing, table, 0.0) for table in range(len(bench.tables)) for pairing in PAIRINGS]
    bases = dict.fromkeys([*trial.numbers("rope_theta"), 1e4])
    turns += [(pairing, -1, base) for base in bases for pairing in PAIRINGS]
    for count in head_counts(trial, width):
        for scale in usual_scales(trial, width // count):
            for name in ["", *bench.added]:
                for causal in (None, 0):
                    for pairing, table, base in turns:
                        yield Way(count, scale, causal, name, table=table, pairing=pairing, base=base)


# ------------------------------------------------------------------ what may be otherwise


def _projected_otherwise(trial: Trial, parts: Projections) -> Iterator[Cause]:
    """One of raw's projections is not base's, where base's are made of its weights."""
    own = {"query": parts.query, "key": parts.key, "value": parts.value}
    pairs = [(role, own[role], raw) for role, raw in parts.of_raw.items() if role in own]
    wrong = [(role, base, raw) for role, base, raw in pairs if gap(base, raw) > _CLOSE * rms(base)]
    if len(wrong) != 1:
        return
    role, base, raw = wrong[0]
    ratio = factor(raw, base)
    if gap(raw, ratio * base) > _CLOSE * rms(raw):
        found = _of_one_layer(role, base, raw, parts.made_of[role]) if role in parts.made_of else None
        yield found or Cause(role, f"raw's {role} is not base's, the other projections are", 0.8)
    elif abs(ratio + 1) < 1e-4:
        yield Cause("sign", f"raw's {role} is base's with the other sign", 0.93)
    else:
        yield Cause("scale", f"raw's {role} is base's times {told(trial, ratio)}", 0.93)


def _of_one_layer(role: str, base: Array, raw: Array, made_of: tuple[Array, Array, Array]) -> Cause | None:
    """What is wrong with a projection, taken for a linear layer by itself."""
    x, weight, last = made_of
    weights = {"weight": weight, "bias": np.broadcast_to(last, weight.shape[:1])}
    scene = Scene(
        *("forward", "output", "Linear", "Linear", "linear", base, raw),
        given={"": x},
        base_weights=weights,
        raw_weights=weights,
        agrees=lambda one, other: gap(one, other) <= _CLOSE * rms(one),
    )
    causes = (cause for finder in _OF_A_LAYER for cause in finder(Trial(scene)))
    found = next(causes, None)
    return None if found is None else replace(found, evidence=f"raw's {role} of one sample: {found.evidence}")


def _turned_round(trial: Trial, bench: Bench, right: Way, bound: float) -> Iterator[Cause]:
    """Raw multiplies what is attended by its last weight the other way round."""
    if bench.out is None or bench.out[0].shape[0] != bench.out[0].shape[1]:
        return
    other = copy(bench)
    other.out = bench.out[0].T, bench.out[1]
    made, wanted = other.attend(right), bench.target(bench.found, right)
    if made is not None and wanted is not None and gap(wanted, made) <= bound and trial.agree(made, wanted):
        text = "raw's values are what is attended times the output projection's weight the other way round"
        yield Cause("transposed weight", text, 0.95)


def _exchanged(trial: Trial, bench: Bench, right: Way, bound: float) -> Iterator[Cause]:
    """Raw takes one projection for another, or the query's heads in another order than they belong to the keys."""
    parts = bench.parts
    ways = [
        (f"takes for {' and '.join(roles)} what base takes for {' and '.join(roles[::-1])}", _swapped(parts, *roles))
        for roles in (("key", "value"), ("query", "key"), ("query", "value"))
    ]
    fewer = parts.query.shape[-1] // max(1, parts.key.shape[-1])
    if fewer > 1 and right.heads % fewer == 0:
        by_key = parts.query.reshape(len(parts.query), right.heads // fewer, fewer, -1)
        query = by_key.swapaxes(1, 2).reshape(parts.query.shape)
        ways.append(("gives queries to keys by turns, where base gives them in a row", replace(parts, query=query)))
    for words, wrong in ways:
        other = copy(bench)
        other.parts = wrong
        made, wanted = other.attend(right), bench.target(bench.found, right)
        if made is not None and wanted is not None and gap(wanted, made) <= bound and trial.agree(made, wanted):
            yield Cause("head order", f"base attends with {right.told()}; raw {words}", 0.95)
            return


def _swapped(parts: Projections, one: str, other: str) -> Projections:
    first, second = getattr(parts, one), getattr(parts, other)
    return replace(parts, **{one: second, other: first}) if first.shape == second.shape else parts


def _variants(trial: Trial, bench: Bench, right: Way) -> Iterator[tuple[str, Way]]:
    """Ways that differ from one in one thing."""
    yield from _masked_otherwise(bench, right)
    yield from _turned_otherwise(trial, bench, right)
    if bench.parts.key.shape[-1] != bench.parts.query.shape[-1]:
        for repeat in ("all together", "all together, values in turn", "in turn, values all together"):
            yield "head order", replace(right, repeat=repeat)
    yield "softmax axis", replace(right, axis=-2)
    for dtype in ("bfloat16", "float16", "TF32"):
        for narrow in ("scores and weights", "scores", "weights"):
            yield "softmax dtype", replace(right, dtype=dtype, narrow=narrow)
    for split in ("heads last", "heads mixed with positions"):
        yield "head order", replace(right, split=split)
    width = bench.parts.query.shape[-1]
    for heads in (n for n in (right.heads * 2, right.heads // 2, 1) if n and width % n == 0 and n != right.heads):
        yield "head count", replace(right, heads=heads, scale=1 / math.sqrt(width // heads))
        yield "head count", replace(right, heads=heads)


def _masked_otherwise(bench: Bench, right: Way) -> Iterator[tuple[str, Way]]:
    for causal, name in ((1, "mask off by one"), (-1, "mask off by one"), (None, "mask"), (0, "mask")):
        if causal != right.causal and (right.causal is not None or causal == 0):
            yield name, replace(right, causal=causal)
    for other in ["", *bench.added]:
        if other != right.added:
            yield "mask", replace(right, added=other)
            yield "mask", replace(right, added=other, causal=None if right.causal == 0 else 0)
    if right.added or right.causal is not None:
        yield "mask", replace(right, fill="what is left out filled with zero")
        for rolled in (1, -1):
            yield "mask off by one", replace(right, rolled=rolled)


def _turned_otherwise(trial: Trial, bench: Bench, right: Way) -> Iterator[tuple[str, Way]]:
    if not right.pairing:
        for pairing in PAIRINGS:
            yield "extra rope", replace(right, pairing=pairing, table=0)
            yield "extra rope", replace(right, pairing=pairing, base=1e4)
        return
    for pairing in PAIRINGS:
        if pairing != right.pairing:
            yield "rope pairing", replace(right, pairing=pairing)
            yield "rope pairing", replace(right, pairing=pairing, laid=right.pairing)
            yield "rope pairing", replace(right, laid=pairing)
    yield "missing rope", replace(right, pairing="", table=-1, base=0.0)
    for turned in ("query", "key"):
        yield "missing rope", replace(right, turned=turned)
    yield "rope sign", replace(right, sign=-1)
    for table in range(len(bench.tables)):
        if table != right.table:
            yield "rope base", replace(right, table=table, base=0.0)
    for base in (*trial.numbers("rope_theta"), *_BASES):
        if base != right.base:
            yield "rope base", replace(right, base=base)


def _scaled(trial: Trial, bench: Bench, right: Way, bound: float) -> Iterator[Cause]:
    """The factor of the scores, whatever it is, by a search; with what is added to them, or without."""
    for whole in (False, True) if right.added else (False,):

        def way(ratio: float, whole: bool = whole) -> Way:
            return replace(right, whole=ratio) if whole else replace(right, scale=right.scale * ratio)

        ratio = _closest(lambda ratio: bench.misses(bench.found, way(ratio)))
        made, wanted = bench.attend(way(ratio)), bench.target(bench.found, way(ratio))
        if made is not None and wanted is not None and gap(wanted, made) <= bound and trial.agree(made, wanted):
            text = f"raw's scores are base's times {told(trial, round(ratio, 6))}; base attends with {right.told()}"
            yield Cause("scale", text, 0.94)
            return


def _closest(far: Callable[[float], float]) -> float:
    """The ratio between 1/256 and 256 that comes closest: the best of a grid, then between its neighbours."""
    grid = [math.log(2.0) * power / 2 for power in range(-16, 17)]
    place = int(np.argmin([far(math.exp(at)) for at in grid]))
    low, high = grid[max(place - 1, 0)], grid[min(place + 1, len(grid) - 1)]
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(40):
        one, other = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, other) if far(math.exp(one)) < far(math.exp(other)) else (one, high)
    return math.exp((low + high) / 2)


def _seen_besides(trial: Trial, bench: Bench, right: Way) -> Iterator[Cause]:
    """One side also looks, however much, at keys that the other leaves out: the first of them, or any.

    What is attended then goes, for every head and query, some way towards the values there."""
    parted = bench.heads(right)
    if bench.what not in ("attended", "weights") or parted is None:
        return
    value = parted[2]
    keys = value.shape[1]
    more = bench.mask(right, bench.rows, keys)
    base, raw = bench.target(bench.expected, right), bench.target(bench.found, right)
    if more is None or base is None or raw is None:
        return
    kept = np.broadcast_to(more > -1e4, (len(value), len(bench.rows), keys))
    if kept.all() or rms(raw - base) == 0:
        return
    if bench.what == "weights":
        value = np.broadcast_to(np.eye(keys), (len(value), keys, keys))
        base, raw = (t.transpose(1, 0, 2) for t in (base, raw))
    last = keys - 1 - np.argmax(kept[..., ::-1], axis=-1)
    for one, other, step, words in ((base, raw, 1, "one position more"), (raw, base, 0, "one position less")):
        key = np.minimum(last + step, keys - 1)
        to = np.stack([value[head][key[head]] for head in range(len(value))], axis=1) - one
        apart = other - one
        share = (apart * to).sum(axis=-1, keepdims=True) / np.maximum(np.square(to).sum(axis=-1, keepdims=True), 1e-300)
        made = one + np.clip(share, 0, 1) * to
        if to.shape[-1] > 2 and gap(other, made) <= 0.02 * rms(apart) and trial.agree(made, other):
            text = f"raw's queries look at {words} than base's, which attends with {right.told()}"
            yield Cause("mask off by one", text, 0.93)
            return
    if _towards(value, kept, base, raw):
        text = f"raw's queries look also at what base leaves out, which attends with {right.told()}"
        yield Cause("mask", text, 0.9)


def _towards(value: Array, kept: Array, base: Array, raw: Array) -> bool:
    """Whether raw's goes from base's towards values at keys that are left out, where these are few enough to tell."""
    told = 0
    bound = 1e-4 * rms(base)
    for row in range(kept.shape[1]):
        for head in range(kept.shape[0]):
            out = np.flatnonzero(~kept[head, row])
            apart = raw[row, head] - base[row, head]
            if not len(out):
                if rms(apart) > bound:
                    return False
                continue
            if len(out) > len(apart) // 3 or rms(apart) <= bound:
                continue
            columns = (value[head][out] - base[row, head]).T
            shares, *_ = np.linalg.lstsq(columns, apart, rcond=None)
            if rms(apart - columns @ shares) > 0.02 * rms(apart) or shares.min() < -1e-3 or shares.sum() > 1.001:
                return False
            told += 1
    return told >= 3
