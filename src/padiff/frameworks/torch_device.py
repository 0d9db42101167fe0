"""Tensors on an accelerator, measured and moved where they lie: the host is told a few numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.modules.conv import _ConvNd

from padiff.frameworks.cancelling_ops import Unheard
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
    with torch.no_grad(), Unheard():
        pairs = zip(_blocks(base), _blocks(raw), strict=True)
        rows = torch.stack([_sums(one, other, work, rtol) for one, other in pairs]).cpu().numpy().astype(np.float64)
    if not np.isfinite(rows).all():
        return None
    gap_rms, base_rms, raw_rms = (math.hypot(*rows[:, place]) / math.sqrt(size) for place in (0, 1, 2))
    gap, base_size = (float(rows[:, place].sum()) / size for place in (3, 4))
    peak, excess = float(rows[:, 5].max()), float(rows[:, 6].max())
    return Measured(size, peak, gap, base_size, gap_rms, base_rms, raw_rms, excess)


def _blocks(tensor: Any) -> Sequence[Any]:
    flat = tensor.detach().reshape(-1)
    return flat.split(BLOCK) if len(flat) > BLOCK else (flat,)


def _sums(base: Any, raw: Any, work: Any, rtol: float | None) -> Any:
    """Norms of the gap, of base and of raw; sums of the first two; the gap's peak, and the largest excess.

    All three in one tensor: starting a kernel takes longer than it runs."""
    norm = torch.linalg.vector_norm
    both = torch.empty((3, len(base)), dtype=work, device=base.device)
    gap, size = both[0], both[1]
    size.copy_(base)
    both[2].copy_(raw)
    torch.sub(both[2], size, out=gap)
    peak = norm(gap, math.inf, dim=0, keepdim=True)
    excess = peak if rtol is None else (gap.abs() - rtol * size.abs()).max().reshape(1)
    return torch.cat((norm(both, 2, dim=1), norm(both[:2], 1, dim=1), peak, excess))


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


def multiplies_in_tf32(model: Any) -> bool:
    """Whether some float32 products of a model on a GPU may be made of numbers cut to ten bits."""
    convolves = any(isinstance(module, (_ConvNd, torch.nn.RNNBase)) for module in model.modules())
    return _allows(torch.backends.cuda.matmul) or (convolves and _allows(torch.backends.cudnn))


def _allows(backend: Any) -> bool:
    try:
        return bool(backend.allow_tf32)
    except RuntimeError:  # asked for in the newer way, kind by kind
        parts = (backend, getattr(backend, "conv", None), getattr(backend, "rnn", None))
        return any(getattr(part, "fp32_precision", "") == "tf32" for part in parts)
