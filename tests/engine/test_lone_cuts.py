"""Modules that base has none for, and gradients that end at them: in their own code, or in the code that calls them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import padiff

X = np.random.default_rng(0).normal(size=(3, 6, 4, 4)).astype("float32")


class Squeeze(nn.Module):
    """Base's author pools in his own code."""

    def __init__(self) -> None:
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(6, 3, 1), nn.Conv2d(3, 6, 1)

    def forward(self, x: Any) -> Any:
        return x * self.expand(self.reduce(x.mean((2, 3), keepdim=True)).relu()).sigmoid()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.squeeze, self.out = nn.Conv2d(6, 6, 1), Squeeze(), nn.Conv2d(6, 6, 1)

    def forward(self, x: Any) -> Any:
        return x + self.out(self.squeeze(self.conv(x)))


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block() for _ in range(3)))

    def forward(self, x: Any) -> Any:
        return self.blocks(x)


class Pool(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.mean((2, 3), keepdim=True)


class Pooled(nn.Module):
    """Raw's author made a module of it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.pool, self.wrong = nn.Conv2d(6, 3, 1), nn.Conv2d(3, 6, 1), Pool(), False

    def forward(self, x: Any) -> Any:
        pooled = self.pool(x.detach() if self.wrong else x)
        return x * self.fc2(self.fc1(pooled).relu()).sigmoid()


class Passing(nn.Module):
    """And of what drops nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong = False

    def forward(self, x: Any) -> Any:
        return x.detach() if self.wrong else x * 1.0


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.se, self.last, self.drop = nn.Conv2d(6, 6, 1), Pooled(), nn.Conv2d(6, 6, 1), Passing()

    def forward(self, x: Any) -> Any:
        return x + self.drop(self.last(self.se(self.first(x))))


class Raw(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("inner", ["se", "drop"])
def test_whose_code_stops_following(inner: str, place: int) -> None:
    torch.manual_seed(0)
    base, raw = Base(), Raw()
    assert padiff.compare(base, raw, X).aligned
    path = f"layers.{place}.{inner}"
    raw.get_submodule(path).wrong = True
    found = padiff.compare(base, raw, X).divergence
    assert found is not None
    assert (found.raw_path, found.phase) == (path, "backward"), str(found)
    assert found.causes and found.causes[0].name == "no gradient"


class Together(torch.nn.Module):
    """Attention with one projection, that is not called."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.proj = torch.nn.LayerNorm(8), torch.nn.Linear(8, 24), torch.nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        q, k, v = nn.functional.linear(self.norm(x), self.qkv.weight, self.qkv.bias).chunk(3, -1)
        return x + self.proj((q @ k.transpose(-1, -2) * 0.4).softmax(-1) @ v)


class Apart(torch.nn.Module):
    """The same with three."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = torch.nn.LayerNorm(8), torch.nn.Linear(8, 8)
        self.query, self.key, self.value = (torch.nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Any) -> Any:
        x, given = self.norm(x), x
        q, k, v = self.query(x), self.key(x), self.value(x)
        return given + self.out((q @ k.transpose(-1, -2) * 0.4).softmax(-1) @ v)


@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_a_layer_that_is_a_part_of_bases_and_returns_what_is_not_followed(name: str) -> None:
    torch.manual_seed(0)
    base, raw = (torch.nn.Sequential(*(kind() for _ in range(3))) for kind in (Together, Apart))
    x = np.random.default_rng(0).standard_normal((2, 5, 8)).astype("float32")
    assert padiff.compare(base, raw, x).aligned
    raw.get_submodule(f"1.{name}").register_forward_hook(lambda module, given, made: made.detach())
    found = padiff.compare(base, raw, x).divergence
    assert found is not None
    assert (found.raw_path, found.phase) == (f"1.{name}", "backward"), str(found)
