"""Query, key and value of a place, wherever they are: returned by three modules, by one, or made of weights."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations, permutations

import numpy as np

from padiff.diagnose.causes.trial import Trial, plain
from padiff.records import Array

_END = r"(_?(proj|lin|layer|linear|dense|norm|layernorm|layer_norm))?$"
_ROLES = {
    "query": re.compile(rf"(^|[._])(q|query|queries|wq|to_q){_END}"),
    "key": re.compile(rf"(^|[._])(k|key|keys|wk|to_k){_END}"),
    "value": re.compile(rf"(^|[._])(v|value|values|wv|to_v){_END}"),
    "fused": re.compile(
        r"(^|[._])(qkv|wqkv|w_pack|c_attn|query_key_value|in_proj|to_qkv|attn_qkv)(_?(proj|lin|linear))?$", re.I
    ),
}
_OUT = re.compile(r"^(out|out_proj|o_proj|o|proj|c_proj|dense|wo|out_lin|to_out|output|linear_proj|0)$")
_ADDED = re.compile(r"mask|bias|alibi|position", re.I)
LEAST = -1e30
"""What is added to scores to leave them out; less would be lost in what follows."""


@dataclass(frozen=True)
class Projections:
    """Query, key and value of one sample, by position, heads side by side."""

    query: Array
    key: Array
    value: Array
    of_raw: Mapping[str, Array] = field(default_factory=dict)
    """Where these are made of base's weights: what raw's modules returned, by role."""
    made_of: Mapping[str, tuple[Array, Array, Array]] = field(default_factory=dict)
    """And of what each is made: input, weight (output × input) and bias."""


def projections(trial: Trial, sample: int, heads: list[int]) -> Iterator[Projections]:
    """Every way to read them off what is at hand."""
    named = _named(trial, sample)
    if {"query", "key", "value"} <= named.keys():
        yield Projections(named["query"], named["key"], named["value"])
    if "fused" in named:
        yield from _parted(named["fused"], heads)
    yield from _made(trial, sample, named)


def _named(trial: Trial, sample: int) -> dict[str, Array]:
    """By name, by base's where raw's says nothing; a norm of the query or the key comes after it, and stands in for
    it."""
    found: dict[str, tuple[bool, Array]] = {}
    scene = trial.scene
    for source in (scene.around, scene.given):
        for path, tensor in source.items():
            told = any(pattern.search(path) for pattern in _ROLES.values())
            name = path if told else scene.in_base.get(path, path)
            for role, pattern in _ROLES.items():
                if not pattern.search(name) or tensor.ndim not in (3, 4) or not len(tensor):
                    continue
                later = "norm" in name.rpartition(".")[2]
                if role not in found or (
                    later and not found[role][0] and tensor.size == found[role][1].size * len(tensor)
                ):
                    found[role] = later, _side_by_side(plain(tensor[min(sample, len(tensor) - 1)]), scene.expected)
    return {role: tensor for role, (_, tensor) in found.items()}


def _side_by_side(tensor: Array, expected: Array) -> Array:
    """By position, heads side by side; positions are what is as long as an axis of the tensor looked at."""
    if tensor.ndim == 2:
        return tensor
    first, second, _ = tensor.shape
    lengths = expected.shape[1:-1] if expected.ndim > 2 else expected.shape
    turned = first not in lengths or (second in lengths and second >= first)
    turned = turned or (first in lengths and expected.ndim == 4 and expected.shape[1] == first)
    return np.asarray((tensor.transpose(1, 0, 2) if turned else tensor).reshape(second if turned else first, -1))


def _parted(fused: Array, heads: list[int]) -> Iterator[Projections]:
    width = fused.shape[-1]
    if width % 3 == 0:
        query, key, value = np.split(fused, 3, axis=-1)
        yield Projections(query, key, value)
        for count in heads:
            if (width // 3) % count == 0:
                cut = fused.reshape(len(fused), count, 3, -1)
                query, key, value = (cut[:, :, part].reshape(len(fused), -1) for part in range(3))
                yield Projections(query, key, value)
    for count in heads:
        for each in (width // (count + 2 * groups) for groups in range(1, count) if width % (count + 2 * groups) == 0):
            groups = (width // each - count) // 2
            if count % groups == 0:
                cuts = (count * each, (count + groups) * each)
                query, key, value = np.split(fused, cuts, axis=-1)
                yield Projections(query, key, value)
                if groups > 1:  # group by group: its queries, its key, its value
                    cut = fused.reshape(len(fused), groups, -1, each)
                    by_group = (cut[:, :, :-2], cut[:, :, -2], cut[:, :, -1])
                    query, key, value = (part.reshape(len(fused), -1) for part in by_group)
                    yield Projections(query, key, value)


def _made(trial: Trial, sample: int, named: Mapping[str, Array]) -> Iterator[Projections]:
    """Of a module that does it all: from its inputs and its weights."""
    scene = trial.scene
    inputs = [t for t in scene.given.values() if t.ndim == 3 and t.dtype.kind in "fV"]
    nothing: Mapping[str, Array] = {}
    sides = (scene.raw_weights, scene.raw_settings, nothing), (scene.base_weights, scene.base_settings, named)
    for own, settings, of_raw in sides:
        weight = own.get("in_proj_weight")
        if weight is None or not inputs or weight.shape[0] % 3:
            continue
        given = [inputs[min(place, len(inputs) - 1)] for place in range(3)]
        if settings.get("batch_first") is False:
            given = [t.transpose(1, 0, 2) for t in given]
        if any(t.shape[-1] != weight.shape[1] or sample >= len(t) for t in given):
            continue
        bias = own.get("in_proj_bias")
        parts = np.split(plain(weight), 3)
        biases = np.split(plain(bias), 3) if bias is not None else [np.zeros(1)] * 3
        of = [(plain(x[sample]), w, b) for x, w, b in zip(given, parts, biases, strict=True)]
        query, key, value = (x @ w.T + b for x, w, b in of)
        yield Projections(query, key, value, of_raw, dict(zip(("query", "key", "value"), of, strict=True)))


def out_projections(trial: Trial, width: int) -> Iterator[tuple[Array, Array]]:
    """Weight and bias of what may come after attention: ``attended @ weight + bias``."""
    found = trial.scene.inner_weights
    for name, weight in found.items():
        path, _, last = name.rpartition(".")
        if (
            last != "weight"
            or weight.ndim != 2
            or not _OUT.search(path.rpartition(".")[2])
            or width not in weight.shape
        ):
            continue
        bias = found.get(f"{path}.bias")
        for way in (weight.T, weight):
            if way.shape[0] == width and way.shape[1] == trial.scene.expected.shape[-1]:
                yield plain(way), np.zeros(way.shape[1]) if bias is None else plain(bias)


def added(trial: Trial, sample: int, samples: int, queries: int, keys: int) -> dict[str, Array]:
    """What may be added to scores, as head, query, key: masks, slopes, tables of relative positions, sums of two."""
    scene = trial.scene
    found: dict[str, Array] = {}
    named = {f"its input {name}": tensor for name, tensor in scene.given.items()}
    named |= {f"what {path} returned": tensor for path, tensor in scene.around.items()}
    for name, tensor in named.items():
        for words, more in _as_added(name, tensor, (sample, samples), queries, keys):
            found.setdefault(words, more)
    for own in (scene.base_weights, scene.raw_weights):
        table = next((w for n, w in own.items() if "bias_table" in n and w.ndim == 2), None)
        index = next((w for n, w in own.items() if "index" in n and w.size == queries * keys), None)
        if table is not None and index is not None and int(index.max()) < len(table):
            rows = plain(table)[index.ravel().astype(np.int64)].reshape(queries, keys, -1)
            found.setdefault("its table of relative positions", rows.transpose(2, 0, 1))
    found = dict(list(found.items())[:6])
    for (one, a), (other, b) in list(combinations(found.items(), 2)):
        heads = {a.shape[0], b.shape[0]} - {1}
        if len(heads) < 2 and one.partition(" by ")[0] != other.partition(" by ")[0]:
            found[f"{one} and {other}"] = np.maximum(a + b, LEAST)
    return found


def _as_added(name: str, tensor: Array, which: tuple[int, int], queries: int, keys: int) -> Iterator[tuple[str, Array]]:
    sample, samples = which
    if not 2 <= tensor.ndim <= 4 or not tensor.size:
        return
    flags = tensor.dtype.kind in "biu"
    one: Array
    turned = tensor.ndim == 3 and tensor.shape[:2] == (queries, keys) and keys != tensor.shape[2]
    if turned:  # a table of relative positions, heads last
        one = tensor.transpose(2, 0, 1)
    elif tensor.shape[-1] != keys:
        return
    elif tensor.ndim == 2:
        one = tensor[None] if tensor.shape[0] == queries else tensor[min(sample, len(tensor) - 1)][None, None]
    elif tensor.shape[-2] not in (1, queries):
        return
    elif tensor.ndim == 4:
        one = tensor[min(sample, len(tensor) - 1)]
    else:
        one = tensor
    values = plain(one)
    readings = _samples(values, sample, samples) if tensor.ndim == 3 and not turned else iter([("", values)])
    if flags or (not np.any((values != 0) & (values != 1)) and np.any(values)):
        if np.any((values != 0) & (values != 1)):
            return
        for words, picked in readings:
            yield f"{name}{words}", np.where(picked > 0, 0.0, LEAST)
            yield f"{name}{words} turned round", np.where(picked > 0, LEAST, 0.0)
    elif _ADDED.search(name) or _masks(values):
        for words, picked in readings:
            yield f"{name}{words}", np.maximum(picked, LEAST)


def _masks(values: Array) -> bool:
    """Very negative somewhere, or nothing but zero and one number well below it."""
    lowest = float(values.min())
    return lowest <= -1e4 or (lowest <= -10 and not np.any((values != 0) & (values != lowest)))


def _samples(values: Array, sample: int, samples: int) -> Iterator[tuple[str, Array]]:
    """The first of three axes may count samples and heads, samples, windows over and over, or heads."""
    if len(values) > samples and len(values) % samples == 0:
        each = len(values) // samples
        yield "", values[sample * each : (sample + 1) * each]
    yield " by samples" if len(values) > 1 else "", values[sample % len(values)][None]
    if len(values) > 1:
        yield " by heads", values


def tables(trial: Trial, sample: int, length: int) -> list[tuple[Array, Array]]:
    """Cosines and sines at hand, one column for each pair, by position."""
    found: list[Array] = []
    for tensor in trial.at_hand.values():
        if tensor.ndim < 2 or not tensor.size or np.abs(tensor).max() > 1 + 1e-5 or length not in tensor.shape[:-1]:
            continue
        table = np.moveaxis(tensor, tensor.shape[:-1].index(length), -2) if tensor.shape[-2] != length else tensor
        table = table.reshape(-1, *table.shape[-2:])
        table = table[min(sample, len(table) - 1)]
        half = table.shape[-1] // 2
        if half and table.shape[-1] % 2 == 0 and np.abs(table[:, :half] - table[:, half:]).max() < 1e-6:
            found.append(table[:, :half])
        elif half and table.shape[-1] % 2 == 0 and np.abs(table[:, ::2] - table[:, 1::2]).max() < 1e-6:
            found.append(table[:, ::2])
        else:
            found.append(table)
    pairs: list[tuple[Array, Array]] = []
    for cos, sin in permutations(found[:8], 2):
        circle = cos.shape == sin.shape and np.abs(cos**2 + sin**2 - 1).max() < 1e-4
        known = any(one.shape == cos.shape and np.abs(one - cos).max() < 1e-6 for one, _ in pairs)
        if circle and not known and np.abs(cos[0]).mean() > np.abs(sin[0]).mean():
            pairs.append((cos, sin))
    angles = (_angles(tensor, sample, length) for tensor in trial.at_hand.values())
    return pairs + [(np.cos(one), np.sin(one)) for one in angles if one is not None]


def _angles(tensor: Array, sample: int, length: int) -> Array | None:
    """A table of angles at hand: positions times speeds, one column for each pair, each of them once."""
    if tensor.ndim < 2 or tensor.shape[-2] != length or length < 3 or tensor.shape[-1] < 2 or tensor.dtype.kind != "f":
        return None
    found = plain(tensor.reshape(-1, *tensor.shape[-2:]))
    table: Array = found[min(sample, len(found) - 1)]
    half = table.shape[-1] // 2
    table = (
        table[:, :half] if table.shape[-1] == 2 * half and np.array_equal(table[:, :half], table[:, half:]) else table
    )
    if not (np.isfinite(table).all() and (table[1:] >= table[:-1]).all() and (table[-1] > table[0]).all()):
        return None
    speeds = table[-1] / max(table[-1].max(), 1e-30)
    positions = table[:, int(np.argmax(speeds))]
    return table if np.abs(table - positions[:, None] * speeds).max() <= 1e-5 * np.abs(table).max() else None


def stated_heads(trial: Trial) -> list[int]:
    """How many heads there are by the modules' own word."""
    return [int(n) for n in trial.numbers("num_heads", "heads", "attention_heads") if n >= 1]


def head_counts(trial: Trial, width: int) -> list[int]:
    """How many heads there may be, what is said first."""
    heads = stated_heads(trial)
    heads += [width // int(d) for d in trial.numbers("head_dim") if d >= 1 and width % int(d) == 0]
    if not heads:
        shapes = [t.shape for t in (*trial.scene.around.values(), trial.scene.expected) if t.ndim == 4]
        heads += [count for shape in shapes for count in shape[1:3]]
        heads += [width // t.shape[-1] for t in trial.at_hand.values() if t.ndim >= 2 and width % t.shape[-1] == 0]
        heads += [width // d for d in (64, 128, 32, 16, 8, 4, 80, 96, 12, 24, 6) if width % d == 0]
        heads = list(dict.fromkeys(heads))[:12]
    return [n for n in dict.fromkeys(heads) if 0 < n <= width and width % n == 0]


def usual_scales(trial: Trial, each: int) -> list[float]:
    found = [1 / math.sqrt(each), *trial.numbers("scale"), 1.0]
    return list(dict.fromkeys(found))
