"""Query, key and value of attention are found by what base calls them, where raw's names say nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
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


KV, GROUP = 2, 2
"""Heads of keys, and queries for each."""


class Grouped(torch.nn.Module):
    """Fewer keys than queries, turned by tables of cosines and sines that the model makes."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.o_proj = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)
        self.k_proj, self.v_proj = torch.nn.Linear(32, 16), torch.nn.Linear(32, 16)

    def forward(self, x: Any, cos: Any, sin: Any) -> Any:
        q, k, v = (
            part(x).unflatten(-1, (-1, EACH)).transpose(1, 2) for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = (t * cos + torch.cat([-t[..., 4:], t[..., :4]], -1) * sin for t in (q, k))
        k, v = (t.repeat_interleave(GROUP, 1) for t in (k, v))
        scores = q @ k.transpose(-1, -2) / EACH**0.5
        scores = scores + torch.full((x.shape[1],) * 2, -1e9).triu(1)
        return self.o_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Decoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.attn = torch.nn.Linear(32, 32), Grouped()

    def forward(self, x: Any) -> Any:
        angles = torch.arange(x.shape[1])[:, None] / 1e4 ** (torch.arange(4) / 4)
        angles = torch.cat([angles, angles], -1)
        return self.attn(self.first(x), angles.cos(), angles.sin())


class ByGroup(paddle.nn.Layer):
    """Of each group its queries, its key and its value; turned by angles."""

    def __init__(self, wrong: str) -> None:
        super().__init__()
        self.wqkv, self.wo, self.wrong = paddle.nn.Linear(32, 64), paddle.nn.Linear(32, 32), wrong

    def forward(self, x: Any, angles: Any) -> Any:
        batch, length, wrong = *x.shape[:2], self.wrong
        cut = self.wqkv(x).reshape([batch, length, KV, GROUP + 2, EACH])
        q, k, v = cut[:, :, :, :GROUP], cut[:, :, :, GROUP], cut[:, :, :, GROUP + 1]
        if wrong == "key and value":
            k, v = v, k
        q = (q.transpose([0, 1, 3, 2, 4]) if wrong == "queries" else q).reshape([batch, length, KV * GROUP, EACH])
        cos, sin = paddle.cos(angles)[:, None], paddle.sin(angles)[:, None]
        q, k = (self.turned(t, cos, sin) for t in (q, k))
        k = paddle.tile(k, [1, 1, GROUP, 1]) if wrong == "keys" else paddle.repeat_interleave(k, GROUP, axis=2)
        v = paddle.repeat_interleave(v, GROUP, axis=2)
        scores = paddle.einsum("blhd,bmhd->bhlm", q, k) / EACH**0.5
        place = paddle.arange(length)
        kept = place[:, None] + int(wrong == "mask") >= place[None]
        scores = paddle.where(kept, scores, paddle.full_like(scores, -1e9))
        made = paddle.einsum("bhlm,bmhd->blhd", paddle.nn.functional.softmax(scores), v)
        return self.wo(made.flatten(2))

    def turned(self, x: Any, cos: Any, sin: Any) -> Any:
        if self.wrong == "pairs":
            one, other = x[..., 0::2], x[..., 1::2]
            return paddle.stack([one * cos - other * sin, other * cos + one * sin], -1).flatten(-2)
        one, other = x.chunk(2, -1)
        return paddle.concat([one * cos - other * sin, other * cos + one * sin], -1)


class ByGroupDecoder(paddle.nn.Layer):
    def __init__(self, wrong: str) -> None:
        super().__init__()
        self.first, self.attn, self.wrong = paddle.nn.Linear(32, 32), ByGroup(wrong), wrong

    def forward(self, x: Any) -> Any:
        base = 700.0 if self.wrong == "base" else 1e4
        places = paddle.arange(x.shape[1]).astype("float32")
        return self.attn(self.first(x), places[:, None] / base ** (paddle.arange(4).astype("float32") / 4))


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ("", ""),
        ("mask", "mask off by one"),
        ("pairs", "rope pairing"),
        ("base", "rope base"),
        ("key and value", "head order"),
        ("queries", "head order"),
        ("keys", "head order"),
    ],
)
def test_a_projection_fused_group_by_group(wrong: str, name: str) -> None:
    torch.manual_seed(0)
    x = np.random.default_rng(0).normal(size=(2, 7, 32)).astype("float32")
    result = padiff.compare(Decoder(), ByGroupDecoder(wrong), x)
    if not wrong:
        assert result.aligned, str(result)
        return
    assert result.divergence is not None
    assert result.divergence.raw_path == "attn", str(result)
    assert name in [cause.name for cause in result.divergence.causes], str(result)
