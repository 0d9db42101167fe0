"""A tensor in a few hundred bytes: moments, extremes, norms, quantiles, a fixed sample, a digest."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from padiff.records import Array, PlainData
from padiff.store.checks import digest
from padiff.store.dtypes import as_bytes, storable

COLUMNS = ("nan", "positive_infinite", "negative_infinite", "zero", "minimum", "maximum", "mean", "std", "l1", "l2")
LEVELS = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
"""Which quantiles are kept."""
SAMPLED = 24
"""Elements kept as they are."""
RANKED = 4096
"""Elements from which quantiles are taken; all of them where a tensor has no more."""
_BLOCK = 32768
_GOLDEN = 11400714819323198485
"""2 to the power of 64, divided by the golden ratio: multiples of it spread evenly at every scale."""
_HUGE = 1e150
"""From here on squares may overflow; below its inverse they vanish."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Stats(PlainData):
    """What is kept of a tensor. Moments, extremes and norms are over its finite elements; complex numbers count as
    two real ones; an extreme, a mean or a quantile of nothing is 0."""

    dtype: str
    shape: tuple[int, ...]
    nan: int
    positive_infinite: int
    negative_infinite: int
    zero: int
    minimum: float
    maximum: float
    mean: float
    std: float
    l1: float
    l2: float
    quantiles: tuple[float, ...]
    """At ``LEVELS``, of the finite elements among at most ``RANKED`` at fixed places."""
    sample: tuple[float, ...]
    """Elements at ``positions``, as float64."""
    digest: str
    """BLAKE2b of 128 bits over the elements, in hexadecimal."""

    @property
    def size(self) -> int:
        """Real numbers that were counted."""
        return math.prod(self.shape) * (2 if self.dtype.startswith("complex") else 1)

    @property
    def finite(self) -> int:
        return self.size - self.nan - self.positive_infinite - self.negative_infinite

    def row(self) -> list[float]:
        """The numbers of ``COLUMNS``, then the quantiles."""
        return [float(getattr(self, name)) for name in COLUMNS] + list(self.quantiles)


@dataclass(frozen=True)
class Gap(PlainData):
    """How far two tensors are apart at least, as far as their statistics tell."""

    identical: bool
    """Same dtype, shape and digest: equal bit by bit."""
    comparable: bool
    """Same shape: the samples are of the same elements."""
    nonfinite: bool
    """The counts of NaN or of infinities differ."""
    sample: float
    """Norm of the difference of the samples over the norm of base's; 0 where there are none."""
    sample_max: float
    """Largest difference among the samples."""
    norm: float
    """Difference of the l2 norms over base's."""
    mean: float
    """Difference of the means over base's root mean square."""
    quantile: float
    """Largest difference of two quantiles over base's root mean square."""


def statistics(array: Array) -> Stats:
    """Read an array once, block by block, and keep what a comparison can use."""
    plain = storable(array)
    flat = plain.reshape(-1)
    if flat.dtype.kind == "c":
        flat = flat.view(np.dtype(f"<f{flat.dtype.itemsize // 2}"))
    sums = _Sums()
    for start in range(0, flat.size, _BLOCK):
        sums.take(_wide(flat[start : start + _BLOCK]))
    return Stats(
        dtype=plain.dtype.name,
        shape=plain.shape,
        nan=sums.nan,
        positive_infinite=sums.positive,
        negative_infinite=sums.negative,
        zero=sums.zero,
        minimum=sums.minimum if sums.count else 0.0,
        maximum=sums.maximum if sums.count else 0.0,
        mean=sums.mean,
        std=sums.std(),
        l1=sums.l1,
        l2=sums.l2,
        quantiles=_quantiles(_wide(flat[positions(flat.size, RANKED)])),
        sample=tuple(_wide(flat[positions(flat.size, SAMPLED)]).tolist()),
        digest=digest(as_bytes(plain)).hex(),
    )


def gap(base: Stats, raw: Stats) -> Gap:
    """What two statistics say about the distance of their tensors."""
    comparable = base.shape == raw.shape
    counts = ("nan", "positive_infinite", "negative_infinite")
    rms = base.l2 / math.sqrt(base.finite) if base.finite else 0.0
    sample = sample_max = 0.0
    if comparable and len(base.sample) == len(raw.sample):
        first, second = np.array(base.sample), np.array(raw.sample)
        both = np.isfinite(first) & np.isfinite(second)
        apart = (second - first)[both]
        sample = _over(float(np.linalg.norm(apart)), float(np.linalg.norm(first[both])))
        sample_max = float(np.abs(apart).max(initial=0.0))
    return Gap(
        identical=comparable and base.dtype == raw.dtype and base.digest == raw.digest,
        comparable=comparable,
        nonfinite=any(getattr(base, name) != getattr(raw, name) for name in counts),
        sample=sample,
        sample_max=sample_max,
        norm=_over(abs(raw.l2 - base.l2), base.l2),
        mean=_over(abs(raw.mean - base.mean), rms),
        quantile=_over(max((abs(r - b) for b, r in zip(base.quantiles, raw.quantiles, strict=True)), default=0.0), rms),
    )


@functools.lru_cache(maxsize=1024)
def positions(size: int, wanted: int) -> npt.NDArray[np.int64]:
    """Which elements stand for all ``size`` of them: the same for every array of that size, in rising order.

    All of them where there are no more than wanted. Else multiples of the golden ratio, which fall into step with
    no axis; where two meet, one is kept.
    """
    if size <= wanted:
        return np.arange(size, dtype=np.int64)
    places = {((number * _GOLDEN) % 2**64) * size >> 64 for number in range(1, wanted + 1)}
    return np.array(sorted(places), dtype=np.int64)


class _Sums:
    """Moments, norms and counts, gathered block by block; moments of blocks are joined without cancellation."""

    def __init__(self) -> None:
        self.count = self.nan = self.positive = self.negative = self.zero = 0
        self.minimum, self.maximum = math.inf, -math.inf
        self.mean = self.l1 = self.l2 = self._squares = 0.0

    def take(self, block: Floats) -> None:
        finite = np.isfinite(block)
        if not finite.all():
            self.nan += int(np.count_nonzero(np.isnan(block)))
            self.positive += int(np.count_nonzero(block == math.inf))
            self.negative += int(np.count_nonzero(block == -math.inf))
            block = block[finite]
        if not block.size:
            return
        self.zero += block.size - int(np.count_nonzero(block))
        lowest, highest = float(block.min()), float(block.max())
        self.minimum, self.maximum = min(self.minimum, lowest), max(self.maximum, highest)
        scale = max(-lowest, highest)
        scale = scale if scale > _HUGE or 0 < scale < 1 / _HUGE else 1.0
        scaled = block if scale == 1.0 else block / scale
        self.l1 = _capped(self.l1 + _capped(scale * float(np.abs(scaled).sum())))
        self.l2 = _capped(math.hypot(self.l2, _capped(scale * math.sqrt(float(np.dot(scaled, scaled))))))
        self._join(scaled, scale)

    def _join(self, scaled: Floats, scale: float) -> None:
        mean = float(scaled.mean())
        centred = scaled - mean
        spread = scale * math.sqrt(float(np.dot(centred, centred)))
        total = self.count + scaled.size
        step = scale * mean - self.mean
        share = scaled.size / total
        between = abs(step) * math.sqrt(self.count * share)
        self._squares = _capped(math.hypot(self._squares, spread, between))
        self.mean = self.mean * (1 - share) + scale * mean * share
        self.count = total

    def std(self) -> float:
        return self._squares / math.sqrt(self.count) if self.count else 0.0


def _quantiles(ranked: Floats) -> tuple[float, ...]:
    finite = np.sort(ranked[np.isfinite(ranked)])
    if not finite.size:
        return (0.0,) * len(LEVELS)
    # The nearest element, not one between two: it exists, and no sum can overflow.
    return tuple(float(finite[round(level * (finite.size - 1))]) for level in LEVELS)


def _wide(block: Any) -> Floats:
    with np.errstate(invalid="ignore"):  # signalling NaN
        wide: Floats = block.astype(np.float64)
    return wide


def _capped(value: float) -> float:
    """Sums of finite numbers stay finite."""
    return min(value, float(np.finfo(np.float64).max))


def _over(difference: float, base: float) -> float:
    if difference == 0:
        return 0.0
    return difference / base if base > 0 else math.inf
