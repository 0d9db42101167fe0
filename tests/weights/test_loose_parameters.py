"""Parameters that modules keep by themselves: told apart by when they are used, and by how they are numbered."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff

WIDTH = 6
DEPTH = 3


class TorchScaled(torch.nn.Module):
    """A block with a scale for each branch, numbered out of the order of use."""

    def __init__(self) -> None:
        super().__init__()
        self.near, self.far = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, 2 * WIDTH)
        self.back = torch.nn.Linear(2 * WIDTH, WIDTH)
        self.gamma2 = torch.nn.Parameter(torch.randn(WIDTH))
        self.gamma1 = torch.nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.gamma1 * torch.tanh(self.near(x))
        return x + self.gamma2 * self.back(torch.tanh(self.far(x)))


class PaddleScaled(paddle.nn.Layer):
    """Of the same: the scales are fetched before the branch runs, and used after."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = paddle.nn.Linear(WIDTH, WIDTH), paddle.nn.Linear(WIDTH, 2 * WIDTH)
        self.c = paddle.nn.Linear(2 * WIDTH, WIDTH)
        self.scale_wide, self.scale_narrow = self.create_parameter([WIDTH]), self.create_parameter([WIDTH])

    def forward(self, x: Any) -> Any:
        x = x + self.scale_narrow * paddle.tanh(self.a(x))
        return x + self.scale_wide * self.c(paddle.tanh(self.b(x)))


def test_a_scale_counts_as_used_when_it_is_multiplied() -> None:
    torch.manual_seed(0)
    base = torch.nn.Sequential(*(TorchScaled() for _ in range(DEPTH)))
    raw = paddle.nn.Sequential(*(PaddleScaled() for _ in range(DEPTH)))
    rows = np.random.default_rng(0).normal(size=(4, WIDTH)).astype("float32")
    plan = padiff.plan_weights(base, raw, rows)
    sources = {entry.path: entry.sources[0].path for entry in plan.entries}
    for block in range(DEPTH):
        assert sources[f"{block}.scale_narrow"] == f"{block}.gamma1"
        assert sources[f"{block}.scale_wide"] == f"{block}.gamma2"
    assert padiff.compare(base, raw, rows).aligned


class TorchNormed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + torch.tanh(self.norm1(x))
        return x + torch.sin(self.norm2(x))


class Flat(paddle.nn.Layer):
    """All blocks in one layer: the number of the block stands last."""

    def __init__(self) -> None:
        super().__init__()
        for block in range(DEPTH):
            for name in ("n1_w", "n1_b", "n2_w", "n2_b"):
                setattr(self, f"{name}_{block}", self.create_parameter([WIDTH]))

    def forward(self, x: Any) -> Any:
        norm = paddle.nn.functional.layer_norm
        for block in range(DEPTH):
            w1, b1, w2, b2 = (getattr(self, f"{name}_{block}") for name in ("n1_w", "n1_b", "n2_w", "n2_b"))
            x = x + paddle.tanh(norm(x, WIDTH, w1, b1))
            x = x + paddle.sin(norm(x, WIDTH, w2, b2))
        return x


def test_the_number_of_the_block_may_stand_last() -> None:
    torch.manual_seed(0)
    base = torch.nn.Sequential(*(TorchNormed() for _ in range(DEPTH)))
    for parameter in base.parameters():
        torch.nn.init.normal_(parameter)
    rows = np.random.default_rng(0).normal(size=(4, WIDTH)).astype("float32")
    result = padiff.compare(base, Flat(), rows)
    assert result.plan is not None
    sources = {entry.path: entry.sources[0].path for entry in result.plan.entries}
    assert sources["n2_w_0"] == "0.norm2.weight"
    assert sources["n1_b_2"] == "2.norm1.bias"
    assert result.aligned


class Kernel(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(1, 3, WIDTH, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv1d(x, self.weight[0])


class Biased(torch.nn.Module):
    """Keeps a bias, and nothing else, around what keeps the weight."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel, self.bias = Kernel(), torch.nn.Parameter(torch.randn(1, 3, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.kernel(x) + self.bias


class Outputs(torch.nn.Module):
    """The first stands alone, the others in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.to_rgb1, self.rgbs = Biased(), torch.nn.ModuleList([Biased(), Biased()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.to_rgb1(x)
        for rgb in self.rgbs:
            found = torch.tanh(found) + rgb(x + found.mean(1, keepdim=True))
        return found


class Together(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.bias, self.weight = self.create_parameter([3]), self.create_parameter([3, WIDTH, 1])

    def forward(self, x: Any) -> Any:
        return paddle.nn.functional.conv1d(x, self.weight) + self.bias.reshape([1, -1, 1])


class Listed(paddle.nn.Layer):
    """All in one list."""

    def __init__(self) -> None:
        super().__init__()
        self.torgb = paddle.nn.LayerList([Together() for _ in range(3)])

    def forward(self, x: Any) -> Any:
        found = self.torgb[0](x)
        for rgb in self.torgb[1:]:
            found = paddle.tanh(found) + rgb(x + found.mean(1, keepdim=True))
        return found


def test_a_bias_that_a_module_around_the_weight_keeps_alone() -> None:
    """And the number of a name and places in a list are no one count: the order of use tells which is which."""
    torch.manual_seed(0)
    x = np.random.default_rng(0).normal(size=(2, WIDTH, 5)).astype("float32")
    result = padiff.compare(Outputs(), Listed(), x)
    assert result.plan is not None
    sources = {entry.path: entry.sources[0].path for entry in result.plan.entries}
    assert sources["torgb.0.bias"] == "to_rgb1.bias"
    assert sources["torgb.1.weight"] == "rgbs.0.kernel.weight"
    assert result.aligned


class TorchEinsum(torch.nn.Module):
    """Projections of three axes, the last of which takes what the others give."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        size = WIDTH // heads + (heads == 3)  # with three heads, together wider than what they are given
        shape = (WIDTH, heads, size)
        self.q, self.k, self.v, self.o = (torch.nn.Parameter(torch.randn(shape) * 0.4) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (torch.einsum("bih,hnd->bnid", x, one) for one in (self.q, self.k, self.v))
        mixed = torch.softmax(q @ k.transpose(-1, -2), -1) @ v
        return x + torch.einsum("bnid,hnd->bih", mixed, self.o)


class PaddleLinears(paddle.nn.Layer):
    def __init__(self, heads: int, scale: float = 1.0) -> None:
        super().__init__()
        self.heads, self.scale = heads, scale
        wide = heads * (WIDTH // heads + (heads == 3))
        self.out = paddle.nn.Linear(wide, WIDTH, bias_attr=False)
        self.wq, self.wk, self.wv = (paddle.nn.Linear(WIDTH, wide, bias_attr=False) for _ in range(3))

    def forward(self, x: Any) -> Any:
        made = (one(x).reshape([0, 0, self.heads, -1]) for one in (self.wq, self.wk, self.wv))
        q, k, v = (one.transpose([0, 2, 1, 3]) for one in made)
        mixed = paddle.nn.functional.softmax(q @ k.transpose([0, 1, 3, 2]) * self.scale, -1) @ v
        return x + self.out(mixed.transpose([0, 2, 1, 3]).flatten(2))


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("heads", [2, 3])
def test_three_axes_against_a_matrix_that_is_turned(heads: int, swap: bool) -> None:
    torch.manual_seed(0)
    rows = np.random.default_rng(0).normal(size=(2, 5, WIDTH)).astype("float32")

    def models(scale: float = 1.0) -> list[Any]:
        base = torch.nn.Sequential(*(TorchEinsum(heads) for _ in range(2)))
        raw = paddle.nn.Sequential(*(PaddleLinears(heads, one) for one in (1.0, scale)))
        return [raw, base] if swap else [base, raw]

    assert padiff.compare(*models(), rows).aligned
    found = padiff.compare(*models(0.5), rows).divergence
    assert found is not None
    assert found.raw_path == "1"
    assert any(cause.name == "scale" for cause in found.causes)


LETTERS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta")


class TorchChain(torch.nn.Module):
    """Square projections of three axes, one after the other, of which one is the other way round."""

    def __init__(self) -> None:
        super().__init__()
        for name in LETTERS:
            setattr(self, name, torch.nn.Parameter(torch.randn(WIDTH, 2, WIDTH // 2)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for name in LETTERS:
            w, made = getattr(self, name), x.unflatten(-1, (2, -1))
            turned = name == "epsilon"
            x = torch.einsum("bnd,hnd->bh", made, w) if turned else torch.einsum("bh,hnd->bnd", x, w).flatten(1)
            x = torch.tanh(x)
        return x


class PaddleChain(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        for name in LETTERS:
            setattr(self, name, paddle.nn.Linear(WIDTH, WIDTH, bias_attr=False))

    def forward(self, x: Any) -> Any:
        for name in LETTERS:
            x = paddle.tanh(getattr(self, name)(x))
        return x


def test_one_default_that_is_wrong_is_found_without_trying_many_together() -> None:
    torch.manual_seed(1)
    base, raw = TorchChain(), PaddleChain()
    calls: list[Any] = []
    raw.register_forward_pre_hook(lambda *_: calls.append(1))
    result = padiff.compare(base, raw, np.random.default_rng(1).normal(size=(3, WIDTH)).astype("float32"))
    assert result.aligned, str(result)
    assert result.plan is not None
    assert [choice.chosen for choice in result.plan.choices] == [0, 0, 0, 0, 1, 0, 0]
    assert len(calls) < 16  # 33 where options are kept that bring outputs nearer by chance


class Tabled(torch.nn.Module):
    """Keeps its weights in lists."""

    def __init__(self, *, biases: bool) -> None:
        super().__init__()
        self.ws = torch.nn.ParameterList([torch.randn(6, 6) for _ in range(3)])
        self.bs = torch.nn.ParameterList([torch.randn(6) for _ in range(3 if biases else 0)])
        self.tables = torch.nn.ParameterDict({"day": torch.randn(7, 6), "hour": torch.randn(24, 6)})

    def forward(self, x: Any) -> Any:
        x = self.tables["day"][x[:, 0]] + self.tables["hour"][x[:, 1]]
        for place, weight in enumerate(self.ws):
            x = torch.tanh(x @ weight + (self.bs[place] if len(self.bs) else 0))
        return x


class Untabled(paddle.nn.Layer):
    def __init__(self, *, biases: bool) -> None:
        super().__init__()
        self.days, self.hours = paddle.nn.Embedding(7, 6), paddle.nn.Embedding(24, 6)
        self.layers = paddle.nn.LayerList(
            [paddle.nn.Linear(6, 6, bias_attr=None if biases else False) for _ in range(3)]
        )

    def forward(self, x: Any) -> Any:
        x = self.days(x[:, 0]) + self.hours(x[:, 1])
        for layer in self.layers:
            x = paddle.tanh(layer(x))
        return x


@pytest.mark.parametrize("biases", [False, True])
def test_lists_of_parameters_fill_layers(biases: bool) -> None:
    x = np.stack([np.arange(7), np.arange(7) * 3], axis=1)
    result = padiff.compare(Tabled(biases=biases), Untabled(biases=biases), x)
    assert result.aligned, str(result)
    sources = {entry.path: entry.sources[0].path for entry in result.plan.entries}
    assert sources["hours.weight"] == "tables.hour"
    assert sources["layers.2.weight"] == "ws.2"
