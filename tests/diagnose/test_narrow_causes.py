"""Causes where one model is meant to compute in a narrower dtype than the other: the same, and never the dtype."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import padiff
from padiff.diagnose.causes import explain
from tests.diagnose.faults import FAULTS, agrees, scene
from tests.twins import after, batch, net

NARROW = np.dtype(ml_dtypes.bfloat16)
SPACING = 2.0**-7
CLOSE = 0.02
FAINT = 0.03
"""Of base's size: less is what the dtype explains."""
UNKNOWN = ("attention_looks_besides",)


def rms(values: Any) -> float:
    return float(np.sqrt(np.mean(np.square(values.astype(np.float64))))) if values.size else 0.0


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", [name for name in FAULTS if name not in UNKNOWN])
def test_faults_in_a_narrower_model(name: str, seed: int) -> None:
    causes, maker = FAULTS[name]
    rng = np.random.default_rng(seed)
    made = scene(maker(rng), rng)
    if made.found.dtype != np.float32 or made.phase == "weight":
        pytest.skip("no tensor that a dtype would round")
    found = made.found.astype(NARROW)
    finite = all(np.isfinite(one).all() for one in (made.expected, made.found))
    alike = found.shape == made.expected.shape and finite
    if alike and rms(made.expected - made.found) < FAINT * rms(made.expected):
        pytest.skip("the dtype explains as much")
    weights = {k: v.astype(NARROW) if v.dtype == np.float32 else v for k, v in made.raw_weights.items()}
    told = explain(replace(made, found=found, raw_weights=weights, agrees=partial(agrees, close=CLOSE), narrow=SPACING))
    assert {cause.name for cause in told[:3]} & causes if causes else not told, "\n".join(map(str, told))


def no_bias(raw: Any) -> None:
    layer = raw.blocks[1].fc2
    layer.forward = lambda x: torch.nn.functional.linear(x, layer.weight)


def turned(raw: Any) -> None:
    layer = raw.blocks[0].two
    layer.forward = lambda x: torch.nn.functional.linear(x, layer.weight.t(), layer.bias)


BUGS: dict[str, tuple[Callable[[Any], object], str, str]] = {
    "eps": (lambda raw: setattr(raw.blocks[1].norm, "eps", 0.5), "blocks.1.norm", "eps"),
    "bias": (no_bias, "blocks.1.fc2", "missing bias"),
    "transposed": (turned, "blocks.0.two", "transposed weight"),
    "residual": (lambda raw: setattr(raw.blocks[2], "residual", False), "blocks.2", "residual"),
    "scale": (lambda raw: after(raw.blocks[1].fc1, lambda out: out * 1.5), "blocks.1.fc1", "scale"),
}


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.bfloat16), (torch.float64, torch.float32)], ids=str)
@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_beside_another_dtype(bug: str, dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    plant, path, cause = BUGS[bug]
    base, raw = (net("torch").to(dtype) for dtype in dtypes)
    plant(raw)
    x = torch.as_tensor(batch())
    found = padiff.compare(base, raw, tuple(padiff.Inputs(x.to(dtype)) for dtype in dtypes)).divergence
    assert found is not None and (found.raw_path, found.phase) == (path, "forward")
    assert found.causes[0].name == cause, found.causes
    assert all(one.name != "precision" for one in found.causes), found.causes
