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


NARROW = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("factor", [1.05, 1.02, 0.98])
def test_some_per_cent_are_seen_where_both_have_few_digits(dtype: torch.dtype, factor: float) -> None:
    """Rounding of all that comes before it moves this output further than the fault does."""
    base, x = encoder().to(dtype), inputs(dtype)[1]
    raw = copy.deepcopy(base)
    raw.layers[1].linear2.register_forward_hook(lambda module, args, output: output * factor)
    result = padiff.compare(base, raw, (x, x))
    assert result.divergence is not None, str(result)
    assert result.divergence.raw_path == "layers.1.linear2"
    assert result.divergence.causes[0].name == "scale"


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_what_both_round_otherwise_is_none(dtype: torch.dtype) -> None:
    """Products summed up in parts: another order, as another kernel would have."""
    base, x = encoder().to(dtype), inputs(dtype)[1]
    raw = copy.deepcopy(base)
    for layer in raw.layers:
        layer.linear2.forward = _in_two_parts.__get__(layer.linear2)  # type: ignore[method-assign]
    result = padiff.compare(base, raw, (x, x))
    assert result.aligned, str(result)
    assert any(one.outcome.verdict == "rounding" for one in result.comparisons)


def _in_two_parts(self: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    rest = x[..., half:] @ self.weight[:, half:].T
    return x[..., :half] @ self.weight[:, :half].T + rest + self.bias
