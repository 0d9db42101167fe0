"""A decoder with rotary positions, a causal mask, grouped heads and a gated perceptron, in torch and in paddle."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import torch

from benchmarks.localise.either import modules_of, own_tensors, write

VOCABULARY, WIDTH, HEADS, GROUPS, SIZE, INNER, DEPTH, LONGEST = 89, 48, 6, 2, 8, 72, 4, 33
LOWEST = -3e4


def models(base: str, raw: str) -> tuple[Any, Any, Any]:
    """Two of them with weights of their own, and words of which the last of one row are padding."""
    made = {"torch": TorchDecoder, "paddle": PaddleDecoder}
    torch.manual_seed(0)
    paddle.seed(0)
    one, other = made[base](), made[raw]()
    generator = np.random.default_rng(5)
    for module in modules_of(one).values():
        for tensor in own_tensors(module).values():
            if tensor.ndim == 1:
                write(tensor, 1 + 0.2 * generator.standard_normal(tuple(tensor.shape)))
    one.eval()
    other.eval()
    words = generator.integers(0, VOCABULARY, (2, 11))
    kept = np.ones((2, 11), "float32")
    kept[1, -3:] = 0.0
    return one, other, {"words": words, "kept": kept}


def angles(length: int) -> tuple[np.ndarray, np.ndarray]:
    turns = np.outer(np.arange(length), 10000.0 ** (-np.arange(0, SIZE, 2) / SIZE))
    both = np.concatenate([turns, turns], -1)
    return np.cos(both).astype("float32"), np.sin(both).astype("float32")


def rotate_half(x: Any) -> Any:
    half = x.shape[-1] // 2
    join = torch.cat if isinstance(x, torch.Tensor) else paddle.concat
    return join([-x[..., half:], x[..., :half]], -1)


# ------------------------------------------------------------------ torch


class TorchRotary(torch.nn.Module):
    """Cosines and sines of every position."""

    def __init__(self) -> None:
        super().__init__()
        for name, table in zip(("cos_cached", "sin_cached"), angles(LONGEST), strict=True):
            self.register_buffer(name, torch.from_numpy(table), persistent=False)

    def forward(self, words: Any) -> Any:
        length = words.shape[1]
        return self.cos_cached[:length], self.sin_cached[:length]


class TorchRMSNorm(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(WIDTH))
        self.eps = 1e-6

    def forward(self, x: Any) -> Any:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps) * self.weight


class TorchAttention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = torch.nn.Linear(WIDTH, HEADS * SIZE, bias=False)
        self.key = torch.nn.Linear(WIDTH, GROUPS * SIZE, bias=False)
        self.value = torch.nn.Linear(WIDTH, GROUPS * SIZE, bias=False)
        self.out = torch.nn.Linear(HEADS * SIZE, WIDTH, bias=False)

    def forward(self, x: Any, mask: Any, cosines: Any, sines: Any) -> Any:
        rows, length, _ = x.shape
        q = self.query(x).reshape(rows, length, HEADS, SIZE).transpose(1, 2)
        k = self.key(x).reshape(rows, length, GROUPS, SIZE).transpose(1, 2)
        v = self.value(x).reshape(rows, length, GROUPS, SIZE).transpose(1, 2)
        q = q * cosines + rotate_half(q) * sines
        k = k * cosines + rotate_half(k) * sines
        k = k.repeat_interleave(HEADS // GROUPS, 1)
        v = v.repeat_interleave(HEADS // GROUPS, 1)
        weights = torch.softmax(q @ k.transpose(2, 3) * SIZE**-0.5 + mask, -1)
        return self.out((weights @ v).transpose(1, 2).reshape(rows, length, HEADS * SIZE))


class TorchPerceptron(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = torch.nn.Linear(WIDTH, INNER, bias=False)
        self.up = torch.nn.Linear(WIDTH, INNER, bias=False)
        self.down = torch.nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: Any) -> Any:
        return self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))


class TorchLayer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = TorchRMSNorm()
        self.attention = TorchAttention()
        self.norm2 = TorchRMSNorm()
        self.perceptron = TorchPerceptron()

    def forward(self, x: Any, mask: Any, cosines: Any, sines: Any) -> Any:
        x = x + self.attention(self.norm1(x), mask, cosines, sines)
        return x + self.perceptron(self.norm2(x))


class TorchDecoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.rotary = TorchRotary()
        self.layers = torch.nn.ModuleList([TorchLayer() for _ in range(DEPTH)])
        self.norm = TorchRMSNorm()
        self.head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, words: Any, kept: Any) -> Any:
        length = words.shape[1]
        dtype = self.words.weight.dtype
        cosines, sines = self.rotary(words)
        mask = (
            torch.triu(torch.full((length, length), LOWEST, dtype=dtype), 1)[None, None]
            + (1 - kept)[:, None, None, :] * LOWEST
        )
        x = self.words(words)
        for layer in self.layers:
            x = layer(x, torch.clamp(mask, min=LOWEST), cosines, sines)
        return self.head(self.norm(x))


# ------------------------------------------------------------------ paddle


class PaddleRotary(paddle.nn.Layer):
    """Cosines and sines of every position."""

    def __init__(self) -> None:
        super().__init__()
        for name, table in zip(("cos_cached", "sin_cached"), angles(LONGEST), strict=True):
            self.register_buffer(name, paddle.to_tensor(table), persistable=False)

    def forward(self, words: Any) -> Any:
        length = words.shape[1]
        return self.cos_cached[:length], self.sin_cached[:length]


class PaddleRMSNorm(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.weight = self.create_parameter([WIDTH], default_initializer=paddle.nn.initializer.Constant(1.0))
        self.eps = 1e-6

    def forward(self, x: Any) -> Any:
        return x * paddle.rsqrt((x * x).mean(-1, keepdim=True) + self.eps) * self.weight


class PaddleAttention(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.query = paddle.nn.Linear(WIDTH, HEADS * SIZE, bias_attr=False)
        self.key = paddle.nn.Linear(WIDTH, GROUPS * SIZE, bias_attr=False)
        self.value = paddle.nn.Linear(WIDTH, GROUPS * SIZE, bias_attr=False)
        self.out = paddle.nn.Linear(HEADS * SIZE, WIDTH, bias_attr=False)

    def forward(self, x: Any, mask: Any, cosines: Any, sines: Any) -> Any:
        rows, length, _ = x.shape
        order = [0, 2, 1, 3]
        q = self.query(x).reshape([rows, length, HEADS, SIZE]).transpose(order)
        k = self.key(x).reshape([rows, length, GROUPS, SIZE]).transpose(order)
        v = self.value(x).reshape([rows, length, GROUPS, SIZE]).transpose(order)
        q = q * cosines + rotate_half(q) * sines
        k = k * cosines + rotate_half(k) * sines
        k = paddle.repeat_interleave(k, HEADS // GROUPS, 1)
        v = paddle.repeat_interleave(v, HEADS // GROUPS, 1)
        scores = paddle.matmul(q, k, transpose_y=True) * SIZE**-0.5 + mask
        weights = paddle.nn.functional.softmax(scores, -1)
        return self.out(paddle.matmul(weights, v).transpose(order).reshape([rows, length, HEADS * SIZE]))


class PaddlePerceptron(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.gate = paddle.nn.Linear(WIDTH, INNER, bias_attr=False)
        self.up = paddle.nn.Linear(WIDTH, INNER, bias_attr=False)
        self.down = paddle.nn.Linear(INNER, WIDTH, bias_attr=False)

    def forward(self, x: Any) -> Any:
        return self.down(paddle.nn.functional.silu(self.gate(x)) * self.up(x))


class PaddleLayer(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = PaddleRMSNorm()
        self.attention = PaddleAttention()
        self.norm2 = PaddleRMSNorm()
        self.perceptron = PaddlePerceptron()

    def forward(self, x: Any, mask: Any, cosines: Any, sines: Any) -> Any:
        x = x + self.attention(self.norm1(x), mask, cosines, sines)
        return x + self.perceptron(self.norm2(x))


class PaddleDecoder(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.words = paddle.nn.Embedding(VOCABULARY, WIDTH)
        self.rotary = PaddleRotary()
        self.layers = paddle.nn.LayerList([PaddleLayer() for _ in range(DEPTH)])
        self.norm = PaddleRMSNorm()
        self.head = paddle.nn.Linear(WIDTH, VOCABULARY, bias_attr=False)

    def forward(self, words: Any, kept: Any) -> Any:
        length = words.shape[1]
        dtype = self.words.weight.dtype
        cosines, sines = self.rotary(words)
        causal = paddle.triu(paddle.full([length, length], LOWEST), 1).astype(dtype)
        mask = causal.unsqueeze([0, 1]) + ((1 - kept) * LOWEST).unsqueeze([1, 2])
        x = self.words(words)
        for layer in self.layers:
            x = layer(x, paddle.clip(mask, min=LOWEST), cosines, sines)
        return self.head(self.norm(x))
