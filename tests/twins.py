"""One small network written in torch and in paddle, with switches for what people get wrong when they port."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import paddle
import torch

FRAMEWORKS = ("torch", "paddle")
PAIRS = [(base, raw) for base in FRAMEWORKS for raw in FRAMEWORKS]


class TorchBlock(torch.nn.Module):
    """Norm, two-layer perceptron, residual; then two layers of equal shape."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)
        self.fc1 = torch.nn.Linear(8, 12)
        self.act = torch.nn.GELU()
        self.fc2 = torch.nn.Linear(12, 8)
        self.one = torch.nn.Linear(8, 8)
        self.two = torch.nn.Linear(8, 8)
        self.residual, self.swap, self.extra, self.scale_gradient = True, False, False, False

    def forward(self, x: Any) -> Any:
        h = self.act(self.fc1(self.norm(x)))
        if self.scale_gradient:
            h = TorchScaleGradient.apply(h)
        h = self.fc2(h)
        x = x + h if self.residual else h
        first, second = (self.two, self.one) if self.swap else (self.one, self.two)
        x = second(torch.tanh(first(x)))
        return (x, x * 2) if self.extra else x


class TorchNet(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Linear(6, 8)
        self.blocks = torch.nn.ModuleList([TorchBlock() for _ in range(3)])
        self.bn = torch.nn.BatchNorm1d(8)
        self.head = torch.nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
            x = x[0] if isinstance(x, tuple) else x
        return self.head(self.bn(x))


class TorchScaleGradient(torch.autograd.Function):
    """The identity, whose gradient is off by half."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * 1.5


class PaddleBlock(paddle.nn.Layer):
    """The same as TorchBlock."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = paddle.nn.LayerNorm(8)
        self.fc1 = paddle.nn.Linear(8, 12)
        self.act = paddle.nn.GELU()
        self.fc2 = paddle.nn.Linear(12, 8)
        self.one = paddle.nn.Linear(8, 8)
        self.two = paddle.nn.Linear(8, 8)
        self.residual, self.swap, self.extra, self.scale_gradient = True, False, False, False

    def forward(self, x: Any) -> Any:
        h = self.act(self.fc1(self.norm(x)))
        if self.scale_gradient:
            h = PaddleScaleGradient.apply(h)
        h = self.fc2(h)
        x = x + h if self.residual else h
        first, second = (self.two, self.one) if self.swap else (self.one, self.two)
        x = second(paddle.tanh(first(x)))
        return (x, x * 2) if self.extra else x


class PaddleNet(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.embed = paddle.nn.Linear(6, 8)
        self.blocks = paddle.nn.LayerList([PaddleBlock() for _ in range(3)])
        self.bn = paddle.nn.BatchNorm1D(8)
        self.head = paddle.nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
            x = x[0] if isinstance(x, tuple) else x
        return self.head(self.bn(x))


class PaddleScaleGradient(paddle.autograd.PyLayer):
    """The identity, whose gradient is off by half."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * 1.5


def net(framework: str) -> Any:
    """The network in one of the frameworks, in eval mode, with lively weights and statistics."""
    model = TorchNet() if framework == "torch" else PaddleNet()
    model.eval()
    randomise(model)
    return model


def randomise(model: Any, seed: int = 7) -> None:
    """Norm weights of one and biases of zero hide mistakes; statistics must be positive."""
    generator = np.random.default_rng(seed)
    for name, tensor in model.state_dict().items():
        shape = tuple(tensor.shape)
        if "num_batches" in name:
            continue
        if "var" in name:
            write(tensor, generator.uniform(0.5, 2.0, shape))
        else:
            write(
                tensor, generator.normal(0.0, 0.4, shape) + (1.0 if "norm.weight" in name or "bn.weight" in name else 0)
            )


def write(tensor: Any, value: Any) -> None:
    """Overwrite a parameter of either framework."""
    value = np.asarray(value, dtype="float32")
    if isinstance(tensor, torch.Tensor):
        with torch.no_grad():
            tensor.copy_(torch.from_numpy(value))
    else:
        tensor.set_value(value)


def read(tensor: Any) -> np.ndarray:
    return tensor.detach().numpy().copy()


def batch(seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(7, 6)).astype("float32")


def after(module: Any, change: Any) -> None:
    """Have ``change(output)`` replace what a module returns."""
    if isinstance(module, torch.nn.Module):
        module.register_forward_hook(lambda _, __, output: change(output))
    else:
        module.register_forward_post_hook(lambda _, __, output: change(output))


def sgd(model: Any, lr: float = 0.1, weight_decay: float = 0.0) -> Any:
    if isinstance(model, torch.nn.Module):
        return torch.optim.SGD(model.parameters(), lr=lr, weight_decay=weight_decay)
    return paddle.optimizer.SGD(lr, parameters=model.parameters(), weight_decay=weight_decay or None)


def adam(model: Any, eps: float = 1e-3, lr: float = 0.01) -> Any:
    if isinstance(model, torch.nn.Module):
        return torch.optim.Adam(model.parameters(), lr=lr, eps=eps)
    return paddle.optimizer.Adam(lr, parameters=model.parameters(), epsilon=eps)


def counted(*models: Any) -> list[int]:
    """How often each model is called from now on."""
    calls = [0] * len(models)

    def count(number: int, *_: Any) -> None:
        calls[number] += 1

    for number, model in enumerate(models):
        model.register_forward_pre_hook(functools.partial(count, number))
    return calls
