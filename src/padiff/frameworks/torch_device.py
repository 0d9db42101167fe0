"""Tensors on an accelerator, measured and moved where they lie: the host is told a few numbers."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.modules.conv import _ConvNd

from padiff.frameworks.cancelling_ops import Unheard
from padiff.frameworks.protocol import Measured
from padiff.records import Array, Direction, Moves

BLOCK = 1 << 24
"""Elements taken at once: what is made on the way takes some bytes for each."""
Fused = Callable[[Any, Any, "float | None"], Array]
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
    fused = _fused(base.device.type)
    with torch.no_grad(), Unheard(), torch._C.DisableTorchFunction():
        if fused is not None:
            rows = fused(base.detach().reshape(-1), raw.detach().reshape(-1), rtol)
        else:
            work = torch.float64 if torch.float64 in (base.dtype, raw.dtype) else torch.float32
            pairs = zip(_blocks(base), _blocks(raw), strict=True)
            rows = torch.stack([_sums(one, other, work, rtol) for one, other in pairs]).cpu().numpy()
            rows = rows.astype(np.float64)
            rows[:, :3] *= rows[:, :3]
    gap2, base2, raw2, gap1, base1, _, _ = np.add.reduce(rows, axis=0).tolist()
    peak, excess = np.maximum.reduce(rows[:, 5:], axis=0).tolist()
    sums = gap2, base2, raw2, gap1, base1, peak, excess
    if not all(map(math.isfinite, sums)):
        return None
    gap_rms, base_rms, raw_rms = (math.sqrt(one / size) for one in sums[:3])
    return Measured(size, peak, gap1 / size, base1 / size, gap_rms, base_rms, raw_rms, peak if rtol is None else excess)


@functools.cache
def _fused(kind: str) -> Fused | None:
    """All sums in one kernel, where triton is there to make it: starting several takes longer than they run."""
    if importlib.util.find_spec("triton") is None:
        return None
    made: Fused | None = importlib.import_module("padiff.frameworks.torch_fused").sums_on(kind)
    return made


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


def multiplied(tensor: Any, moves: Callable[[], Moves]) -> Any | None:
    """A copy, its numbers moved; None on the host. The host is told nothing: whether all are whole is settled there."""
    if not elsewhere(tensor):
        return None
    work = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    how = moves()
    period = how.period
    with torch.no_grad():
        repeated = _lent(how, tensor.device)[how.begin : how.begin + period]
        flat = tensor.detach().reshape(-1)
        moved = torch.empty_like(flat)
        whole = torch.ones((), dtype=torch.bool, device=tensor.device)
        rows = max(1, BLOCK // period) * period
        for start in range(0, flat.numel(), rows):
            block = flat[start : start + rows].to(work)
            full = block.numel() // period * period
            found = torch.empty_like(block)
            torch.mul(block[:full].view(-1, period), repeated, out=found[:full].view(-1, period))
            torch.mul(block[full:], repeated[: block.numel() - full], out=found[full:])
            if how.least:
                found = torch.where(found.abs() < how.coarse, (found / how.least).round() * how.least, found)
            small = block.abs() < how.largest
            if how.exact:
                whole &= ((block == block.round()) | ~small).all()
            moved[start : start + rows] = torch.where(small, found, block)
        return (torch.where(whole, flat, moved) if how.exact else moved).view(tensor.shape)


def _lent(moves: Moves, device: Any) -> Any:
    """The factors on a device, uploaded once."""
    if device not in moves.lent:
        moves.lent[device] = torch.from_numpy(moves.factors).to(device)
    return moves.lent[device]


def spread(direction: Direction, like: Any) -> Any:
    """A direction as a tensor where another lies, of its dtype."""
    count = math.prod(direction.shape)
    if not elsewhere(like) or count <= len(direction.drawn):
        array = direction.spread
        return torch.from_numpy(array if array.flags.writeable else np.array(array)).to(like)  # else torch warns
    drawn = torch.from_numpy(direction.drawn).to(like)
    return drawn.repeat(-(-count // len(drawn)))[:count].view(direction.shape)


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
