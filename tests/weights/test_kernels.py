"""One author's linear layer is another's convolution: over single places, or over all that there is."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff

X = np.random.default_rng(0).normal(size=(2, 6, 4, 4)).astype("float32")
KIT = {
    "torch": (torch.nn.Module, torch.nn.Conv2d, torch.nn.Linear),
    "paddle": (paddle.nn.Layer, paddle.nn.Conv2D, paddle.nn.Linear),
}


def build(framework: str, kernels: bool) -> Any:
    """A gate over channels, then a head over the whole picture."""
    module_class, conv, linear = KIT[framework]

    class Gated(module_class):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            self.stem = conv(6, 6, 3, padding=1)
            names = ("reduce", "expand", "head") if kernels else ("squeeze", "excite", "fc")
            layers = (
                (conv(6, 3, 1), conv(3, 6, 1), conv(6, 5, 4))
                if kernels
                else (linear(6, 3), linear(3, 6), linear(6 * 4 * 4, 5))
            )
            self.names = names
            for name, layer in zip(names, layers, strict=True):
                setattr(self, name, layer)

        def forward(self, x: Any) -> Any:
            one, two, head = (getattr(self, name) for name in self.names)
            x = self.stem(x)
            gate = x.mean((2, 3)) if framework == "torch" else x.mean([2, 3])
            if kernels:
                gate = two(one(gate.reshape([2, 6, 1, 1])).tanh()).reshape([2, 6, 1, 1])
                return head(x * gate).reshape([2, 5])
            gate = two(one(gate).tanh()).reshape([2, 6, 1, 1])
            return head((x * gate).reshape([2, 96]))

    return Gated()


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("raw", ["torch", "paddle"])
@pytest.mark.parametrize("base", ["torch", "paddle"])
def test_a_kernel_fills_a_matrix_and_the_other_way_round(base: str, raw: str, kernels: bool) -> None:
    result = padiff.compare(build(base, kernels), build(raw, not kernels), X)
    assert result.aligned, str(result)
    assert result.coverage == {"calls": 1.0, "outputs": 1.0, "parameters": 1.0}


def test_a_wrong_weight_in_the_matrix_is_named() -> None:
    base, raw = build("torch", True), build("paddle", False)
    padiff.compare(base, raw, X)
    raw.excite.weight.set_value(raw.excite.weight * 1.01)
    result = padiff.compare(base, raw, X, weights="keep")
    assert result.divergence is not None
    assert (result.divergence.base_path, result.divergence.raw_path) == ("expand", "excite")
