"""Rotary positions: how pairs are formed, how fast they turn, where counting starts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from padiff.diagnose.causes.trial import Trial, gap, leading, rms, surely_over
from padiff.records import Array, Cause

PAIRINGS = ("halves", "interleaved")


def pairs(x: Array, pairing: str) -> Array:
    """Each pair of the last axis as one complex number."""
    if pairing == "halves":
        half = x.shape[-1] // 2
        return np.asarray(x[..., :half] + 1j * x[..., half:])
    return np.asarray(x[..., ::2] + 1j * x[..., 1::2])


def unpaired(z: Array, pairing: str) -> Array:
    if pairing == "halves":
        return np.concatenate([z.real, z.imag], axis=-1)
    return np.stack([z.real, z.imag], axis=-1).reshape(*z.shape[:-1], -1)


@dataclass(frozen=True)
class Turning:
    """How one tensor is another turned: the pairing, and the angle of every position and pair."""

    pairing: str
    axis: int
    turns: Array
    """Unit numbers by position and pair."""

    def speeds(self) -> Array:
        """The angle that one position more adds, pair by pair."""
        return np.asarray(np.abs(np.angle((self.turns[1:] * self.turns[:-1].conj()).sum(axis=0))))

    def base(self) -> float | None:
        return base_of(self.speeds())


def base_of(speeds: Array, least: float = 1e-6) -> float | None:
    """``base`` where speeds are ``base ** (-k / count)``, as they are in rotary positions."""
    live = speeds > least
    if live.sum() < 2 or abs(float(speeds[0]) - 1) > 1e-2:
        return None
    k = np.arange(len(speeds))[live]
    trust = speeds[live] ** 2  # the slower, the less is left of it in a table
    slope = float(np.dot(trust * k, np.log(speeds[live])) / np.dot(trust * k, k))
    return math.exp(-slope * len(speeds))


def turning(x: Array, turned: Array, bound: float) -> Turning | None:
    """How ``turned`` is ``x`` with its pairs rotated, by position; None where it is not."""
    if x.shape != turned.shape or x.ndim < 2 or x.shape[-1] % 2:
        return None
    possible = [pairing for pairing in PAIRINGS if _as_long(x, turned, pairing, bound)]
    for axis in range(x.ndim - 2, -1, -1):
        if x.shape[axis] < 3:
            continue
        for pairing in possible:
            z, w = (np.moveaxis(pairs(t, pairing), axis, 0) for t in (x, turned))
            others = tuple(range(1, z.ndim - 1))
            sums = (w * z.conj()).sum(axis=others) if others else w * z.conj()
            size = np.abs(sums)
            turns = np.where(size > 0, sums / np.where(size > 0, size, 1), 1.0)
            if math.prod(z.shape[1:-1]) == 1 and not _steady(turns, size):
                continue  # of one vector at each position any other of its length is a turn
            spread = turns.reshape(turns.shape[0], *(1,) * len(others), turns.shape[-1])
            if gap((z * spread).real, w.real) <= bound and gap((z * spread).imag, w.imag) <= bound:
                return Turning(pairing, axis, turns)
    return None


def _steady(turns: Array, size: Array) -> bool:
    """Whether all pairs go on turning by the same angle from each position to the next."""
    steps, sure = turns[1:] * turns[:-1].conj(), np.minimum(size[1:], size[:-1]) > 1e-3 * size.max(initial=0)
    first = np.take_along_axis(steps, sure.argmax(axis=0)[None], 0)
    return bool(np.all(np.abs(steps - first)[sure] < 1e-2))


def _as_long(x: Array, turned: Array, pairing: str, bound: float) -> bool:
    """Whether pairs are as long as they were, as they are when they are turned."""
    few = [np.abs(pairs(leading(t), pairing)) for t in (x, turned)]
    if surely_over(few[0] - few[1], bound, x.size // 2):
        return False
    return not gap(np.abs(pairs(x, pairing)), np.abs(pairs(turned, pairing))) > bound


def rope(trial: Trial) -> Iterator[Cause]:
    """Both sides turn the same tensor at hand, each its own way."""
    bound = 0.3 * trial.gap
    if trial.repairs(-trial.found):  # half a turn, of everything
        return
    for name, x in trial.like.items():
        right = turning(x, trial.expected, bound)
        if right is None or gap(x, trial.expected) <= bound:
            continue
        if gap(x, trial.found) <= bound:
            yield Cause("missing rope", f"base turns {name} by rotary positions, raw does not", 0.94)
            return
        wrong = turning(x, trial.found, bound)
        if wrong is not None:
            yield from _between(right, wrong, name)
            return


def rope_by_tables(trial: Trial) -> Iterator[Cause]:
    """Both sides are ``x * cos`` and what they make of ``x``'s pairs times ``sin``, with tables at hand: pairs may be
    formed otherwise than the tables are laid out, which turns nothing."""
    if trial.expected.ndim < 2 or trial.expected.shape[-1] % 2:
        return
    tables = [(c, s) for c, s in permutations(trial.spread.values(), 2) if gap(c * c + s * s, np.ones_like(c)) < 1e-4]
    bound = 0.3 * trial.gap
    for cos, sin in tables[:4]:
        for name, x in trial.like.items():
            turned = {pairing: unpaired(1j * pairs(x, pairing), pairing) for pairing in PAIRINGS}
            made = {
                (pairing, sign, first is sin): x * first + sign * turned[pairing] * second
                for pairing in PAIRINGS
                for sign in (1, -1)
                for first, second in ((cos, sin), (sin, cos))
            }
            right = next((way for way, value in made.items() if gap(trial.expected, value) <= bound), None)
            wrong = next((way for way, value in made.items() if gap(trial.found, value) <= bound), None)
            if right is None or wrong is None or right == wrong or not trial.models(made[right], made[wrong]):
                continue
            if right[0] != wrong[0]:
                yield Cause("rope pairing", f"base forms pairs of {name} by {right[0]}, raw by {wrong[0]}", 0.95)
            elif right[2] != wrong[2]:
                yield Cause("operands", f"raw turns {name} with sines for cosines and cosines for sines", 0.96)
            else:
                yield Cause("rope sign", f"raw turns {name} the other way", 0.95)
            return


def _between(right: Turning, wrong: Turning, name: str) -> Iterator[Cause]:
    if right.pairing != wrong.pairing:
        text = f"base turns {name} in pairs by {right.pairing}, raw by {wrong.pairing}"
        yield Cause("rope pairing", text, 0.95)
    elif right.axis != wrong.axis:
        yield Cause("axis", f"base counts positions of {name} along axis {right.axis}, raw along {wrong.axis}", 0.93)
    elif rms(right.turns - wrong.turns.conj()) < 1e-3:
        yield Cause("rope sign", f"raw turns {name} the other way", 0.95)
    elif gap(right.speeds(), wrong.speeds()) < 1e-4:
        yield from _offset(right.turns * wrong.turns.conj(), right.speeds())
    else:
        yield Cause("rope base", f"of {name}, {_bases(right.base(), wrong.base())}", 0.94)


def _bases(right: float | None, wrong: float | None) -> str:
    if right is None or wrong is None:
        return "base and raw turn pairs at other speeds"
    return f"the angles have base {right:.6g} in base and {wrong:.6g} in raw"


def _offset(turns: Array, speeds: Array) -> Iterator[Cause]:
    """The same speeds, and every pair is as much ahead as some steps more would bring it."""
    middle = turns.mean(axis=0)
    angle = float(np.angle(middle[np.argmin(np.where(speeds > 1e-3, speeds, 9))]))
    slow = float(np.min(speeds[speeds > 1e-3])) if np.any(speeds > 1e-3) else 1.0
    steps = -angle / slow
    if rms(middle - np.exp(-1j * steps * speeds)) < 0.1:
        yield Cause("rope position", f"raw counts positions from {steps:+.3g} of where base does", 0.93)


def rope_apart(trial: Trial) -> Iterator[Cause]:
    """Raw's tensor is base's turned further, by an angle that depends on position and pair alone."""
    expected, found = trial.expected, trial.found
    if expected.ndim < 3 or expected.size < 64 or trial.repairs(-found):
        return
    right = turning(expected, found, 0.3 * trial.gap)
    if right is None:
        return
    others = expected.size // (expected.shape[right.axis] * expected.shape[-1])
    if others < 2:
        return
    steps = right.turns[1:] * right.turns[:-1].conj()
    if np.abs(steps - steps[:1]).max() > 2e-2:
        return
    text = f"raw's values are base's with pairs by {right.pairing} turned further"
    if np.abs(steps - 1).max() < 1e-4:
        yield Cause("rope position", f"{text}, by as much at every position along axis {right.axis}", 0.86)
    else:
        yield Cause("rope base", f"{text}, the more the later the position along axis {right.axis}", 0.86)


# ------------------------------------------------------------------ tables of sines and cosines


@dataclass(frozen=True)
class _Table:
    pairing: str
    function: str
    base: float


def rope_table(trial: Trial) -> Iterator[Cause]:
    """Both tensors are tables of sines or cosines of positions times speeds."""
    shape = tuple(size for size in trial.expected.shape if size != 1)  # one for all heads has an axis for them
    if len(shape) < 2 or shape[-2] < 3 or shape[-1] < 4 or shape[-1] % 2:
        return
    if max(np.abs(t).max() for t in (trial.expected, trial.found)) > 1 + 1e-5:
        return
    tables = [_table(t.reshape(-1, *shape[-2:])[0]) for t in (trial.expected, trial.found)]
    if tables[0] is None or tables[1] is None:
        return
    right, wrong = tables[0], tables[1]
    if right.pairing != wrong.pairing:
        text = f"base's table holds each speed twice by {right.pairing}, raw's by {wrong.pairing}"
        yield Cause("rope pairing", text, 0.96)
    elif right.function != wrong.function:
        yield Cause("operands", f"base's table holds the {right.function}, raw's the {wrong.function}", 0.95)
    elif abs(right.base / wrong.base - 1) > 5e-3:
        yield Cause("rope base", f"the angles have base {right.base:.6g} in base and {wrong.base:.6g} in raw", 0.95)


def _table(rows: Array) -> _Table | None:
    """Position zero in the first row, one in the second: the rest must follow."""
    for function, start, inverse, again in (("cosine", 1.0, np.arccos, np.cos), ("sine", 0.0, np.arcsin, np.sin)):
        if np.abs(rows[0] - start).max() > 1e-5:
            continue
        half = rows.shape[1] // 2
        for pairing, one, other in (
            ("halves", rows[:, :half], rows[:, half:]),
            ("interleaved", rows[:, ::2], rows[:, 1::2]),
        ):
            if np.abs(one - other).max() > 1e-5:
                continue
            # A cosine close to one says little of its angle.
            base = base_of(np.asarray(inverse(np.clip(one[1], -1, 1))), 3e-3 if function == "cosine" else 1e-6)
            if base is None:
                continue
            speeds = base ** (-np.arange(half) / half)
            made = again(np.arange(len(rows))[:, None] * speeds)
            if gap(made[:16], one[:16]) < 5e-3:
                return _Table(pairing, function, base)
    return None
