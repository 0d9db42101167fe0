"""The model pairs the documented door is tried on: the tutorial's two linears and a small pose network."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import torch

FRAMEWORKS = ("torch", "paddle")
PAIRS = [(first, second) for first in FRAMEWORKS for second in FRAMEWORKS]


def tensor(framework: str, array: np.ndarray) -> Any:
    return torch.as_tensor(array) if framework == "torch" else paddle.to_tensor(array)


def simple(framework: str, inputs: int = 100, hidden: int = 100, outputs: int = 10) -> Any:
    """The tutorial's model in either framework."""
    return (SimpleModule if framework == "torch" else SimpleLayer)(inputs, hidden, outputs)


def weight_of(model: Any, layer: str) -> np.ndarray:
    """A linear layer's weight as [in, out], whichever framework holds it."""
    weight = getattr(model, layer).weight
    array = weight.detach().numpy() if isinstance(model, torch.nn.Module) else weight.numpy().T
    return array.T.copy()


class SimpleModule(torch.nn.Module):
    """Two linears with a shortcut around the first."""

    def __init__(self, inputs: int = 100, hidden: int = 100, outputs: int = 10) -> None:
        super().__init__()
        self.linear1 = torch.nn.Linear(inputs, hidden)
        self.linear2 = torch.nn.Linear(hidden, outputs)
        self.act = torch.nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        residual = x
        x = self.linear1(x)
        x = self.act(x)
        x = x + residual
        return self.linear2(x)


class SimpleLayer(paddle.nn.Layer):
    """The same in paddle."""

    def __init__(self, inputs: int = 100, hidden: int = 100, outputs: int = 10) -> None:
        super().__init__()
        self.linear1 = paddle.nn.Linear(inputs, hidden)
        self.linear2 = paddle.nn.Linear(hidden, outputs)
        self.act = paddle.nn.ReLU()

    def forward(self, x: Any) -> Any:
        residual = x
        x = self.linear1(x)
        x = self.act(x)
        x = x + residual
        return self.linear2(x)


# ------------------------------------------------------------------ the pose network

IMAGE = (24, 16)
PATCH = 4
GRID = (IMAGE[0] // PATCH, IMAGE[1] // PATCH)
CHANNELS, WIDTH, HEADS, HIDDEN, DEPTH = 3, 20, 5, 28, 2
FILTERS = (12, 14)
JOINTS = 7
EPSILON = 1e-6


class TorchAttention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        weights = torch.softmax((q * (width // HEADS) ** -0.5) @ k.transpose(-2, -1), dim=-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(batch, tokens, width))


class TorchMlp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = torch.nn.Linear(WIDTH, HIDDEN)
        self.act = torch.nn.GELU()
        self.fc2 = torch.nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.act(self.fc1(x)))


class TorchBlock(torch.nn.Module):
    def __init__(self, multihead: bool) -> None:
        super().__init__()
        self.norm1 = torch.nn.LayerNorm(WIDTH, eps=EPSILON)
        self.attn = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True) if multihead else TorchAttention()
        self.multihead = multihead
        self.norm2 = torch.nn.LayerNorm(WIDTH, eps=EPSILON)
        self.mlp = TorchMlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm1(x)
        x = x + (self.attn(h, h, h)[0] if self.multihead else self.attn(h))
        return x + self.mlp(self.norm2(x))


class TorchViT(torch.nn.Module):
    def __init__(self, multihead: bool) -> None:
        super().__init__()
        self.patch_embed = torch.nn.Conv2d(CHANNELS, WIDTH, PATCH, stride=PATCH)
        self.cls_token = torch.nn.Parameter(torch.randn(1, 1, WIDTH) * 0.1)
        self.pos_embed = torch.nn.Parameter(torch.randn(1, GRID[0] * GRID[1] + 1, WIDTH) * 0.1)
        self.blocks = torch.nn.ModuleList([TorchBlock(multihead) for _ in range(DEPTH)])
        self.last_norm = torch.nn.LayerNorm(WIDTH, eps=EPSILON)

    def forward_features(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        x = self.last_norm(x)[:, 1:]
        return x.transpose(1, 2).reshape(x.shape[0], WIDTH, *GRID)


class TorchHead(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[torch.nn.Module] = []
        for inputs, outputs in zip((WIDTH, *FILTERS), FILTERS, strict=False):
            layers += [
                torch.nn.ConvTranspose2d(inputs, outputs, 4, stride=2, padding=1, bias=False),
                torch.nn.BatchNorm2d(outputs),
                torch.nn.ReLU(),
            ]
        self.deconv_layers = torch.nn.Sequential(*layers)
        self.final_layer = torch.nn.Conv2d(FILTERS[-1], JOINTS, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.final_layer(self.deconv_layers(x))


class TinyPoseTorch(torch.nn.Module):
    """Heatmaps of an image; the backbone is entered by its method, as the ViTPose example does."""

    def __init__(self, multihead: bool = False) -> None:
        super().__init__()
        self.backbone = TorchViT(multihead)
        self.head = TorchHead()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone.forward_features(x))


class PaddleAttention(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = paddle.nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = paddle.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        batch, tokens, width = x.shape
        qkv = self.qkv(x).reshape([batch, tokens, 3, HEADS, width // HEADS]).transpose([2, 0, 3, 1, 4])
        q, k, v = qkv[0], qkv[1], qkv[2]
        weights = paddle.nn.functional.softmax((q * (width // HEADS) ** -0.5) @ k.transpose([0, 1, 3, 2]), axis=-1)
        return self.proj((weights @ v).transpose([0, 2, 1, 3]).reshape([batch, tokens, width]))


class PaddleMlp(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = paddle.nn.Linear(WIDTH, HIDDEN)
        self.act = paddle.nn.GELU()
        self.fc2 = paddle.nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Any) -> Any:
        return self.fc2(self.act(self.fc1(x)))


class PaddleBlock(paddle.nn.Layer):
    def __init__(self, multihead: bool) -> None:
        super().__init__()
        self.norm1 = paddle.nn.LayerNorm(WIDTH, epsilon=EPSILON)
        self.attn = paddle.nn.MultiHeadAttention(WIDTH, HEADS) if multihead else PaddleAttention()
        self.multihead = multihead
        self.norm2 = paddle.nn.LayerNorm(WIDTH, epsilon=EPSILON)
        self.mlp = PaddleMlp()

    def forward(self, x: Any) -> Any:
        h = self.norm1(x)
        x = x + (self.attn(h, h, h) if self.multihead else self.attn(h))
        return x + self.mlp(self.norm2(x))


class PaddleViT(paddle.nn.Layer):
    def __init__(self, multihead: bool) -> None:
        super().__init__()
        self.patch_embed = paddle.nn.Conv2D(CHANNELS, WIDTH, PATCH, stride=PATCH)
        normal = paddle.nn.initializer.Normal(std=0.1)
        self.cls_token = self.create_parameter([1, 1, WIDTH], default_initializer=normal)
        self.pos_embed = self.create_parameter([1, GRID[0] * GRID[1] + 1, WIDTH], default_initializer=normal)
        self.blocks = paddle.nn.LayerList([PaddleBlock(multihead) for _ in range(DEPTH)])
        self.last_norm = paddle.nn.LayerNorm(WIDTH, epsilon=EPSILON)

    def forward_features(self, x: Any) -> Any:
        x = self.patch_embed(x).flatten(2).transpose([0, 2, 1])
        x = paddle.concat([self.cls_token.expand([x.shape[0], -1, -1]), x], axis=1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        x = self.last_norm(x)[:, 1:]
        return x.transpose([0, 2, 1]).reshape([x.shape[0], WIDTH, *GRID])


class PaddleHead(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        layers: list[paddle.nn.Layer] = []
        for inputs, outputs in zip((WIDTH, *FILTERS), FILTERS, strict=False):
            layers += [
                paddle.nn.Conv2DTranspose(inputs, outputs, 4, stride=2, padding=1, bias_attr=False),
                paddle.nn.BatchNorm2D(outputs),
                paddle.nn.ReLU(),
            ]
        self.deconv_layers = paddle.nn.Sequential(*layers)
        self.final_layer = paddle.nn.Conv2D(FILTERS[-1], JOINTS, 1)

    def forward(self, x: Any) -> Any:
        return self.final_layer(self.deconv_layers(x))


class TinyPosePaddle(paddle.nn.Layer):
    """The paddle port of :class:`TinyPoseTorch`."""

    def __init__(self, multihead: bool = False) -> None:
        super().__init__()
        self.backbone = PaddleViT(multihead)
        self.head = PaddleHead()

    def forward(self, x: Any) -> Any:
        return self.head(self.backbone.forward_features(x))
