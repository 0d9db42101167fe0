"""Models that compute in different dtypes on purpose: what the narrower one explains is told from what it doesn't."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from benchmarks.localise.counted import ALIGNED, counting

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
    with counting(base, raw) as runs:
        result = padiff.compare(base, raw, (x, x))
    assert result.aligned, str(result)
    assert any(one.outcome.verdict == "rounding" for one in result.comparisons)
    assert sum(runs.plain()) <= sum(ALIGNED) + 1e-9


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_gradients_of_few_digits_are_made_of_bases_tensors(dtype: torch.dtype) -> None:
    """Rounding on the way explains all of a gradient at some depth, and nothing of it in one call."""
    torch.manual_seed(0)
    layers = [(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU()) for _ in range(20)]
    base = torch.nn.Sequential(*(one for layer in layers for one in layer)).to(dtype)
    raw, x = copy.deepcopy(base), torch.randn(16, 8).to(dtype)
    raw[3].weight.register_hook(lambda gradient: gradient * 1.5)
    result = padiff.compare(base, raw, x)
    assert result.divergence is not None, str(result)
    assert (result.divergence.raw_path, result.divergence.phase) == ("3", "gradient")


def _in_two_parts(self: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    rest = x[..., half:] @ self.weight[:, half:].T
    return x[..., :half] @ self.weight[:, :half].T + rest + self.bias


class Block(torch.nn.Module):
    """A residual beside two layers, over many rows."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3)
        self.fc1, self.fc2, self.norm = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8), torch.nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x).flatten(2).transpose(1, 2)
        return self.norm(x + self.fc2(torch.nn.functional.gelu(self.fc1(x))))


@pytest.mark.parametrize(("scale", "bug"), [(1e-4, False), (1e-5, False), (1e-2, False), (1e-2, True)])
def test_gradients_too_small_for_float16_are_lost_and_no_fault(scale: float, bug: bool) -> None:
    torch.manual_seed(0)
    base = Block()
    raw = copy.deepcopy(base)
    if bug:
        raw.fc1.register_full_backward_hook(lambda module, given, come: (given[0] * 1.5,))
    x = np.random.default_rng(0).standard_normal((4, 3, 20, 20)).astype("float32")
    both = padiff.Inputs(x), padiff.Inputs(x.astype("float16"))
    result = padiff.compare(base, raw.half(), both, loss=lambda out: (out.float() ** 3).mean() * scale)
    found = None if result.divergence is None else (result.divergence.raw_path, result.divergence.phase)
    assert found == (("fc1", "backward") if bug else None), str(result)


class Angles(torch.nn.Module):
    """Angles made of a buffer that is rounded, too: far positions are turned visibly further."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("speed", 10000 ** (-torch.arange(0, 1, 1 / 16)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (torch.arange(x.shape[1])[:, None] * self.speed.float()).cos().to(x.dtype)


class Turning(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.angles, self.last = torch.nn.Linear(16, 16), Angles(), torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x) * self.angles(x))


@pytest.mark.parametrize("bug", [False, True])
def test_a_buffer_that_is_rounded_moves_what_is_made_of_it(bug: bool) -> None:
    torch.manual_seed(0)
    base = Turning()
    raw = copy.deepcopy(base).half()
    if bug:
        raw.angles.register_forward_hook(lambda module, given, made: made * 1.1)
    x = np.random.default_rng(0).standard_normal((2, 128, 16)).astype("float32")
    result = padiff.compare(base, raw, (padiff.Inputs(x), padiff.Inputs(x.astype("float16"))))
    found = None if result.divergence is None else (result.divergence.raw_path, result.divergence.phase)
    assert found == (("angles", "forward") if bug else None), str(result)
