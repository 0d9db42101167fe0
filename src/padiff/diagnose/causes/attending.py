"""Attention computed again, on a few rows and heads of one sample, in one way or another."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

import numpy as np

from padiff.diagnose.causes.functions import softmax
from padiff.diagnose.causes.numerics import rounded
from padiff.diagnose.causes.projections import LEAST, Projections
from padiff.diagnose.causes.rope import pairs, unpaired
from padiff.diagnose.causes.trial import gap
from padiff.records import Array

_ROWS = 24
_HEADS = 4
_GLANCE = 4
_MOST = 1 << 22
"""Scores that are computed for a softmax along queries."""


@dataclass(frozen=True)
class Way:
    """One way to attend."""

    heads: int
    scale: float
    causal: int | None = None
    """How far a position may look: 0 up to itself, 1 one further, -1 one less; None: everywhere."""
    added: str = ""
    """Name of what is added to the scores."""
    fill: str = ""
    """How what is left out is filled, where it is not left out."""
    whole: float = 1.0
    """A factor of what is added, too."""
    rolled: int = 0
    """By how many keys the mask is moved."""
    table: int = -1
    """Which of the tables at hand turns the pairs; -1: none."""
    pairing: str = ""
    laid: str = ""
    """How the table holds each angle twice, where not as pairs are formed."""
    turned: str = "query and key"
    base: float = 0.0
    """Of rotary positions, where there is no table."""
    sign: int = 1
    repeat: str = "in turn"
    """How keys are, and values, if otherwise."""
    dtype: str = ""
    narrow: str = "scores and weights"
    axis: int = -1
    split: str = "heads first"

    def told(self) -> str:
        looks = {None: "everywhere", 0: "back to itself", 1: "one position too far", -1: "back, not to itself"}
        parts = [f"{self.heads} heads", f"scale {self.scale:.6g}", f"looking {looks[self.causal]}"]
        parts += [f"{self.added} added"] if self.added else []
        parts += [f"its mask moved by {self.rolled}"] if self.rolled else []
        parts += [f"all of it times {self.whole:.6g}"] if self.whole != 1 else []
        parts += [self.fill] if self.fill else []
        way = "" if self.sign > 0 else " backwards"
        parts += [f"{self.turned} turned by {self.pairing}{way}"] if self.pairing else []
        parts += [f"the table laid out by {self.laid}"] if self.laid else []
        parts += [f"by table {self.table + 1} of those at hand"] if self.table > 0 else []
        parts += [f"rotary base {self.base:g}"] if self.base else []
        parts += [f"keys repeated {self.repeat}"] if self.repeat != "in turn" else []
        parts += [f"{self.narrow} in {self.dtype}"] if self.dtype else []
        parts += ["softmax along the queries"] if self.axis == -2 else []
        parts += [self.split] if self.split != "heads first" else []
        return ", ".join(parts)


class Bench:
    """One sample: its projections, what may be added to its scores, and the rows that are computed again."""

    def __init__(
        self,
        parts: Projections,
        expected: Array,
        found: Array,
        added: dict[str, Array],
        tables: list[tuple[Array, Array]],
        *,
        what: str,
        out: tuple[Array, Array] | None = None,
    ) -> None:
        """``expected`` and ``found``: by query, or by head and query where ``what`` is weights or scores."""
        self.parts, self.what, self.out, self.added, self.tables = parts, what, out, added, tables
        apart = np.square(expected - found)
        by_row = apart.sum(axis=(0, 2)) if expected.ndim == 3 else apart.sum(axis=-1)
        length = len(by_row)
        worst = np.argsort(by_row)[::-1][: _ROWS // 2]
        self.rows = np.unique(np.concatenate([np.linspace(0, length - 1, min(_ROWS, length)).astype(int), worst]))
        self.expected = expected[:, self.rows] if expected.ndim == 3 else expected[self.rows]
        self.found = found[:, self.rows] if expected.ndim == 3 else found[self.rows]

    def chosen(self, heads: int) -> Array:
        """The heads that are computed: all where an output projection mixes them."""
        if self.what == "projected" or heads <= _HEADS:
            return np.arange(heads)
        if self.what == "attended":
            apart = np.square(self.expected - self.found).reshape(len(self.rows), heads, -1).sum(axis=(0, 2))
        else:
            apart = np.square(self.expected - self.found).sum(axis=(1, 2))
        return np.unique(np.concatenate([[0], np.argsort(apart)[::-1][: _HEADS - 1]]))

    def target(self, tensor: Array, way: Way) -> Array | None:
        """The part of base's or raw's tensor that is computed again."""
        if self.what == "projected":
            return tensor
        if self.what == "attended":
            if tensor.shape[-1] % way.heads:
                return None
            return np.asarray(tensor.reshape(len(self.rows), way.heads, -1)[:, self.chosen(way.heads)])
        return np.asarray(tensor[self.chosen(way.heads)]) if len(tensor) == way.heads else None

    def glance(self) -> Bench:
        """The same on very few rows, to rule out most ways."""
        few = copy(self)
        places = np.unique(np.linspace(0, len(self.rows) - 1, _GLANCE).astype(int))
        few.rows = self.rows[places]
        few.expected = self.expected[:, places] if self.expected.ndim == 3 else self.expected[places]
        few.found = self.found[:, places] if self.found.ndim == 3 else self.found[places]
        return few

    def misses(self, tensor: Array, way: Way) -> float:
        """How far what is computed in this way is from a tensor."""
        made, wanted = self.attend(way), self.target(tensor, way)
        return np.inf if made is None or wanted is None else gap(wanted, made)

    def gap(self, way: Way) -> float:
        one, other = self.target(self.expected, way), self.target(self.found, way)
        return np.inf if one is None or other is None else gap(one, other)

    def attend(self, way: Way) -> Array | None:
        parted = self.heads(way)
        if parted is None:
            return None
        query, key, value = parted
        rows = slice(None) if way.axis == -2 else self.rows
        scores = self.scores(way, query[:, rows], key, np.arange(query.shape[1])[rows])
        if scores is None:
            return None
        if self.what == "scores":
            return scores if way.axis == -1 else scores[:, self.rows]
        weights = softmax(scores, way.axis)
        if way.dtype and "weights" in way.narrow:
            weights = rounded(weights, way.dtype)
        weights = weights if way.axis == -1 else weights[:, self.rows]
        if self.what == "weights":
            return weights
        made = np.einsum("hqk,hkd->qhd", weights, value, optimize=True)
        if self.what == "attended":
            return np.asarray(made)
        assert self.out is not None
        return np.asarray(made.reshape(len(self.rows), -1) @ self.out[0] + self.out[1])

    def heads(self, way: Way) -> tuple[Array, Array, Array] | None:
        """Query, key and value by chosen head, turned where the way turns them."""
        width = self.parts.query.shape[-1]
        if width % way.heads:
            return None
        each = width // way.heads
        in_turn = [of.endswith("in turn") for of in (way.repeat.partition(",")[0], way.repeat)]
        query, key = (self._apart(t, each, way, in_turn[0]) for t in (self.parts.query, self.parts.key))
        groups = max(1, self.parts.key.shape[-1] // each)
        value = self._apart(self.parts.value, max(1, self.parts.value.shape[-1] // groups), way, in_turn[1])
        if query is None or key is None or value is None:
            return None
        if way.pairing:
            turned = self._turned(query, way) if "query" in way.turned else query
            key_turned = self._turned(key, way) if "key" in way.turned else key
            if turned is None or key_turned is None:
                return None
            query, key = turned, key_turned
        return query, key, value

    def scores(self, way: Way, query: Array, key: Array, rows: Array) -> Array | None:
        if way.axis == -2 and query.shape[0] * query.shape[1] * key.shape[1] > _MOST:
            return None
        scores = np.einsum("hqd,hkd->hqk", query, key, optimize=True) * way.scale
        more = self.mask(way, rows, key.shape[1])
        if more is None:
            return None
        scores = np.maximum(scores + more, LEAST)
        scores = np.where(scores > -1e4, way.whole * scores, scores) if way.whole != 1 else scores
        scores = np.where(more <= -1e4, 0.0, scores) if way.fill else scores
        with np.errstate(over="ignore"):
            scores = scores.astype(np.float32).astype(np.float64)  # as models do: a large mask swallows digits
        return rounded(scores, way.dtype) if way.dtype and "scores" in way.narrow else scores

    def mask(self, way: Way, rows: Array, keys: int) -> Array | None:
        """What is added to the scores of some queries."""
        more = np.zeros((1, 1, 1))
        if way.added:
            more = self.added[way.added]
            if more.shape[0] not in (1, way.heads) or more.shape[1] not in (1, len(self.parts.query)):
                return None
            more = more[self.chosen(way.heads)] if more.shape[0] > 1 else more
            more = more[:, rows] if more.shape[1] > 1 else more
        if way.causal is not None:
            offset = keys - len(self.parts.query)
            ahead = np.arange(keys)[None] > rows[:, None] + way.causal + max(offset, 0)
            more = np.where(ahead, LEAST, more)
        return np.roll(more, way.rolled, -1) if way.rolled and more.shape[-1] > 1 else more

    def _apart(self, tensor: Array, each: int, way: Way, in_turn: bool) -> Array | None:
        """Chosen heads first; keys and values repeated where there are fewer of them."""
        if tensor.shape[-1] % each:
            return None
        count = tensor.shape[-1] // each
        if way.split == "heads first":
            parted = tensor.reshape(len(tensor), count, each).transpose(1, 0, 2)
        elif way.split == "heads last":
            parted = tensor.reshape(len(tensor), each, count).transpose(2, 0, 1)
        else:
            parted = tensor.reshape(count, len(tensor), each)
        chosen = self.chosen(way.heads)
        if chosen.max(initial=0) >= way.heads:
            return None
        if count == way.heads:
            return np.asarray(parted[chosen])
        if way.heads % count:
            return None
        return np.asarray(parted[chosen // (way.heads // count) if in_turn else chosen % count])

    def _turned(self, tensor: Array, way: Way) -> Array | None:
        """Pairs turned; where the table is for a part of a head, that part."""
        length, each = tensor.shape[1:]
        if way.base:
            half = each // 2
            angles = np.arange(length)[:, None] * way.base ** (-np.arange(half) / max(half, 1))
            cos, sin = np.cos(angles), np.sin(angles)
        elif 0 <= way.table < len(self.tables):
            cos, sin = self.tables[way.table]
        else:
            return None
        width = 2 * cos.shape[1]
        if cos.shape[0] != length or width > each:
            return None
        part = tensor[..., :width]
        if way.laid:
            wide = [np.concatenate([t, t], -1) if way.laid == "halves" else np.repeat(t, 2, -1) for t in (cos, sin)]
            turned = part * wide[0] + way.sign * unpaired(1j * pairs(part, way.pairing), way.pairing) * wide[1]
        else:
            turned = unpaired(pairs(part, way.pairing) * (cos + 1j * way.sign * sin), way.pairing)
        return np.concatenate([turned, tensor[..., width:]], axis=-1)
