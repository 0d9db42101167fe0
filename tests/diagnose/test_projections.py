"""Query, key and value of attention are found by what base calls them, where raw's names say nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import torch

import padiff

HEADS, EACH = 2, 8
X = np.random.default_rng(0).normal(size=(2, 7, HEADS * EACH)).astype("float32")


class Separate(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            torch.nn.Linear(HEADS * EACH, HEADS * EACH) for _ in "qkvo"
        )
        self.q_norm, self.k_norm = torch.nn.LayerNorm(EACH), torch.nn.LayerNorm(EACH)

    def forward(self, x: Any) -> Any:
        q, k, v = (part(x).unflatten(-1, (HEADS, EACH)) for part in (self.q_proj, self.k_proj, self.v_proj))
        q, k, v = (one.transpose(1, 2) for one in (self.q_norm(q), self.k_norm(k), v))
        made = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return self.o_proj(made.transpose(1, 2).flatten(2))


class Fused(paddle.nn.Layer):
    """One projection for all, and a list of norms."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        width = HEADS * EACH
        self.wqkv, self.wo, self.scale = paddle.nn.Linear(width, 3 * width), paddle.nn.Linear(width, width), scale
        self.norms = paddle.nn.LayerList([paddle.nn.LayerNorm(EACH), paddle.nn.LayerNorm(EACH)])

    def forward(self, x: Any) -> Any:
        q, k, v = self.wqkv(x).reshape([*x.shape[:2], 3, HEADS, EACH]).unbind(2)
        q, k, v = (one.transpose([0, 2, 1, 3]) for one in (self.norms[0](q), self.norms[1](k), v))
        scores = paddle.matmul(q, k, transpose_y=True) * self.scale
        made = paddle.matmul(paddle.nn.functional.softmax(scores), v)
        return self.wo(made.transpose([0, 2, 1, 3]).flatten(2))


def test_a_list_of_norms_after_a_fused_projection() -> None:
    torch.manual_seed(0)
    base = torch.nn.Sequential(Separate())
    assert padiff.compare(base, paddle.nn.Sequential(Fused(EACH**-0.5)), X).aligned
    result = padiff.compare(base, paddle.nn.Sequential(Fused(EACH**-1.0)), X)
    assert result.divergence is not None
    assert result.divergence.raw_path == "0", str(result)
    cause = result.divergence.causes[0]
    assert cause.name == "scale"
    assert "base attends with 2 heads" in cause.evidence, str(cause)
