"""Raw is filled before it has run: whose norms and shortcuts are whose is told by the names of blocks, by the parts
that norms go with and by strides, where it defines them in another order than base uses its own."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import paddle
import torch

import padiff
from tests.engine.test_crossings import counted


class NamedLayer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.mix = torch.nn.LayerNorm(8), torch.nn.Linear(8, 8)
        self.ln_2, self.fc = torch.nn.LayerNorm(8), torch.nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        x = x + self.mix(self.ln_1(x))
        return x + torch.tanh(self.fc(self.ln_2(x)))


class Named(torch.nn.Module):
    """Its layers have names that count, as have their norms."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(OrderedDict((f"encoder_layer_{n}", NamedLayer()) for n in range(3)))

    def forward(self, x: Any) -> Any:
        return self.layers(x)


class ListedLayer(paddle.nn.Layer):
    """Defines its norms last."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.intermediate = paddle.nn.Linear(8, 8), paddle.nn.Linear(8, 8)
        self.layernorm_before, self.layernorm_after = paddle.nn.LayerNorm(8), paddle.nn.LayerNorm(8)

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.layernorm_before(x))
        return x + paddle.tanh(self.intermediate(self.layernorm_after(x)))


class Listed(paddle.nn.Layer):
    def __init__(self, without: int = -1) -> None:
        super().__init__()
        self.layer = paddle.nn.LayerList([ListedLayer() for _ in range(3)])
        self.without = without

    def forward(self, x: Any) -> Any:
        for number, layer in enumerate(self.layer):
            if number != self.without:
                x = layer(x)
        return x


class Decoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn, self.self_attn_layer_norm = torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)
        self.encoder_attn, self.encoder_attn_layer_norm = torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)
        self.fc1, self.fc2, self.final_layer_norm = (
            torch.nn.Linear(8, 16),
            torch.nn.Linear(16, 8),
            torch.nn.LayerNorm(8),
        )

    def forward(self, x: Any) -> Any:
        x = self.self_attn_layer_norm(x + self.self_attn(x))
        x = self.encoder_attn_layer_norm(x + self.encoder_attn(x))
        return self.final_layer_norm(x + self.fc2(torch.tanh(self.fc1(x))))


class PortedDecoder(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn, self.cross_attn = paddle.nn.Linear(8, 8), paddle.nn.Linear(8, 8)
        self.linear1, self.linear2 = paddle.nn.Linear(8, 16), paddle.nn.Linear(16, 8)
        self.norm1, self.norm2, self.norm3 = (paddle.nn.LayerNorm(8) for _ in range(3))

    def forward(self, x: Any) -> Any:
        x = self.norm1(x + self.self_attn(x))
        x = self.norm2(x + self.cross_attn(x))
        return self.norm3(x + self.linear2(paddle.tanh(self.linear1(x))))


class Shortcut(torch.nn.Module):
    """Uses its shortcut first."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = torch.nn.Conv2d(4, 8, 1, stride=2)
        self.f = torch.nn.Sequential(torch.nn.Conv2d(4, 8, 1), torch.nn.Tanh(), torch.nn.Conv2d(8, 8, 3, 2, 1))

    def forward(self, x: Any) -> Any:
        return self.proj(x) + self.f(x)


class PortedShortcut(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = paddle.nn.Conv2D(4, 8, 1), paddle.nn.Conv2D(8, 8, 3, 2, 1)
        self.other = paddle.nn.Conv2D(4, 8, 1, stride=2)

    def forward(self, x: Any) -> Any:
        return self.conv2(paddle.tanh(self.conv1(x))) + self.other(x)


def drawn(model: Any) -> Any:
    """Norms at their defaults look alike."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.5, 0.5)
    return model


def runs(base: Any, raw: Any, *shape: int) -> tuple[Any, list[int]]:
    """What comparing comes to, and how often each model ran."""
    called = counted(base), counted(raw)
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    result = padiff.compare(drawn(base), raw, x)
    return result, [len(side) for side in called]


def test_layers_whose_names_count_are_a_list() -> None:
    result, calls = runs(Named(), Listed(), 4, 8)
    assert result.aligned, str(result)
    assert calls == [2, 1]


def test_a_layer_that_is_left_out_is_filled_from_its_own() -> None:
    result, _ = runs(Named(), Listed(without=0), 4, 8)
    sources = {entry.path: entry.sources[0].path for entry in result.plan.entries}
    assert sources["layer.0.layernorm_before.weight"] == "layers.encoder_layer_0.ln_1.weight"
    assert result.divergence is not None
    assert result.divergence.raw_path == ""
    assert "layers.encoder_layer_0 is left out" in str(result.divergence.causes[0])


def test_norms_go_with_the_attentions_that_they_are_named_for() -> None:
    result, calls = runs(Decoder(), PortedDecoder(), 4, 8)
    assert result.aligned, str(result)
    assert calls == [2, 1]


def test_a_shortcut_is_told_by_its_stride() -> None:
    result, calls = runs(Shortcut(), PortedShortcut(), 2, 4, 6, 6)
    assert result.aligned, str(result)
    assert calls == [2, 1]
