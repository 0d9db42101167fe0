"""The second look, for arrays that differ: how many values, how much, where. Exact and in C order; slower."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from padiff.compare.blocks import block_length, clean, distance, loader, walk
from padiff.compare.kinds import Kind
from padiff.records import Array


@dataclass(slots=True)
class Details:
    """Where and how two arrays differ. Positions count elements in C order; -1 where there is none."""

    mismatched: int = 0
    max_abs: float = 0.0
    max_rel: float = 0.0
    """Over the elements whose base is not 0; inf where base is 0 everywhere and raw is not."""
    max_ulp: int | None = None
    worst: int = -1
    """The largest difference."""
    over: int = -1
    """The element furthest over its own bound."""
    excess: float = 0.0
    """How far that is."""
    needed_rtol: float = 0.0
    """What rtol would have to be, with the given atol, for no element to be over."""
    needed_atol: float = 0.0
    """What atol would have to be, with the given rtol."""
    base_bad: int = 0
    """NaN and Inf in base."""
    raw_bad: int = 0
    unlike: int = -1
    """The first NaN or Inf that the other side does not have."""


def examine(base: Array, raw: Array, kind: Kind, rtol: float, atol: float, *, quickly: bool = False) -> Details:
    """Holds every element against ``atol + rtol * abs(base)``; NaN and Inf are counted and left out.

    ``quickly``: in the type of the first look, and nobody asks which bounds would have held."""
    work = kind.quick if quickly else kind.wide
    length = min(block_length(work), base.size)
    load = loader(base.dtype, raw.dtype, kind, work)
    found, start, some_base = Details(max_ulp=0 if kind.bits else None), 0, False
    for base_block, raw_block in walk(base, raw, length, "C"):
        size, _, gap = load(base_block, raw_block)
        peak = float(gap.max())
        if not math.isfinite(peak):
            base_block, raw_block = _leave_out(found, base_block, raw_block, size, gap, start)
            peak = float(gap.max())
        some_base = some_base or bool(size.max() > 0)
        if peak > 0:
            if peak > found.max_abs:
                found.max_abs, found.worst = peak, start + int(gap.argmax())
            if quickly and rtol == 0:
                _count_over(found, size, gap, atol)
            else:
                _note_bound(found, size, gap, rtol, atol, start)
            if found.max_ulp is not None:
                found.max_ulp = max(found.max_ulp, int(ulps(base_block, raw_block, kind).max()))
        start += len(gap)
    if not some_base and found.max_abs > 0:
        found.max_rel = math.inf
    return found


def ulps(base: Array, raw: Array, kind: Kind) -> Array:
    """How many representable values lie between each two elements; 0.0 and -0.0 are one value."""
    return distance(_ordered(base, kind), _ordered(raw, kind))


def _ordered(block: Array, kind: Kind) -> Array:
    """Integers in the order of the floats: the bits of a float, its sign apart, already grow with it."""
    if kind.bits == 32:  # most are, and half as wide is twice as fast
        return _signed(block.view(np.int32), np.right_shift(block.view(np.int32), 31), kind)
    codes: Array = block.view(f"u{block.dtype.itemsize}").astype(np.int64)
    if not kind.signed:
        return codes
    unused = 64 - kind.bits
    return _signed(codes, (codes << unused) >> 63, kind)


def _signed(codes: Array, sign: Array, kind: Kind) -> Array:
    """Codes counted from zero, ``sign`` being -1 for those below."""
    codes = codes & ((1 << (kind.bits - 1)) - 1)
    codes ^= sign
    codes -= sign
    return codes


def _leave_out(found: Details, base: Array, raw: Array, size: Array, gap: Array, start: int) -> tuple[Array, Array]:
    """Counts NaN and Inf, and makes their places agree so that nothing else counts them."""
    finite, unlike = clean(base, raw)
    found.base_bad += int(np.count_nonzero(~np.isfinite(base)))
    found.raw_bad += int(np.count_nonzero(~np.isfinite(raw)))
    if found.unlike < 0 and unlike.any():
        found.unlike = start + int(unlike.argmax())
    gap[~finite] = 0
    size[~finite] = 0
    zero = np.zeros((), base.dtype)
    return np.where(finite, base, zero), np.where(finite, raw, zero.astype(raw.dtype))


def _count_over(found: Details, size: Array, gap: Array, atol: float) -> None:
    """Counts what is over one bound; writes over what it is given."""
    found.mismatched += int(np.count_nonzero(gap > atol))
    if size.min() <= 0:
        some = size > 0
        size, gap = size[some], gap[some]
    if len(gap):
        found.max_rel = max(found.max_rel, float(np.divide(gap, size, out=size).max()))


def _note_bound(found: Details, size: Array, gap: Array, rtol: float, atol: float, start: int) -> None:
    """Counts what is over its bound, and notes what bounds would have held."""
    apart = gap - size * rtol
    found.needed_atol = max(found.needed_atol, float(apart.max()))
    over = gap - (size * rtol + atol)
    found.mismatched += int(np.count_nonzero(over > 0))
    place = int(over.argmax())
    if over[place] > found.excess:
        found.excess, found.over = float(over[place]), start + place
    some = size > 0
    if not some.all():
        if (gap[~some] > atol).any():
            found.needed_rtol = math.inf
        size, gap = size[some], gap[some]
    if len(gap):
        found.max_rel = max(found.max_rel, float((gap / size).max()))
        found.needed_rtol = max(found.needed_rtol, float(((gap - atol) / size).max()))
