"""Models that compute in different dtypes on purpose: what the narrower one explains is told from what it doesn't."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import padiff


def encoder() -> torch.nn.Module:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(48, 4, 96, batch_first=True, dropout=0.0)
    return torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()


def inputs(dtype: torch.dtype) -> tuple[tuple[torch.Tensor], tuple[torch.Tensor]]:
    x = torch.from_numpy(np.random.default_rng(1).standard_normal((2, 11, 48)).astype("float32"))
    return (x,), (x.to(dtype),)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("weights", ["copy", "keep"])
def test_another_width_is_explained_by_precision(dtype: torch.dtype, weights: str) -> None:
    base = encoder()
    raw = copy.deepcopy(base).to(dtype)
    result = padiff.compare(base, raw, inputs(dtype), weights=weights)
    assert result.aligned, str(result)
    verdicts = {one.outcome.verdict for one in result.comparisons}
    assert "different" not in verdicts
    assert ("precision" in verdicts) is (dtype != torch.float64)
    assert any("precision" in note for note in result.notes) is (dtype != torch.float64)


def test_what_the_narrower_dtype_does_not_explain_is_found() -> None:
    base = encoder()
    raw = copy.deepcopy(base).to(torch.bfloat16)
    with torch.no_grad():
        raw.layers[1].linear1.weight.mul_(1.5)
    result = padiff.compare(base, raw, inputs(torch.bfloat16), weights="keep")
    assert not result.aligned
    assert result.divergence is not None
    assert result.divergence.raw_path == "layers.1.linear1"


def test_one_layer_in_another_dtype_is_still_a_difference() -> None:
    base = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 4))
    raw = copy.deepcopy(base)
    raw[1].register_forward_hook(lambda module, args, output: output.double())
    result = padiff.compare(base, raw, torch.ones(3, 6))
    assert result.divergence is not None
    assert result.divergence.raw_path == "1"
    assert result.divergence.comparison.outcome.reason == "dtype"
