"""A child that is left out, or called once more, is its caller's doing, where base has other modules around it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import padiff

PICTURE = torch.randn(2, 6, 8, 8, generator=torch.Generator().manual_seed(0))
ROWS = torch.randn(4, 5, 8, generator=torch.Generator().manual_seed(0))


def named(base: nn.Module, raw: nn.Module, x: Any) -> str:
    torch.manual_seed(1)
    for module in base.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight.data, module.bias.data, module.running_mean, module.running_var):
                assert tensor is not None
                tensor.uniform_(0.5, 1.5)
    result = padiff.compare(base.eval(), raw.eval(), x)
    assert result.divergence is not None, str(result)
    assert result.divergence.phase == "forward"
    return result.divergence.raw_path


# ------------------------------------------------------------------ norms before activations


class OneActivation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(6, 6, 1, bias=False), nn.Conv2d(6, 6, 3, padding=1, bias=False)
        self.conv3, self.relu = nn.Conv2d(6, 6, 1, bias=False), nn.ReLU(inplace=True)
        self.bn1, self.bn2, self.bn3 = (nn.BatchNorm2d(6) for _ in range(3))

    def forward(self, x: Any) -> Any:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += x
        return self.relu(y)


class Activations(nn.Module):
    def __init__(self, times: dict[str, int]) -> None:
        super().__init__()
        self.conv1, self.bn1, self.act1 = nn.Conv2d(6, 6, 1, bias=False), nn.BatchNorm2d(6), nn.ReLU(inplace=True)
        self.conv2, self.bn2, self.drop = nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.Identity()
        self.act2, self.conv3, self.bn3 = nn.ReLU(inplace=True), nn.Conv2d(6, 6, 1, bias=False), nn.BatchNorm2d(6)
        self.act3, self.times = nn.ReLU(inplace=True), times

    def call(self, name: str, x: Any) -> Any:
        for _ in range(self.times.get(name, 1)):
            x = self.get_submodule(name)(x)
        return x

    def forward(self, x: Any) -> Any:
        y = self.act1(self.call("bn1", self.call("conv1", x)))
        y = self.act2(self.drop(self.call("bn2", self.call("conv2", y))))
        y = self.call("bn3", self.call("conv3", y))
        y += x
        return self.act3(y)


class Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.pooler = nn.ModuleList(OneActivation() for _ in range(3)), nn.AdaptiveAvgPool2d((1, 1))

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.pooler(x)


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = Body(), nn.Sequential(nn.Flatten(), nn.Linear(6, 4))

    def forward(self, x: Any) -> Any:
        return self.head(self.body(x))


class Pool(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pool, self.flatten = nn.AdaptiveAvgPool2d(1), nn.Flatten(1)

    def forward(self, x: Any) -> Any:
        return self.flatten(self.pool(x))


class Stage(nn.Sequential):
    def __init__(self, skip: int, times: dict[str, int]) -> None:
        super().__init__(*(Activations(times if place == 1 else {}) for place in range(3)))
        self.skip = skip

    def forward(self, x: Any) -> Any:
        for place, block in enumerate(self):
            x = x if place == self.skip else block(x)
        return x


class PoolingLayer(nn.Module):
    def __init__(self, skip: int = -1, times: dict[str, int] | None = None) -> None:
        super().__init__()
        self.layer, self.pool = Stage(skip, times or {}), Pool()
        self.fc = nn.Linear(6, 4)

    def forward(self, x: Any) -> Any:
        return self.fc(self.pool(self.layer(x)))


@pytest.mark.parametrize("times", [0, 2])
@pytest.mark.parametrize("name", ["bn1", "bn2", "bn3", "conv1", "conv2", "conv3"])
def test_a_layer_before_an_activation(name: str, times: int) -> None:
    """An activation of its own, which base has not, is given what is wrong, and does what it always does."""
    assert padiff.compare(Pooled().eval(), PoolingLayer().eval(), PICTURE).aligned
    assert named(Pooled(), PoolingLayer(times={name: times}), PICTURE) == "layer.1"


@pytest.mark.parametrize("skip", [0, 1, 2])
def test_a_block_before_a_pooling(skip: int) -> None:
    assert named(Pooled(), PoolingLayer(skip=skip), PICTURE) == "layer"


# ------------------------------------------------------------------ wholes that base has not


class Up(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(8, 16)

    def forward(self, x: Any) -> Any:
        return torch.tanh(self.dense(x))


class Down(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense, self.dropout = nn.Linear(16, 8), nn.Dropout(0.0)

    def forward(self, x: Any, residual: Any) -> Any:
        return self.dropout(self.dense(x)) + residual


class Flat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), Up(), Down()

    def forward(self, x: Any) -> Any:
        return self.down(self.up(self.norm(x)), x)


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.act, self.drop1, self.norm = nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.0), nn.Identity()
        self.fc2, self.drop2 = nn.Linear(16, 8), nn.Dropout(0.0)

    def forward(self, x: Any) -> Any:
        return self.drop2(self.fc2(self.norm(self.drop1(self.act(self.fc1(x))))))


class Outer(nn.Module):
    def __init__(self, times: int) -> None:
        super().__init__()
        self.norm, self.mlp, self.scale, self.times = nn.LayerNorm(8), Inner(), nn.Identity(), times

    def forward(self, x: Any) -> Any:
        y = self.norm(x)
        for _ in range(self.times):
            y = self.mlp(y)
        return x + self.scale(y)


def test_a_module_that_base_has_not_called_twice() -> None:
    def raw(times: int) -> nn.Module:
        return nn.Sequential(Outer(1), Outer(times), Outer(1))

    base = nn.Sequential(Flat(), Flat(), Flat())
    assert padiff.compare(base, raw(1), ROWS).aligned
    assert named(base, raw(2), ROWS) == "1"


class Blocks(nn.Sequential):
    def __init__(self, again: int) -> None:
        super().__init__(Outer(1), Outer(1))
        self.again = again

    def forward(self, x: Any) -> Any:
        for place, block in enumerate(self):
            x = block(x)
            x = block(x) if place == self.again else x
        return x


class Part(nn.Module):
    def __init__(self, again: int) -> None:
        super().__init__()
        self.blocks = Blocks(again)

    def forward(self, x: Any) -> Any:
        return self.blocks(x)


class InLists(nn.Module):
    def __init__(self, again: int = -1) -> None:
        super().__init__()
        self.layers, self.norm = nn.Sequential(Part(again), Part(-1)), nn.LayerNorm(8)

    def forward(self, x: Any) -> Any:
        return self.norm(self.layers(x))


@pytest.mark.parametrize("again", [0, 1])
def test_a_block_in_lists_that_base_has_not(again: int) -> None:
    base = nn.Sequential(Flat(), Flat(), Flat(), Flat(), nn.LayerNorm(8))
    assert padiff.compare(base, InLists(), ROWS).aligned
    assert named(base, InLists(again), ROWS) == "layers.0.blocks"


# ------------------------------------------------------------------ what only raw has inside of it


class Active(nn.BatchNorm2d):
    """A norm with its activation."""

    def __init__(self) -> None:
        super().__init__(6)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Any) -> Any:
        return self.act(super().forward(x))


class Unit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(6, 6, 3, padding=1, bias=False), Active()

    def forward(self, x: Any) -> Any:
        return self.bn(self.conv(x))


class Units(nn.Module):
    def __init__(self, again: str) -> None:
        super().__init__()
        self.conv1, self.conv2, self.again = Unit(), Unit(), again

    def forward(self, x: Any) -> Any:
        y = x
        for name in ("conv1", "conv2"):
            y = self.get_submodule(name)(y)
            y = self.get_submodule(name)(y) if name == self.again else y
        return torch.tanh(x + y)


class InSequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers = (nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(inplace=True))
        self.a = nn.Sequential(*layers)
        self.b = nn.Sequential(nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(inplace=True))

    def forward(self, x: Any) -> Any:
        return torch.tanh(x + self.b(self.a(x)))


@pytest.mark.parametrize("again", ["conv1", "conv2"])
def test_a_unit_called_twice_whose_norm_has_an_activation(again: str) -> None:
    base = nn.Sequential(InSequence(), InSequence(), InSequence())
    assert padiff.compare(base.eval(), nn.Sequential(Units(""), Units(""), Units("")).eval(), PICTURE).aligned
    assert named(base, nn.Sequential(Units(""), Units(again), Units("")), PICTURE) == "1"


class Dropping(Inner):
    """Drops twice by one module, where base's blocks drop once."""

    def __init__(self) -> None:
        super().__init__()
        self.drop1 = self.drop2 = nn.Dropout(0.0)


class Blown(Outer):
    def __init__(self, blown: bool) -> None:
        super().__init__(1)
        self.mlp, self.blown = Dropping(), blown

    def forward(self, x: Any) -> Any:
        x = super().forward(x).clone()
        if self.blown:
            x.view(-1)[3] = torch.nan
        return x


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_dropout_that_does_nothing_is_no_trip(place: int) -> None:
    base = nn.Sequential(Flat(), Flat(), Flat())
    assert padiff.compare(base.eval(), nn.Sequential(*(Blown(False) for _ in range(3))).eval(), ROWS).aligned
    assert named(base, nn.Sequential(*(Blown(one == place) for one in range(3))), ROWS) == str(place)
