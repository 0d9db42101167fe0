"""The frameworks' own layers that drop inside."""

from __future__ import annotations

from typing import Any

import paddle
import torch

from tests.randomness.models import FEATURES


class TorchSelf(torch.nn.Module):
    """Attention of a layer to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(FEATURES, 2, dropout=0.3, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.attention(x, x, x, need_weights=False)[0]


class PaddleSelf(paddle.nn.Layer):
    """The same."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = paddle.nn.MultiHeadAttention(FEATURES, 2, dropout=0.3)

    def forward(self, x: Any) -> Any:
        return self.attention(x, x, x)


class TorchSequence(torch.nn.Module):
    """A recurrent layer, its output alone."""

    def __init__(self, kind: str, layers: int, bidirectional: bool = False) -> None:
        super().__init__()
        made = getattr(torch.nn, kind)
        self.cell = made(FEATURES, 5, num_layers=layers, dropout=0.4, bidirectional=bidirectional, batch_first=True)
        self.head = torch.nn.Linear(10 if bidirectional else 5, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.cell(x)[0])


class PaddleSequence(paddle.nn.Layer):
    """The same."""

    def __init__(self, kind: str, layers: int, bidirectional: bool = False) -> None:
        super().__init__()
        direction = "bidirect" if bidirectional else "forward"
        made = getattr(paddle.nn, {"RNN": "SimpleRNN"}.get(kind, kind))
        self.cell = made(FEATURES, 5, num_layers=layers, dropout=0.4, direction=direction)
        self.head = paddle.nn.Linear(10 if bidirectional else 5, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.cell(x)[0])


class TorchSkips(torch.nn.Module):
    """Layers that are left out by chance, a number decides."""

    def __init__(self) -> None:
        super().__init__()
        made = [torch.nn.Sequential(torch.nn.Linear(FEATURES, FEATURES), torch.nn.Dropout(0.2)) for _ in range(6)]
        self.layers = torch.nn.ModuleList(made)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = x if torch.rand([]) < 0.4 else x + layer(x)
        return x


class PaddleSkips(paddle.nn.Layer):
    """The same, read out before it is compared."""

    def __init__(self) -> None:
        super().__init__()
        made = [paddle.nn.Sequential(paddle.nn.Linear(FEATURES, FEATURES), paddle.nn.Dropout(0.2)) for _ in range(6)]
        self.layers = paddle.nn.LayerList(made)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = x if paddle.rand([1]).item() < 0.4 else x + layer(x)
        return x


def _torch_encoder() -> Any:
    layer = torch.nn.TransformerEncoderLayer(FEATURES, 2, 16, dropout=0.2, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def _paddle_encoder() -> Any:
    return paddle.nn.TransformerEncoder(paddle.nn.TransformerEncoderLayer(FEATURES, 2, 16, dropout=0.2), 2)


LAYERS: dict[str, dict[str, Any]] = {
    "attention": {"torch": TorchSelf, "paddle": PaddleSelf},
    "encoder": {"torch": _torch_encoder, "paddle": _paddle_encoder},
    "LSTM": {"torch": lambda: TorchSequence("LSTM", 3), "paddle": lambda: PaddleSequence("LSTM", 3)},
    "GRU both ways": {"torch": lambda: TorchSequence("GRU", 2, True), "paddle": lambda: PaddleSequence("GRU", 2, True)},
    "RNN": {"torch": lambda: TorchSequence("RNN", 2), "paddle": lambda: PaddleSequence("RNN", 2)},
}
"""Layer to how it is made in either framework."""
