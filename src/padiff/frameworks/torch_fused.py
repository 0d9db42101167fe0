"""All sums over two tensors on an accelerator in one kernel, where triton is at hand: both are read once.

Imported by ``torch_device`` when a tensor on an accelerator turns up; torch brings triton along where it can use it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from padiff.records import Array

COLUMNS = 7
"""Squares of the gap, of base and of raw; sums of the first two; the gap's peak, and the largest excess."""
AT_ONCE = 1024
"""Elements that a program takes in one go."""
PROGRAMS = 264
"""At most so many side by side, each of which leaves a row."""

Sums = Callable[[Any, Any, "float | None"], Array]
"""Of two flat tensors: a row for every program, in float64, so that no square is too small or too large."""


@triton.jit  # type: ignore[untyped-decorator]
def _kernel(base_at, raw_at, rows_at, size, coarse, fine, at_once: tl.constexpr, columns: tl.constexpr):  # type: ignore[no-untyped-def]
    program = tl.program_id(0).to(tl.int64)
    rtol = coarse.to(tl.float64) + fine.to(tl.float64)
    stride = tl.num_programs(0).to(tl.int64) * at_once
    gap2 = tl.zeros([at_once], tl.float64)
    base2 = tl.zeros([at_once], tl.float64)
    raw2 = tl.zeros([at_once], tl.float64)
    gap1 = tl.zeros([at_once], tl.float64)
    base1 = tl.zeros([at_once], tl.float64)
    peak = tl.zeros([at_once], tl.float64)
    excess = tl.full([at_once], float("-inf"), tl.float64)
    for start in range(program * at_once, size, stride):
        places = start + tl.arange(0, at_once)
        inside = places < size
        base = tl.load(base_at + places, mask=inside, other=0.0).to(tl.float64)
        raw = tl.load(raw_at + places, mask=inside, other=0.0).to(tl.float64)
        gap = tl.abs(raw - base)
        length = tl.abs(base)
        gap2 += gap * gap
        base2 += length * length
        raw2 += raw * raw
        gap1 += gap
        base1 += length
        peak = tl.maximum(peak, gap)
        excess = tl.maximum(excess, tl.where(inside, gap - rtol * length, float("-inf")))
    row = rows_at + program * columns
    tl.store(row, tl.sum(gap2, axis=0))
    tl.store(row + 1, tl.sum(base2, axis=0))
    tl.store(row + 2, tl.sum(raw2, axis=0))
    tl.store(row + 3, tl.sum(gap1, axis=0))
    tl.store(row + 4, tl.sum(base1, axis=0))
    tl.store(row + 5, tl.max(peak, axis=0))
    tl.store(row + 6, tl.max(excess, axis=0))


def _sums(base: Any, raw: Any, rtol: float | None) -> Array:
    size = base.numel()
    programs = min(PROGRAMS, triton.cdiv(size, AT_ONCE))
    rows = torch.empty((programs, COLUMNS), dtype=torch.float64, device=base.device)
    coarse = float(np.float32(rtol or 0.0))  # numbers are given to kernels in float32, so it is given in two parts
    here = base.device.index == torch.cuda.current_device()
    with nullcontext() if here else torch.cuda.device(base.device):
        _kernel[(programs,)](base, raw, rows, size, coarse, (rtol or 0.0) - coarse, at_once=AT_ONCE, columns=COLUMNS)
    return rows.cpu().numpy()


def sums_on(kind: str) -> Sums | None:
    """What sums up on devices of a kind; None where triton has no compiler, or makes something else of a small case."""
    if kind != "cuda":
        return None
    try:
        base, raw = torch.full((5000,), 2.0, device=kind), torch.full((5000,), 3.0, device=kind)
        rows = _sums(base, raw, 0.25)
    except Exception:  # whatever a compiler that is not set up may raise: sums are made kernel by kernel then
        return None
    added = [float(one) for one in rows[:, :5].sum(axis=0)]
    right = added == [5e3, 2e4, 4.5e4, 5e3, 1e4] and rows[:, 5:].max(axis=0).tolist() == [1.0, 0.5]
    return _sums if right else None
