"""Blocks of which one author counts the layers from one and the other from zero, where one of them is not called."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import padiff

PICTURE = torch.randn(2, 6, 5, 5, generator=torch.Generator().manual_seed(0))


class Layer(nn.Module):
    def __init__(self, size: int, skip: str) -> None:
        super().__init__()
        self.conv, self.bn, self.skip = nn.Conv2d(6, 6, size, padding=size // 2, bias=False), nn.BatchNorm2d(6), skip

    def forward(self, x: Any) -> Any:
        x = x if self.skip == "conv" else self.conv(x)
        return x if self.skip == "bn" else self.bn(x)


class Block(nn.Module):
    """In which something besides its layers has a name, in base: they are no list of their own."""

    def __init__(self, first: int, skip: str, act: nn.Module | None) -> None:
        super().__init__()
        self.names = [f"conv{first + place}" for place in range(3)]
        for name, size in zip(self.names, (1, 3, 1), strict=True):
            inside = skip.partition(".")[2] if skip.startswith(f"{name}.") else ""
            self.add_module(name, Layer(size, inside))
        self.skip, self.act = skip, act

    def forward(self, x: Any) -> Any:
        y = x
        for name in self.names:
            if name != self.skip:
                y = torch.relu(self.get_submodule(name)(y))
        return (self.act or torch.relu)(x + y)


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for stage in ("s1", "s2"):
            self.add_module(stage, nn.ModuleDict({f"b{number}": Block(1, "", nn.ReLU()) for number in (1, 2)}))

    def forward(self, x: Any) -> Any:
        for stage in (self.s1, self.s2):
            for block in stage.values():
                x = block(x)
        return x


class Raw(nn.Module):
    def __init__(self, skip: str) -> None:
        super().__init__()
        place, _, skip = skip.partition(".")
        for name in ("s1_b1", "s1_b2", "s2_b1", "s2_b2"):
            self.add_module(name, Block(0, skip if name == place else "", None))

    def forward(self, x: Any) -> Any:
        for block in self.children():
            x = block(x)
        return x


def trained(model: nn.Module) -> nn.Module:
    """Weights and statistics that are not those of all others."""
    torch.manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight.data, module.bias.data, module.running_mean, module.running_var):
                assert tensor is not None
                tensor.uniform_(0.5, 1.5)
    return model.eval()


def test_they_are_paired_by_use() -> None:
    assert padiff.compare(trained(Base()), Raw("").eval(), PICTURE).aligned


@pytest.mark.parametrize("layer", ["conv0", "conv1", "conv2"])
@pytest.mark.parametrize("inside", ["", "conv", "bn"])
def test_what_leaves_one_out_is_named(layer: str, inside: str) -> None:
    skip = f"{layer}.{inside}" if inside else layer
    result = padiff.compare(trained(Base()), Raw(f"s2_b1.{skip}").eval(), PICTURE)
    assert result.divergence is not None, str(result)
    place = f"s2_b1.{layer}" if inside else "s2_b1"
    assert result.divergence.raw_path == place, str(result.divergence)
