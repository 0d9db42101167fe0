"""A framework of a few lines, for the tests: arrays with gradients, modules with hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


class Tensor:
    """An array that remembers how it was made."""

    def __init__(self, data: Any, parents: tuple[Tensor, ...] = (), back: Callable[..., Any] | None = None) -> None:
        self.data = np.asarray(data)
        self.parents, self.back = parents, back
        self.needs = bool(parents) and any(p.needs for p in parents)
        self.grad: np.ndarray | None = None
        self.watchers: list[Callable[[np.ndarray], None]] = []

    def __matmul__(self, other: Tensor) -> Tensor:
        return Tensor(self.data @ other.data, (self, other), lambda g: (g @ other.data.T, self.data.T @ g))

    def __add__(self, other: Tensor) -> Tensor:
        def back(g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return g, g.sum(0) if other.data.ndim < g.ndim else g

        return Tensor(self.data + other.data, (self, other), back)

    def relu(self) -> Tensor:
        return Tensor(np.maximum(self.data, 0), (self,), lambda g: (g * (self.data > 0),))

    def mean(self) -> Tensor:
        return Tensor(self.data.mean(), (self,), lambda g: (np.full_like(self.data, g / self.data.size),))

    def backward(self) -> None:
        order: list[Tensor] = []

        def visit(tensor: Tensor) -> None:
            if tensor.needs and all(tensor is not seen for seen in order):
                for parent in tensor.parents:
                    visit(parent)
                order.append(tensor)

        visit(self)
        gradients = {id(self): np.ones_like(self.data)}
        for tensor in reversed(order):
            gradient = gradients[id(tensor)]
            for watcher in tensor.watchers:
                watcher(gradient)
            if not tensor.parents:
                tensor.grad = gradient if tensor.grad is None else tensor.grad + gradient
                continue
            assert tensor.back is not None
            for parent, part in zip(tensor.parents, tensor.back(gradient), strict=True):
                gradients[id(parent)] = gradients[id(parent)] + part if id(parent) in gradients else part


def parameter(data: Any) -> Tensor:
    tensor = Tensor(np.asarray(data, dtype="float32"))
    tensor.needs = True
    return tensor


class Module:
    """Parts in attributes; ``watchers`` are called around every call."""

    training = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        watchers = list(self.__dict__.get("watchers", ()))
        for enter, _, _ in watchers:
            args, kwargs = enter(self, args, kwargs) or (args, kwargs)
        try:
            output = self.forward(*args, **kwargs)
        except Exception:
            for _, _, fail in watchers:
                fail(self)
            raise
        for _, leave, _ in watchers:
            other = leave(self, output)
            output = output if other is None else other
        return output

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


class Dense(Module):
    """Kernel stored as [in, out]."""

    def __init__(self, n: int, m: int, seed: int = 0) -> None:
        generator = np.random.default_rng(seed)
        self.kernel = parameter(generator.normal(size=(n, m)))
        self.offset = parameter(generator.normal(size=m))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.kernel + self.offset
