"""A function of the user that clips, steps and clears: what its optimizer does otherwise than the other is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff

X = np.random.default_rng(0).normal(size=(5, 6)).astype("float32")
BETAS = {"beta1": 0.9, "beta2": 0.95}


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = torch.nn.Linear(6, 8, bias=False), torch.nn.Linear(6, 8, bias=False)
        self.head.weight = self.inner.weight

    def forward(self, x: Any) -> Any:
        return self.head(torch.tanh(self.inner(x)) @ self.inner.weight)


class Once(paddle.nn.Layer):
    """Keeps the matrix once."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = paddle.nn.Linear(6, 8, bias_attr=False)

    def forward(self, x: Any) -> Any:
        return paddle.tanh(self.inner(x)) @ self.inner.weight.T @ self.inner.weight


def first_cause(**changed: Any) -> str | None:
    torch.manual_seed(0)
    base, raw = Tied(), Once()
    theirs = torch.optim.AdamW(base.parameters(), 1e-2, betas=(0.9, 0.95), weight_decay=0.1)

    def step() -> None:
        torch.nn.utils.clip_grad_norm_(base.parameters(), 1e-4)
        theirs.step()
        theirs.zero_grad()

    clip = paddle.nn.ClipGradByGlobalNorm(changed.pop("clip", 1e-4))
    ours = paddle.optimizer.AdamW(
        1e-2, parameters=raw.parameters(), grad_clip=clip, **{"weight_decay": 0.1, **BETAS, **changed}
    )
    found = padiff.compare(base, raw, X, loss=lambda out: (out * out).mean(), optimizers=(step, ours), steps=2)
    assert found.aligned == (found.divergence is None)
    return None if found.divergence is None else found.divergence.causes[0].name


def test_the_same_step() -> None:
    assert first_cause() is None


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"clip": 2e-4}, "gradient clipping"),
        ({"epsilon": 1e-6}, "eps"),
        ({"beta2": 0.999}, "betas"),
        ({"weight_decay": 0.01}, "weight decay"),
    ],
)
def test_what_is_otherwise_in_the_step(changed: dict[str, Any], name: str) -> None:
    assert first_cause(**changed) == name
