"""The first look: one pass over both arrays, a handful of sums."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from padiff.compare.blocks import block_length, clean, loader, scratch_of, walk
from padiff.compare.kinds import FLOAT32, FLOAT64, DType, Kind, kind_of
from padiff.compare.tiles import SMALL
from padiff.records import Array, Numbers

_ONES = {work: np.ones(block_length(work), work) for work in (FLOAT32, FLOAT64)}
for _ones in _ONES.values():
    _ones.flags.writeable = False

_SAFE_SQUARES = {FLOAT32: (1e-28, 1e37), FLOAT64: (1e-280, 1e300)}
"""Sums of squares outside of these may have lost something to underflow or overflow."""


@dataclass(slots=True)
class Sums:
    """What one pass collects, over the elements that are finite on both sides.

    Everything is divided by the size as it comes in: float64 masks hold the largest number there is,
    and two of them must not add up to Inf.
    """

    size: int
    count: int = 0
    peak: float = 0.0
    gap_mean: float = 0.0
    base_mean: float = 0.0
    gap_rms: float = 0.0
    base_rms: float = 0.0
    raw_rms: float = 0.0
    excess: float = -math.inf
    """Largest abs(raw - base) - rtol * abs(base), where an rtol was given."""
    unlike: bool = False
    """NaN or Inf on one side that the other side does not have."""

    @property
    def trusted(self) -> bool:
        """False where the working type overflowed, or is too coarse for norms that far apart."""
        means = math.isfinite(self.peak) and math.isfinite(self.gap_mean) and math.isfinite(self.base_mean)
        return means and 1e-2 * self.base_rms <= self.raw_rms <= 1e2 * self.base_rms

    @property
    def lopsided(self) -> bool:
        """One norm is so much larger than the other that their triangle hides the angle."""
        return not 1e-4 * self.base_rms <= self.raw_rms <= 1e4 * self.base_rms

    def numbers(self) -> Numbers:
        share = self.size / (self.count or 1)
        root = math.sqrt(share)
        return Numbers(
            self.size,
            self.peak,
            self.gap_mean * share,
            self.base_mean * share,
            self.gap_rms * root,
            self.base_rms * root,
            1.0 if self.peak == 0.0 else cosine(self.base_rms, self.raw_rms, self.gap_rms),
        )


def rms(array: Array) -> float:
    """The root mean square of an array."""
    if array.size == 0:
        return 0.0
    flat = array.reshape(-1)
    flat = flat.astype(np.float32) if flat.dtype.itemsize < 4 else flat
    square = _square(flat)
    low, high = _SAFE_SQUARES[FLOAT32]
    if not low < square < high and flat.dtype.kind in "fc":  # lost something, or nothing is there
        square = _square(flat.astype(np.complex128 if flat.dtype.kind == "c" else np.float64, copy=False))
    return math.sqrt(square / flat.size)


def _square(flat: Array) -> float:
    return abs(float(np.vdot(flat, flat).real))


def rms_gap(base: Array, other: Array) -> float:
    """The root mean square of the difference of two arrays of one shape and dtype, over what is finite in both."""
    if base.size == 0:
        return 0.0
    kind = kind_of(base.dtype)
    with np.errstate(all="ignore"):
        quick = _gap_only(base, other)
        return quick if quick is not None else measure(base, other, kind, kind.quick).numbers().rmse


def _gap_only(base: Array, other: Array) -> float | None:
    """The same for two arrays alike in memory; None where squares may have lost something, or nothing is finite."""
    work = base.dtype
    if work not in _SAFE_SQUARES or other.dtype != work:
        return None
    if not (base.flags.c_contiguous and other.flags.c_contiguous):
        return None
    length, total = block_length(work), 0.0
    low, high = _SAFE_SQUARES[work]
    scratch = scratch_of(work)
    for one, two in walk(base, other, length, "C"):
        gap = np.subtract(two, one, out=scratch[: len(one)])
        square = float(np.dot(gap, gap))
        if not low < square < high and gap.any():
            return None
        total += square
    return math.sqrt(total / base.size)


def measure(base: Array, raw: Array, kind: Kind, work: DType, rtol: float | None = None) -> Sums:
    """Sums over both arrays, computed in ``work``; with ``rtol`` also the largest excess over ``rtol * abs(base)``."""
    length = min(block_length(work), base.size)
    load = loader(base.dtype, raw.dtype, kind, work)
    if base.size == length and (length < SMALL or (base.flags.c_contiguous and raw.flags.c_contiguous)):
        whole = _in_one(*load(base.reshape(-1), raw.reshape(-1)), rtol)
        if whole is not None:
            return whole
    sums = Sums(base.size)
    for base_block, raw_block in walk(base, raw, length, "K"):
        size, other, gap = load(base_block, raw_block)
        peak = float(np.maximum.reduce(gap))
        if not math.isfinite(peak):
            finite, unlike = clean(base_block, raw_block)
            size, other, gap = size[finite], other[finite], gap[finite]
            peak = float(gap.max(initial=0.0))
            sums.unlike = sums.unlike or bool(unlike.any())
        _add(sums, size, other, gap, peak)
        if rtol is not None and peak > 0.0:
            np.multiply(size, rtol, out=size)
            excess = float(np.maximum.reduce(np.subtract(gap, size, out=size)))
            sums.excess = math.inf if math.isnan(excess) else max(sums.excess, excess)
    return sums


def _in_one(size: Array, other: Array, gap: Array, rtol: float | None) -> Sums | None:
    """The same for arrays of one block, which most are: with small ones all the time goes into the calls.

    None where something in it is not finite.
    """
    peak = float(np.maximum.reduce(gap))
    if not math.isfinite(peak):
        return None
    count = len(gap)
    weight = 1.0 / count
    root = math.sqrt(weight)
    base_mean, base_rms = _total(size, weight), _norm(size, root)
    if peak == 0.0:
        return Sums(count, count, 0.0, 0.0, base_mean, 0.0, base_rms, base_rms)
    found = Sums(count, count, peak, _total(gap, weight), base_mean, _norm(gap, root), base_rms, _norm(other, root))
    if rtol is not None:
        np.multiply(size, rtol, out=size)
        excess = float(np.maximum.reduce(np.subtract(gap, size, out=size)))
        found.excess = math.inf if math.isnan(excess) else excess
    return found


def _add(sums: Sums, size: Array, other: Array, gap: Array, peak: float) -> None:
    """Block sums in the working type, added up in double; norms by hypot, which neither overflows nor underflows."""
    weight = 1.0 / sums.size
    root = math.sqrt(weight)
    sums.count += len(gap)
    sums.base_mean += _total(size, weight)
    base_rms = _norm(size, root)
    sums.base_rms = math.hypot(sums.base_rms, base_rms)
    if peak == 0.0:
        sums.raw_rms = math.hypot(sums.raw_rms, base_rms)
        return
    sums.peak = max(sums.peak, peak)
    sums.gap_mean += _total(gap, weight)
    sums.gap_rms = math.hypot(sums.gap_rms, _norm(gap, root))
    sums.raw_rms = math.hypot(sums.raw_rms, _norm(other, root))


def _total(block: Array, weight: float) -> float:
    ones = _ONES.get(block.dtype)
    if ones is None:
        return float((block * weight).sum())
    # A dot product with ones is twice as fast as numpy's own sum (numpy 2.4).
    total = float(np.dot(block, ones[: len(block)])) * weight
    return total if math.isfinite(total) else float((block * weight).sum())


def _norm(block: Array, weight: float) -> float:
    square = float(np.dot(block, block))
    low, high = _SAFE_SQUARES.get(block.dtype, _SAFE_SQUARES[FLOAT64])
    if low < square < high:
        return weight * math.sqrt(square)
    peak = np.absolute(block).max(initial=0)
    if peak == 0 or not np.isfinite(peak):
        return float(peak)
    scaled = block / peak
    return float(peak) * (weight * math.sqrt(float(np.dot(scaled, scaled))))


def cosine(base_rms: float, raw_rms: float, gap_rms: float) -> float:
    """Cosine of the angle between base and raw, from the sides of their triangle; a zero vector has 0 with any other.

    Accurate where it matters, close to 1: ``1 - cosine`` keeps the precision of the gap.
    """
    if base_rms == 0.0 or raw_rms == 0.0 or not math.isfinite(gap_rms):
        return 0.0
    ratio = base_rms / raw_rms
    if ratio == 0.0 or not math.isfinite(ratio):
        return 0.0
    found = (ratio + 1.0 / ratio - (gap_rms / base_rms) * (gap_rms / raw_rms)) / 2.0
    return max(-1.0, min(1.0, found))


def lopsided_cosine(base: Array, raw: Array, kind: Kind, sums: Sums) -> float:
    """The same from the inner product, in a pass of its own."""
    if sums.base_rms == 0.0 or sums.raw_rms == 0.0:
        return 0.0
    wide = np.result_type(kind.wide, np.complex64) if kind.family == "complex" else kind.wide
    found = 0.0
    for base_block, raw_block in walk(base, raw, block_length(kind.wide), "K"):
        finite, _ = clean(base_block, raw_block)
        b, r = base_block[finite].astype(wide) / sums.base_rms, raw_block[finite].astype(wide) / sums.raw_rms
        found += float(np.vdot(b, r).real) / sums.size
    return max(-1.0, min(1.0, found))
