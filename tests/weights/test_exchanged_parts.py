"""A layer of the framework's in which something else stands in the place of a part is what its parts are."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch
from torch import nn

import padiff

WIDTH, HEADS = 12, 3


class TorchAdapter(nn.Module):
    def __init__(self, around: nn.Linear) -> None:
        super().__init__()
        self.base_layer, self.scale = around, 2.0
        self.lora_A, self.lora_B = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)

    def forward(self, x: Any) -> Any:
        return self.base_layer(x) + self.lora_B(self.lora_A(x)) * self.scale


class PaddleAdapter(paddle.nn.Layer):
    def __init__(self, around: Any) -> None:
        super().__init__()
        self.base_layer, self.scale = around, 2.0
        self.lora_A = paddle.nn.Linear(WIDTH, 2, bias_attr=False)
        self.lora_B = paddle.nn.Linear(2, WIDTH, bias_attr=False)

    def forward(self, x: Any) -> Any:
        return self.base_layer(x) + self.lora_B(self.lora_A(x)) * self.scale


class Attention(nn.Module):
    """Written out, as other libraries have it."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.output = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        parts = (self.query(x), self.key(x), self.value(x))
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        mixed = torch.softmax(q @ k.transpose(-1, -2) * (WIDTH // HEADS) ** -0.5, -1) @ v
        return self.output(mixed.transpose(1, 2).flatten(2))


def models(*adapted: str) -> tuple[Any, Any]:
    torch.manual_seed(0)
    base, raw = nn.Sequential(Attention(), Attention()), paddle.nn.Sequential()
    for place in range(2):
        layer = paddle.nn.MultiHeadAttention(WIDTH, HEADS)
        raw.add_sublayer(str(place), layer)
        for name in adapted:
            setattr(base[place], name, TorchAdapter(getattr(base[place], name)))
            short = f"{name[0]}_proj"
            setattr(layer, short, PaddleAdapter(getattr(layer, short)))
    return base, raw


@pytest.mark.parametrize("turned", [False, True])
def test_adapters_in_an_attention_of_the_frameworks(turned: bool) -> None:
    x = np.random.default_rng(0).normal(size=(2, 5, WIDTH)).astype("float32")
    pair = models("query", "value")
    result = padiff.compare(*(reversed(pair) if turned else pair), x)
    assert result.aligned, str(result)
    assert not [note for note in result.notes if "filled otherwise" in note]
    pair[1][1].v_proj.scale = 3.0
    found = padiff.compare(*(reversed(pair) if turned else pair), x).divergence
    assert found is not None
    assert {found.base_path, found.raw_path} == {"1.value", "1.v_proj"}
