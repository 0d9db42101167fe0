"""Tensors on an accelerator, measured and moved where they lie: the host is told a few numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from padiff.frameworks.protocol import Measured
from padiff.records import Array

BLOCK = 1 << 24
"""Elements taken at once: what is made on the way takes some bytes for each."""
_HOST = frozenset({"cpu", "meta"})
_KNOWN = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})


def elsewhere(tensor: Any) -> bool:
    """Whether a tensor of ordinary floating numbers is not on the host."""
    return tensor.device.type not in _HOST and tensor.dtype in _KNOWN and tensor.layout is torch.strided


def measure(base: Any, raw: Any, rtol: float | None) -> Measured | None:
    """Sums over two tensors of one device and shape; None where they are elsewhere, or not all finite."""
    if not (elsewhere(base) and elsewhere(raw)) or base.device != raw.device or base.shape != raw.shape:
        return None
    size = base.numel()
    if not size:
        return None
    work = torch.float64 if torch.float64 in (base.dtype, raw.dtype) else torch.float32
    with torch.no_grad():
        pairs = zip(_blocks(base.detach()), _blocks(raw.detach()), strict=True)
        rows = torch.stack([_sums(one, other, work, rtol) for one, other in pairs]).double().cpu().numpy()
    if not np.isfinite(rows).all():
        return None
    peak, excess = rows[:, 0].max(), rows[:, 1].max()
    gap, base_size = (float(rows[:, place].sum()) / size for place in (2, 3))
    gap_rms, base_rms, raw_rms = (math.hypot(*rows[:, place]) / math.sqrt(size) for place in (4, 5, 6))
    return Measured(size, float(peak), gap, base_size, gap_rms, base_rms, raw_rms, float(excess))


def _blocks(tensor: Any) -> Iterator[Any]:
    flat = tensor.reshape(-1)
    yield from flat.split(BLOCK)


def _sums(base: Any, raw: Any, work: Any, rtol: float | None) -> Any:
    norm = torch.linalg.vector_norm
    gap = raw.to(work) - base.to(work)
    found = [
        norm(gap, math.inf),
        norm(gap, 1),
        norm(base, 1, dtype=work),
        norm(gap, 2),
        norm(base, 2, dtype=work),
        norm(raw, 2, dtype=work),
    ]
    excess = found[0] if rtol is None else (gap.abs() - rtol * base.to(work).abs()).max()
    found.insert(1, excess)
    return torch.stack(found)


def multiplied(tensor: Any, factors: Callable[[], Array], largest: float) -> Any | None:
    """A copy, its numbers multiplied by factors that repeat, but for those beyond ``largest``; None on the host."""
    if not elsewhere(tensor):
        return None
    work = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    repeating = factors()
    period = len(repeating)
    with torch.no_grad():
        repeated = torch.from_numpy(np.array(repeating)).to(tensor.device, work)
        flat = tensor.detach().reshape(-1)
        moved = torch.empty_like(flat)
        rows = max(1, BLOCK // period) * period
        for start in range(0, flat.numel(), rows):
            block = flat[start : start + rows].to(work)
            whole = block.numel() // period * period
            found = torch.empty_like(block)
            torch.mul(block[:whole].view(-1, period), repeated, out=found[:whole].view(-1, period))
            torch.mul(block[whole:], repeated[: block.numel() - whole], out=found[whole:])
            moved[start : start + rows] = torch.where(block.abs() < largest, found, block)
        return moved.view(tensor.shape)


def take(target: Any, source: Any, before: Callable[[], None]) -> bool:
    """Write ``source`` into ``target`` where they differ, after ``before``; False where they are not on one device."""
    if not (elsewhere(target) and elsewhere(source)) or target.device != source.device:
        return False
    if target.dtype != source.dtype or target.shape != source.shape:
        return False
    with torch.no_grad():
        if not torch.equal(target, source):
            before()
            target.copy_(source)
    return True
