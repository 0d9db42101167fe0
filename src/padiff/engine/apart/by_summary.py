"""Two tensors of which a dump holds statistics or a digest, compared by these."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from padiff.compare.kinds import Kind, kind_of
from padiff.compare.tolerance import allowed_error
from padiff.engine.apart.stored import dtype_named
from padiff.records import Numbers, Outcome, Tolerance, Value
from padiff.store import Stats, StoredValue

QUANTILES = 10.0
"""A quantile is one element, which may be that much further off than all are on average."""


def judged(base: Value, raw: Value, tolerance: Tolerance, *, turned: bool = False) -> Outcome:
    """By what both sides hold at least."""
    assert isinstance(base, StoredValue) and isinstance(raw, StoredValue)
    if "hash" in (base.kind, raw.kind):
        return by_digest(base, raw)
    return by_statistics(base.statistics(), raw.statistics(), tolerance, turned=turned)


def by_digest(base: StoredValue, raw: StoredValue) -> Outcome:
    """Equal bit by bit, or not."""
    forms = [f"{value.dtype}{list(value.shape)}" for value in (base, raw)]
    if base.shape != raw.shape:
        return Outcome("different", "shape", f"base is {forms[0]}, raw {forms[1]}")
    if base.dtype != raw.dtype:
        return Outcome("different", "dtype", f"base is {forms[0]}, raw {forms[1]}")
    if base.digest() == raw.digest():
        return Outcome("equal", None, "equal bit by bit")
    return Outcome("different", "values", "not equal bit by bit; digests don't say by how much")


def by_statistics(base: Stats, raw: Stats, tolerance: Tolerance, *, turned: bool = False) -> Outcome:
    """How far two tensors are apart at least; ``turned``: their elements come in different orders."""
    if base.digest == raw.digest and base.shape == raw.shape and base.dtype == raw.dtype:
        return Outcome("equal", None, "equal bit by bit")
    if base.size != raw.size and not repeated(base.shape, raw.shape):
        return Outcome("different", "shape", f"base is {list(base.shape)}, raw {list(raw.shape)}")
    kind = kind_of(dtype_named(base.dtype))
    if base.dtype != raw.dtype and not tolerance.narrow:
        return _of_dtypes(base, raw, kind, turned)
    counts = ("nan", "positive_infinite", "negative_infinite")
    if any(getattr(base, name) * raw.size != getattr(raw, name) * base.size for name in counts):
        return Outcome("different", "nonfinite", "NaN or infinities on one side that the other does not have")
    rms = base.l2 / math.sqrt(base.finite) if base.finite else 0.0
    apart = _least(base, raw, rms, ordered=not turned and base.shape == raw.shape)
    allowed = _allowed(kind, tolerance, rms, base)
    mean = base.l1 / max(base.finite, 1)
    cosine = max(-1.0, 1.0 - 0.5 * (apart / rms) ** 2) if rms else 1.0
    numbers = Numbers(base.size, apart, apart, mean, apart, rms, cosine)
    relative = f"{apart / rms:.1e} of base's size" if rms else f"{apart:.1e}"
    if apart <= allowed:
        return Outcome("rounding", None, f"statistics apart by {relative}", numbers, allowed, tolerance.predicted)
    message = f"statistics apart by at least {relative}, allowed {allowed:.1e}"
    return Outcome("different", "values", message, numbers, allowed, tolerance.predicted)


def repeated(base: Sequence[int], raw: Sequence[int]) -> bool:
    """Whether one of two tensors may be the other, repeated along axes of which it has one element."""
    one, other = sorted((base, raw), key=math.prod)
    return len(one) == len(other) and all(a in (1, b) for a, b in zip(one, other, strict=True)) and 0 not in other


def _of_dtypes(base: Stats, raw: Stats, kind: Kind, turned: bool) -> Outcome:
    """Different in any case; of whole numbers it is told how far they are apart."""
    told = f"base is {base.dtype}, raw {raw.dtype}"
    if kind.family != "int" or kind_of(dtype_named(raw.dtype)).family != "int":
        return Outcome("different", "dtype", told)
    rms = base.l2 / math.sqrt(base.finite) if base.finite else 0.0
    apart = _least(base, raw, rms, ordered=not turned and base.shape == raw.shape)
    numbers = Numbers(base.size, apart, apart, base.l1 / max(base.finite, 1), apart, rms, 1.0)
    return Outcome("different", "dtype", told, numbers)


def _least(base: Stats, raw: Stats, rms: float, *, ordered: bool) -> float:
    """A lower bound of the root mean square error, near it where elements were sampled."""
    root = math.sqrt(base.finite) if base.finite else 1.0
    raw_l2 = raw.l2 if raw.size == base.size else raw.l2 * math.sqrt(base.size / raw.size)
    found = [abs(raw_l2 - base.l2) / root, abs(raw.mean - base.mean)]
    extremes = [abs(raw.minimum - base.minimum), abs(raw.maximum - base.maximum)]
    if ordered and len(base.sample) == len(raw.sample) and base.sample:
        one, other = np.array(base.sample), np.array(raw.sample)
        both = np.isfinite(one) & np.isfinite(other)
        if both.any():
            found.append(float(np.sqrt(np.mean((other[both] - one[both]) ** 2))))
        extremes += [abs(r - b) for b, r in zip(base.quantiles, raw.quantiles, strict=True)]
    found.append(max(extremes, default=0.0) / QUANTILES)
    return max(found)


def _allowed(kind: Kind, tolerance: Tolerance, rms: float, base: Stats) -> float:
    if tolerance.mode == "auto":
        return float(allowed_error(kind, tolerance, rms))
    size = base.l1 / max(base.finite, 1) if tolerance.mode == "mean" else rms
    return tolerance.atol + tolerance.rtol * size
