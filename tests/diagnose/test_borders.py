"""Where authors draw borders differently (a norm with its activation, a block with its residual), the borders are not
to blame for what goes wrong elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff

X = np.random.default_rng(1).normal(size=(4, 3, 8, 8)).astype("float32")


class Apart(torch.nn.Module):
    """Norm and activation are two modules; the block adds its input."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = torch.nn.Conv2d(3, 8, 3, padding=1, bias=False), torch.nn.BatchNorm2d(8)
        self.relu = torch.nn.ReLU(inplace=True)
        self.conv2, self.bn2 = torch.nn.Conv2d(8, 8, 3, padding=1, bias=False), torch.nn.BatchNorm2d(8)
        self.conv3, self.bn3 = torch.nn.Conv2d(8, 8, 3, padding=1, bias=False), torch.nn.BatchNorm2d(8)
        self.head = torch.nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        x = self.relu(self.bn1(self.conv1(x)))
        x = x + self.relu(self.bn2(self.conv2(x)))
        x = x + self.relu(self.bn3(self.conv3(x)))
        return self.head(x.mean((2, 3)))


class ConvNorm(paddle.nn.Layer):
    """The activation comes with the norm."""

    def __init__(self, inner: int, eps: float) -> None:
        super().__init__()
        self.conv = paddle.nn.Conv2D(inner, 8, 3, padding=1, bias_attr=False)
        self.norm = paddle.nn.BatchNorm(8, act="relu", epsilon=eps)

    def forward(self, x: Any) -> Any:
        return self.norm(self.conv(x))


class Residual(paddle.nn.Layer):
    """The input is added by a wrapper."""

    def __init__(self, inside: paddle.nn.Layer) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: Any) -> Any:
        return x + self.inside(x)


class Together(paddle.nn.Layer):
    def __init__(self, eps: float = 1e-5, scale: float = 1.0, pooled: float = 1.0) -> None:
        super().__init__()
        self.stem = ConvNorm(3, eps)
        self.one, self.two = Residual(ConvNorm(8, eps)), Residual(ConvNorm(8, eps))
        self.fc = paddle.nn.Linear(8, 5)
        self.scale, self.pooled = scale, pooled

    def forward(self, x: Any) -> Any:
        x = self.one(self.stem(x))
        x = self.two(x * self.scale)
        return self.fc(x.mean([2, 3])) * self.pooled


def pair(**wrong: Any) -> tuple[Any, Any]:
    torch.manual_seed(0)
    base = Apart()
    for name, tensor in (*base.named_parameters(), *base.named_buffers()):
        if tensor.dtype.is_floating_point:
            low = 0.5 if name.endswith(("var", "weight")) and tensor.ndim == 1 else -0.5
            torch.nn.init.uniform_(tensor, low, 1.0)
    raw = Together(**wrong)
    raw.eval()
    return base.eval(), raw


def test_the_borders_alone_are_no_difference() -> None:
    result = padiff.compare(*pair(), X)
    assert result.aligned, str(result)


@pytest.mark.parametrize(("wrong", "where"), [({"scale": 1.01}, ("one", "two")), ({"pooled": 1.01}, ("fc", ""))])
def test_the_models_own_code_is_blamed_and_not_a_norm_that_rectifies(
    wrong: dict[str, float], where: tuple[str, str]
) -> None:
    found = padiff.compare(*pair(**wrong), X).divergence
    assert found is not None
    assert (found.base_path, found.raw_path, found.phase) == ("", "", "forward")
    before, after = where
    text = str(found)
    assert f"{before} (line" in text
    assert not after or f"{after} (line" in text


def test_the_first_of_several_norms_with_another_epsilon() -> None:
    found = padiff.compare(*pair(eps=1e-3), X).divergence
    assert found is not None
    assert (found.base_path, found.raw_path) == ("bn1", "stem.norm")


class Scaled(torch.nn.Module):
    """A dropout that does nothing, before the scale or after it."""

    def __init__(self, first: bool, factor: float = 1.0) -> None:
        super().__init__()
        self.first, self.factor = first, factor
        self.fc1, self.drop, self.fc2 = torch.nn.Linear(6, 6), torch.nn.Dropout(0.0), torch.nn.Linear(6, 6)
        self.gamma = torch.nn.Parameter(torch.rand(6) + 0.5)
        if not first:
            self.extra = torch.nn.Identity()

    def forward(self, x: Any) -> Any:
        y = self.fc1(x)
        y = self.drop(y) * self.gamma if self.first else self.extra(self.drop(y * self.gamma))
        return self.fc2(x + y * self.factor)


@pytest.mark.parametrize("first", [True, False])
def test_a_dropout_that_idles_elsewhere(first: bool) -> None:
    x = np.random.default_rng(0).normal(size=(3, 6)).astype("float32")
    assert padiff.compare(Scaled(first).eval(), Scaled(not first).eval(), x).aligned
    found = padiff.compare(Scaled(first).eval(), Scaled(not first, factor=1.01).eval(), x).divergence
    assert found is not None
    assert (found.raw_path, found.phase) == ("", "forward")
    assert "fc2 (line" in str(found)


def test_both_sides_have_their_lines_though_base_lacks_the_wrapper() -> None:
    found = padiff.compare(*pair(scale=1.01), X).divergence
    assert found is not None
    base, raw = found.source
    assert "self.relu(self.bn2(self.conv2(x)))" in base[-1].text  # makes what raw multiplies, and goes on with it
    assert "self.two(x * self.scale)" in raw[-1].text
    assert found.op is not None
    assert (found.op.base, found.op.raw) == ("", "paddle.Tensor.__mul__")
