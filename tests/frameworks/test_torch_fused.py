"""All sums over two tensors in one kernel, which needs a GPU and triton; what is made of its rows needs neither."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
import torch

from padiff.frameworks import torch_device

ON_GPU = torch.cuda.is_available() and importlib.util.find_spec("triton") is not None


def rows_of(base: Any, raw: Any, rtol: float | None) -> np.ndarray:
    """What the kernel's programs leave, one for every 100 elements."""
    one, other = (tensor.double().numpy() for tensor in (base, raw))
    found = []
    for start in range(0, len(one), 100):
        b, r = one[start : start + 100], other[start : start + 100]
        gap = abs(r - b)
        sums = [(gap**2).sum(), (b**2).sum(), (r**2).sum(), gap.sum(), abs(b).sum()]
        found.append([*sums, gap.max(), (gap - (rtol or 0.0) * abs(b)).max()])
    return np.array(found)


def elements(dtype: Any, device: str, scale: float = 1.0) -> tuple[Any, Any]:
    torch.manual_seed(3)
    base = (scale * torch.randn(70, 61)).to(dtype)
    return base.to(device), (base * 1.01).to(dtype).to(device)


def check(base: Any, raw: Any, rtol: float | None) -> None:
    found = torch_device.measure(base, raw, rtol)
    assert found is not None
    one, other = base.double().cpu(), raw.double().cpu()
    gap = (other - one).abs()
    expected = {
        "peak": gap.max(),
        "gap_mean": gap.mean(),
        "base_mean": one.abs().mean(),
        "gap_rms": gap.square().mean().sqrt(),
        "base_rms": one.square().mean().sqrt(),
        "raw_rms": other.square().mean().sqrt(),
        "excess": (gap - (rtol or 0.0) * one.abs()).max(),
    }
    for name, value in expected.items():
        assert getattr(found, name) == pytest.approx(float(value), rel=1e-9, abs=0.0), name


@pytest.mark.parametrize("rtol", [None, 1e-3])
def test_rows_of_programs_are_added_up(monkeypatch: pytest.MonkeyPatch, rtol: float | None) -> None:
    monkeypatch.setattr(torch_device, "_HOST", frozenset())
    monkeypatch.setattr(torch_device, "_fused", lambda kind: rows_of)
    base, raw = elements(torch.float32, "cpu")
    check(base, raw, rtol)
    check(base.t(), raw.t(), rtol)
    raw[3, 4] = float("nan")
    assert torch_device.measure(base, raw, rtol) is None


@pytest.mark.skipif(not ON_GPU, reason="needs a GPU and triton")
@pytest.mark.parametrize("rtol", [None, 1e-3])
@pytest.mark.parametrize("scale", [1.0, 1e-25, 1e25])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_kernel_says_what_the_elements_say(dtype: Any, scale: float, rtol: float | None) -> None:
    assert torch_device._fused("cuda") is not None
    base, raw = elements(dtype, "cuda", scale)
    check(base, raw, rtol)
    raw[3, 4] = float("nan")
    assert torch_device.measure(base, raw, rtol) is None
