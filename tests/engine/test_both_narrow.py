"""Both models in bfloat16 or float16: what is wrong by some per cent is seen, and what another kernel rounds is not."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

import padiff

X = np.random.default_rng(0).normal(size=(2, 9, 16)).astype("float32")


class Block(torch.nn.Module):
    def __init__(self, *, spelt: bool = False) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = torch.nn.LayerNorm(16), torch.nn.Linear(16, 48), torch.nn.Linear(16, 16)
        self.up, self.down, self.spelt = torch.nn.Linear(16, 64), torch.nn.Linear(64, 16), spelt

    def forward(self, x: Any) -> Any:
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        if self.spelt:
            made = (q @ k.transpose(-1, -2) / 8**0.5).softmax(-1, dtype=torch.float32).to(v.dtype) @ v
        else:
            made = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(made.transpose(1, 2).flatten(2))
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


def pair(dtype: torch.dtype) -> tuple[Any, Any]:
    torch.manual_seed(0)
    base = torch.nn.Sequential(*(Block() for _ in range(4))).to(dtype)
    raw = copy.deepcopy(base)
    for block in raw:
        block.spelt = True
    return base, raw


DTYPES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_another_kernel_is_no_difference(dtype: torch.dtype) -> None:
    base, raw = pair(dtype)
    result = padiff.compare(base, raw, torch.as_tensor(X).to(dtype))
    assert result.aligned, result.divergence


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("path", ["1.up", "2.down", "3.qkv", "0.out"])
def test_weights_that_are_off_by_some_per_cent(path: str, dtype: torch.dtype) -> None:
    base, raw = pair(dtype)
    weight = raw.get_parameter(f"{path}.weight")
    noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    weight.data *= (1 + 0.07 * noise).to(dtype)
    found = padiff.compare(base, raw, torch.as_tensor(X).to(dtype), weights="keep").divergence
    assert found is not None
    assert found.raw_path == path


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gradient_that_is_off_by_some_per_cent(dtype: torch.dtype) -> None:
    base, raw = pair(dtype)
    raw.get_parameter("1.up.weight").register_hook(lambda gradient: gradient * 1.1)
    found = padiff.compare(base, raw, torch.as_tensor(X).to(dtype)).divergence
    assert found is not None
    assert (found.raw_path, found.phase) == ("1.up", "gradient")
