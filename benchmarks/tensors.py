"""How fast two arrays are compared, in bytes of both per second."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from benchmarks.rows import Row, Target
from padiff.compare.arrays import compare_arrays
from padiff.records import Tolerance

FAST = Target(">= 8 GB/s", ">= 8 GB/s")
OPEN = Target("-", "-")
MEAN = Tolerance(1e-2, 1e-2)
"""The mode of ``auto_diff`` unless asked otherwise."""
MIB = 1024 * 1024


def run(repeat: int, toy: bool) -> list[Row]:
    side = 64 if toy else 2048
    rows = [_copy(side, repeat)]
    for name, base, raw, target in _pairs(side):
        rate = _rate(lambda b=base, r=raw: compare_arrays(b, r, MEAN), 2 * base.nbytes, repeat)
        rows.append(Row("compare_arrays", name, f"{rate:.1f} GB/s", target, f"{base.nbytes / MIB:.2f} MiB each", rate))
    small = np.ones(1024, np.float32)
    rate = _rate(lambda: compare_arrays(small, small * 1, MEAN), 1, repeat * 100)
    rows.append(
        Row("compare_arrays", "1024 x float32", f"{1e-3 / rate:.0f} us", OPEN, "fixed cost of one call", 1e-3 / rate)
    )
    return rows


def _pairs(side: int) -> list[tuple[str, Any, Any, Target]]:
    generator = np.random.default_rng(0)
    base = generator.standard_normal((side, side), dtype=np.float32)
    raw = base * np.float32(1 + 1e-6)
    part = max(side // 8, 1)
    return [
        ("float32, equal", base, base.copy(), FAST),
        ("float32, rounding apart", base, raw, FAST),
        ("float32, rounding apart, in cache", base[:part].copy(), raw[:part].copy(), FAST),
        ("float32, transposed", base, np.asfortranarray(raw), OPEN),
        ("float32, both transposed", base.T, raw.T, FAST),
        ("float64", base.astype(np.float64), raw.astype(np.float64), OPEN),
        ("float16", base.astype(np.float16), raw.astype(np.float16), OPEN),
        ("bfloat16", base.astype(ml_dtypes.bfloat16), raw.astype(ml_dtypes.bfloat16), OPEN),
        ("int64", (base * 1000).astype(np.int64), (base * 1000).astype(np.int64), OPEN),
    ]


def _copy(side: int, repeat: int) -> Row:
    source = np.ones((side, side), np.float32)
    target = np.empty_like(source)
    rate = _rate(lambda: np.copyto(target, source), 2 * source.nbytes, repeat)
    return Row("copy", "float32", f"{rate:.1f} GB/s", OPEN, "the machine itself, read and written", rate)


def _rate(work: Callable[[], Any], size: int, repeat: int) -> float:
    """Best of all repeats, in 1e9 bytes per second."""
    best = float("inf")
    for _ in range(repeat + 1):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return size / best / 1e9
