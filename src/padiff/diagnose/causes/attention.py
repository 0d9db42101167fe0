"""Masks, and attention computed again from query, key and value."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np

from padiff.diagnose.causes.functions import softmax
from padiff.diagnose.causes.numerics import rounded
from padiff.diagnose.causes.rope import PAIRINGS, pairs, unpaired
from padiff.diagnose.causes.trial import Trial, gap, plain
from padiff.records import Array, Cause

# ------------------------------------------------------------------ masks by themselves


def mask(trial: Trial) -> Iterator[Cause]:
    """Two tensors that keep and leave out: the same pattern a step further, turned round, or with another fill."""
    if not trial.same_shape or trial.expected.ndim < 2 or trial.expected.shape[-1] < 2:
        return
    kept = [_kept(t) for t in (trial.expected, trial.found)]
    if kept[0] is None or kept[1] is None:
        return
    base, raw = kept[0], kept[1]
    if np.array_equal(base, raw):
        return
    if np.array_equal(base, ~raw):
        yield Cause("mask inverted", "raw leaves out what base keeps, and keeps what base leaves out", 0.95)
        return
    for axis in (-1, -2):
        for step in (1, -1):
            if _moved(base, raw, axis, step):
                more = "more" if raw.sum() > base.sum() else "less"
                text = f"raw's mask is base's {abs(step)} step {'later' if step > 0 else 'earlier'} along axis {axis}"
                yield Cause("mask off by one", f"{text}: it keeps {more}", 0.95)
                return
    if raw.all() or base.all():
        side = "raw" if raw.all() else "base"
        yield Cause("mask", f"{side} keeps everything, the other side leaves {int((~(base & raw)).sum())} out", 0.92)
        return
    if np.array_equal(np.swapaxes(base, -1, -2), raw):
        yield Cause("mask", "raw's mask is base's with rows and columns changed", 0.93)
        return
    yield Cause("mask", f"the masks keep different elements: {int((base != raw).sum())} of {base.size}", 0.8)


def _kept(tensor: Array) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]] | None:
    """What a mask keeps; also of attention's weights, which are zero where nothing is kept."""
    lowest = tensor.min()
    if np.isneginf(lowest) or lowest <= -1e4:
        kept = tensor > -1e4 if not np.isneginf(lowest) else ~np.isneginf(tensor)
        return kept if np.abs(tensor[kept]).max(initial=0.0) < 1e4 else None
    values = np.unique(tensor[..., :64, :64])
    if len(values) == 2 and set(values.tolist()) <= {0.0, 1.0} and np.isin(tensor, values).all():
        return np.asarray(tensor == 1)
    if lowest == 0 and np.abs(tensor.sum(axis=-1) - 1).max() < 1e-3:  # weights of attention
        zero = tensor == 0
        return ~zero if zero.mean() > 0.01 else None
    return None


def _moved(base: Array, raw: Array, axis: int, step: int) -> bool:
    length = base.shape[axis]
    if length < 3:
        return False
    source = np.arange(max(0, -step), min(length, length - step))
    one, other = np.take(base, source, axis), np.take(raw, source + step, axis)
    return bool(np.array_equal(one, other) and not one.all() and one.any())


# ------------------------------------------------------------------ attention computed again

_ROLES = {
    "query": re.compile(r"(^|[._])(q|query|wq|to_q|q_proj|q_lin|query_proj|q_proj_layer|queries)$"),
    "key": re.compile(r"(^|[._])(k|key|wk|to_k|k_proj|k_lin|key_proj|keys)$"),
    "value": re.compile(r"(^|[._])(v|value|wv|to_v|v_proj|v_lin|value_proj|values)$"),
    "fused": re.compile(r"(^|[._])(qkv|wqkv|qkv_proj|c_attn|query_key_value|in_proj|to_qkv|attn_qkv)$", re.I),
}
_ROWS = 24
_MOST_HEADS = 4


@dataclass(frozen=True)
class _Way:
    """One way to attend."""

    heads: int
    scale: float
    causal: int | None = None
    """How far a position may look: 0 up to itself, 1 one further, -1 one less; None: everywhere."""
    pairing: str = ""
    turned: str = "query and key"
    base: float = 0.0
    """Of rotary positions; 0: from the tables at hand."""
    repeat: str = "in turn"
    dtype: str = ""
    mask: str = ""
    sign: int = 1
    split: str = "heads first"

    def told(self) -> str:
        looks = {None: "everywhere", 0: "back to itself", 1: "one position too far", -1: "back, not to itself"}
        parts = [f"{self.heads} heads", f"scale {self.scale:.6g}", f"looking {looks[self.causal]}"]
        parts += [f"masked by {self.mask}"] if self.mask else []
        way = "" if self.sign > 0 else " backwards"
        parts += [f"{self.turned} turned by {self.pairing}{way}"] if self.pairing else []
        parts += [f"rotary base {self.base:g}"] if self.base else []
        parts += [f"keys repeated {self.repeat}"] if self.repeat != "in turn" else []
        parts += [f"scores in {self.dtype}"] if self.dtype else []
        parts += [self.split] if self.split != "heads first" else []
        return ", ".join(parts)


class _Bench:
    """Query, key and value of one sample, and the rows that are computed again."""

    def __init__(self, trial: Trial, query: Array, key: Array, value: Array) -> None:
        self.trial = trial
        expected, found = trial.expected, trial.found
        if expected.ndim == 4:
            expected, found = (t.transpose(0, 2, 1, 3).reshape(t.shape[0], t.shape[2], -1) for t in (expected, found))
        apart = [gap(e, f) for e, f in zip(expected, found, strict=True)]
        self.sample = int(np.argmax(apart))
        length = expected.shape[1]
        by_row = np.square(expected[self.sample] - found[self.sample]).sum(axis=-1)
        worst = np.argsort(by_row)[::-1][: _ROWS // 2]
        self.rows = np.unique(np.concatenate([np.linspace(0, length - 1, min(_ROWS, length)).astype(int), worst]))
        self.expected, self.found = expected[self.sample][self.rows], found[self.sample][self.rows]
        self.gap = gap(self.expected, self.found)
        self.query, self.key, self.value = (t[min(self.sample, len(t) - 1)] for t in (query, key, value))
        self.tables = _tables(trial, self.sample)

    def fits(self, target: Array, way: _Way) -> bool:
        made = self.attend(way)
        return made is not None and gap(target, made) <= 0.3 * self.gap

    def attend(self, way: _Way) -> Array | None:
        width = self.query.shape[-1]
        if width % way.heads:
            return None
        each = width // way.heads
        query, key, value = (self._apart(t, each, way) for t in (self.query, self.key, self.value))
        if any(t is None for t in (query, key, value)):
            return None
        assert query is not None and key is not None and value is not None
        if way.pairing:
            turned = self._turned(query, way) if "query" in way.turned else query
            key_turned = self._turned(key, way) if "key" in way.turned else key
            if turned is None or key_turned is None:
                return None
            query, key = turned, key_turned
        query = query[:, self.rows]
        scores = np.einsum("hqd,hkd->hqk", query, key, optimize=True) * way.scale
        if way.causal is not None:
            offset = key.shape[1] - len(self.query)
            ahead = np.arange(key.shape[1])[None] > self.rows[:, None] + way.causal + offset
            scores = np.where(ahead, -1e30, scores)
        if way.mask:
            scores = scores + self._mask(way)
        if way.dtype:
            scores = rounded(scores, way.dtype)
        out = np.einsum("hqk,hkd->qhd", softmax(scores), value, optimize=True)
        return np.asarray(out.reshape(len(self.rows), -1))

    def _apart(self, tensor: Array, each: int, way: _Way) -> Array | None:
        """Heads first; keys and values repeated where there are fewer of them."""
        if tensor.shape[-1] % each:
            return None
        count = tensor.shape[-1] // each
        if way.split == "heads first":
            parted = tensor.reshape(len(tensor), count, each).transpose(1, 0, 2)
        elif way.split == "heads last":
            parted = tensor.reshape(len(tensor), each, count).transpose(2, 0, 1)
        else:
            parted = tensor.reshape(count, len(tensor), each)
        if count == way.heads:
            return np.asarray(parted)
        if way.heads % count:
            return None
        times = way.heads // count
        return np.asarray(np.repeat(parted, times, 0) if way.repeat == "in turn" else np.tile(parted, (times, 1, 1)))

    def _turned(self, tensor: Array, way: _Way) -> Array | None:
        length, each = tensor.shape[1:]
        if each % 2:
            return None
        if way.base:
            speeds = way.base ** (-np.arange(each // 2) / (each // 2))
            angles = np.arange(length)[:, None] * speeds
            turn = np.exp(1j * way.sign * angles)
        elif self.tables is not None and self.tables[0].shape == (length, each // 2):
            turn = self.tables[0] + 1j * way.sign * self.tables[1]
        else:
            return None
        return unpaired(pairs(tensor, way.pairing) * turn, way.pairing)

    def _mask(self, way: _Way) -> Array:
        tensor = self.masks()[way.mask]
        return tensor[:, self.rows] if tensor.shape[1] > 1 else tensor

    def masks(self) -> dict[str, Array]:
        """Masks at hand as what is added to the scores, by head, row and column."""
        length = len(self.key)
        found: dict[str, Array] = {}
        for name, tensor in self.trial.scene.given.items():
            if not 1 < tensor.ndim <= 4 or tensor.shape[-1] != length or "mask" not in name:
                continue
            one = plain(tensor)
            if one.ndim == 2 and one.shape[0] != length:
                one = one[min(self.sample, len(one) - 1)][None, None]
            elif one.ndim == 2:
                one = one[None]
            else:
                one = one[min(self.sample, len(one) - 1)]
                one = one if one.ndim == 3 else one[None]
            if tensor.dtype.kind in "biu" or set(np.unique(one).tolist()) <= {0.0, 1.0}:
                found[name] = np.where(one > 0, 0.0, -1e30)
                found[f"{name} turned round"] = np.where(one > 0, -1e30, 0.0)
            else:
                found[name] = np.maximum(one, -1e30)
        return found


def _tables(trial: Trial, sample: int) -> tuple[Array, Array] | None:
    """Cosines and sines at hand, one column for each pair."""
    found: list[Array] = []
    for tensor in trial.at_hand.values():
        if tensor.ndim < 2 or tensor.shape[-1] % 2 or np.abs(tensor).max() > 1 + 1e-5:
            continue
        table = tensor.reshape(-1, *tensor.shape[-2:])
        table = table[min(sample, len(table) - 1)]
        half = table.shape[-1] // 2
        if np.abs(table[:, :half] - table[:, half:]).max() < 1e-6:
            found.append(table[:, :half])
        elif np.abs(table[:, ::2] - table[:, 1::2]).max() < 1e-6:
            found.append(table[:, ::2])
    for cos, sin in permutations(found, 2):
        circle = cos.shape == sin.shape and np.abs(cos**2 + sin**2 - 1).max() < 1e-4
        if circle and np.abs(cos[0]).mean() > np.abs(sin[0]).mean():
            return cos, sin
    return None


def attention(trial: Trial) -> Iterator[Cause]:
    """Base attends in one way, raw in another: mask, scale, rotary positions, heads, dtype."""
    if trial.expected.ndim not in (3, 4) or trial.scene.phase != "forward":
        return
    found = _query_key_value(trial)
    if found is None:
        return
    bench = _Bench(trial, *found)
    if not (bench.gap > 0) or bench.expected.shape[-1] != bench.value.shape[-1] * _grouping(bench):
        return
    right = next((way for way in _usual(bench) if bench.fits(bench.expected, way)), None)
    if right is None:
        return
    made = bench.attend(right)
    if made is None or not trial.agree(bench.expected, made):
        return
    for name, wrong in _variants(bench, right):
        made = bench.attend(wrong)
        if made is not None and gap(bench.found, made) <= 0.3 * bench.gap and trial.agree(made, bench.found):
            yield Cause(name, f"base attends with {right.told()}; raw with {wrong.told()}", 0.94)
            return


def _grouping(bench: _Bench) -> int:
    return int(max(1, bench.query.shape[-1] // max(1, bench.value.shape[-1])))


def _query_key_value(trial: Trial) -> tuple[Array, Array, Array] | None:
    named: dict[str, Array] = {}
    scene = trial.scene
    for source in (scene.around, scene.given):
        for path, tensor in source.items():
            for role, pattern in _ROLES.items():
                if pattern.search(path) and tensor.ndim in (3, 4) and role not in named:
                    named[role] = _together(plain(trial.cut(tensor)))
    length = trial.expected.shape[1] if trial.expected.ndim == 3 else trial.expected.shape[2]
    if {"query", "key", "value"} <= named.keys():
        query, key, value = named["query"], named["key"], named["value"]
    elif "fused" in named and named["fused"].shape[-1] % 3 == 0:
        query, key, value = np.split(named["fused"], 3, axis=-1)
    else:
        return None
    return (query, key, value) if query.shape[1] == length and key.shape[1] == value.shape[1] else None


def _together(tensor: Array) -> Array:
    """Heads side by side."""
    return tensor if tensor.ndim == 3 else tensor.transpose(0, 2, 1, 3).reshape(tensor.shape[0], tensor.shape[2], -1)


def _usual(bench: _Bench) -> Iterator[_Way]:
    """Ways models attend, the most usual first."""
    width = bench.query.shape[-1]
    heads = [int(n) for n in bench.trial.numbers("num_heads")]
    heads += [width // int(d) for d in bench.trial.numbers("head_dim") if d and width % int(d) == 0]
    heads += [width // d for d in (64, 128, 32, 16, 8, 4, 80, 96) if width % d == 0] if not heads else []
    turns: list[tuple[str, float]] = [("", 0.0)]
    turns += [(pairing, 0.0) for pairing in PAIRINGS] if bench.tables is not None else []
    bases = [*bench.trial.numbers("rope_theta"), 1e4] if bench.tables is None else []
    turns += [(pairing, base) for base in dict.fromkeys(bases) for pairing in PAIRINGS]
    for count in dict.fromkeys(n for n in heads if n > 0 and width % n == 0):
        each = width // count
        for scale in dict.fromkeys([1 / math.sqrt(each), *bench.trial.numbers("scale"), 1.0]):
            for name in ["", *bench.masks()]:
                for causal in (0, None):
                    for pairing, base in turns:
                        yield _Way(count, scale, causal, pairing, base=base, mask=name)


def _variants(bench: _Bench, right: _Way) -> Iterator[tuple[str, _Way]]:
    """Ways that differ from one in one thing."""
    each = bench.query.shape[-1] // right.heads
    for causal, name in ((1, "mask off by one"), (-1, "mask off by one"), (None, "mask"), (0, "mask")):
        if causal != right.causal:
            yield name, replace(right, causal=causal)
    for other in ["", *bench.masks()]:
        if other != right.mask:
            yield "mask", replace(right, mask=other)
            yield "mask", replace(right, mask=other, causal=None if right.causal == 0 else 0)
    scales = [1.0, 1 / math.sqrt(each), 1 / each, 1 / math.sqrt(bench.query.shape[-1]), math.sqrt(each), each**-0.25]
    scales += [1 / math.sqrt(right.heads), *bench.trial.numbers("scale"), 2 * right.scale, right.scale / 2]
    scales += [right.scale**2]
    for scale in dict.fromkeys(scales):
        if abs(scale - right.scale) > 1e-9:
            yield "scale", replace(right, scale=scale)
    if right.pairing:
        for pairing in PAIRINGS:
            if pairing != right.pairing:
                yield "rope pairing", replace(right, pairing=pairing)
        yield "missing rope", replace(right, pairing="", base=0.0)
        for turned in ("query", "key"):
            yield "missing rope", replace(right, turned=turned)
        yield "rope sign", replace(right, sign=-1)
        for base in (1e4, 1e3, 5e4, 1e5, 5e5, 1e6, 2e4, 100.0, *bench.trial.numbers("rope_theta")):
            if base != right.base:
                yield "rope base", replace(right, base=base)
    for pairing in PAIRINGS if not right.pairing else ():
        yield "extra rope", replace(right, pairing=pairing, base=0.0 if bench.tables is not None else 1e4)
    if bench.key.shape[-1] != bench.query.shape[-1]:
        yield "head order", replace(right, repeat="all together")
    for dtype in ("bfloat16", "float16", "TF32"):
        yield "softmax dtype", replace(right, dtype=dtype)
    for split in ("heads last", "heads mixed with positions"):
        yield "head order", replace(right, split=split)
    for heads in (n for n in (right.heads * 2, right.heads // 2, 1) if n and bench.query.shape[-1] % n == 0):
        width = bench.query.shape[-1] // heads
        yield "head count", replace(right, heads=heads, scale=1 / math.sqrt(width))
        yield "head count", replace(right, heads=heads)
