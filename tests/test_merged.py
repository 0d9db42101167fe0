"""What one model does in two modules and the other in one, with weights made of both: merged adapters, folded norms."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff
from tests.twins import PAIRS

RATE = 2.0


def weights(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape, scale=0.4).astype("float32")


class TorchAdapted(torch.nn.Module):
    def __init__(self, seed: int, frozen: bool) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(6, 6, bias=False)
        self.inner.weight.data = torch.from_numpy(weights(seed, 6, 6))
        self.inner.weight.requires_grad_(not frozen)
        self.down = torch.nn.Parameter(torch.from_numpy(weights(seed + 10, 2, 6)))
        self.up = torch.nn.Parameter(torch.from_numpy(weights(seed + 20, 6, 2)))

    def forward(self, x: Any) -> Any:
        return self.inner(x) + x @ self.down.T @ self.up.T * RATE


class PaddleAdapted(paddle.nn.Layer):
    def __init__(self, seed: int, frozen: bool) -> None:
        super().__init__()
        self.inner = paddle.nn.Linear(6, 6, bias_attr=False)
        self.inner.weight.set_value(weights(seed, 6, 6).T)
        self.inner.weight.stop_gradient = frozen
        self.down, self.up = self.create_parameter([2, 6]), self.create_parameter([6, 2])
        self.down.set_value(weights(seed + 10, 2, 6))
        self.up.set_value(weights(seed + 20, 6, 2))

    def forward(self, x: Any) -> Any:
        return self.inner(x) + x @ self.down.T @ self.up.T * RATE


def product(seed: int) -> np.ndarray:
    return weights(seed + 20, 6, 2) @ weights(seed + 10, 2, 6)


def torch_merged(seed: int, rate: float, frozen: bool) -> Any:
    found = torch.nn.Linear(6, 6, bias=False)
    found.weight.data = torch.from_numpy(weights(seed, 6, 6) + rate * product(seed))
    found.weight.requires_grad_(not frozen)
    return found


def paddle_merged(seed: int, rate: float, frozen: bool) -> Any:
    found = paddle.nn.Linear(6, 6, bias_attr=False)
    found.weight.set_value((weights(seed, 6, 6) + rate * product(seed)).T)
    found.weight.stop_gradient = frozen
    return found


class TorchModel(torch.nn.Module):
    def __init__(self, *layers: Any) -> None:
        super().__init__()
        self.first, self.second, self.third = layers
        self.head = torch.nn.Linear(6, 3)
        self.head.weight.data, self.head.bias.data = torch.from_numpy(weights(7, 3, 6)), torch.zeros(3)

    def forward(self, x: Any) -> Any:
        x = torch.tanh(self.first(x))
        x = torch.tanh(self.second(x)) + x
        return self.head(self.third(x))


class PaddleModel(paddle.nn.Layer):
    def __init__(self, *layers: Any) -> None:
        super().__init__()
        self.first, self.second, self.third = layers
        self.head = paddle.nn.Linear(6, 3)
        self.head.weight.set_value(weights(7, 3, 6).T)

    def forward(self, x: Any) -> Any:
        x = paddle.tanh(self.first(x))
        x = paddle.tanh(self.second(x)) + x
        return self.head(self.third(x))


def adapted(framework: str, frozen: bool = True) -> Any:
    if framework == "torch":
        return TorchModel(*(TorchAdapted(seed, frozen) for seed in range(3)))
    return PaddleModel(*(PaddleAdapted(seed, frozen) for seed in range(3)))


def merged(framework: str, *rates: float, frozen: bool = True) -> Any:
    rates = rates or (RATE, RATE, RATE)
    if framework == "torch":
        return TorchModel(*(torch_merged(seed, rate, frozen) for seed, rate in enumerate(rates)))
    return PaddleModel(*(paddle_merged(seed, rate, frozen) for seed, rate in enumerate(rates)))


def compared(base: Any, raw: Any, **more: Any) -> padiff.Result:
    return padiff.compare(base, raw, weights(99, 5, 6), weights="keep", **more)


@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_a_merged_adapter_agrees(base: str, raw: str) -> None:
    result = compared(adapted(base), merged(raw))
    assert result.aligned, result.divergence
    outputs = {one.raw_path: one.base_path for one in result.comparisons if one.role == "output"}
    assert outputs["second"] == "second"


@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_an_adapter_beside_what_it_was_merged_into_is_no_difference(base: str, raw: str) -> None:
    result = compared(merged(base), adapted(raw))
    assert result.divergence is None
    assert not result.aligned  # half of raw's parameters are nowhere in base: that is said
    assert any("of raw's parameters have a partner" in note for note in result.notes)


@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_one_merged_by_another_rate_is_named(base: str, raw: str) -> None:
    found = compared(adapted(base), merged(raw, RATE, 1.0, RATE)).divergence
    assert found is not None
    assert (found.raw_path, found.phase) == ("second", "forward")
    assert found.causes[0].name == "weights differ"


@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_one_that_is_trained_on_one_side_only(base: str, raw: str) -> None:
    found = compared(adapted(base), merged(raw, frozen=False)).divergence
    assert found is not None
    assert (found.phase, found.causes[0].name) == ("gradient", "no gradient")
    assert found.causes[0].evidence == "raw has it, base has none: it is frozen in base"


class Folding(torch.nn.Module):
    """Convolutions with norms, or with what is left of them."""

    def __init__(self, folded: bool, bug: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        for place in range(3):
            convolution, norm = torch.nn.Conv2d(4, 4, 3, padding=1, bias=False), torch.nn.BatchNorm2d(4)
            torch.nn.init.uniform_(norm.running_mean, -1, 1)
            torch.nn.init.uniform_(norm.running_var, 0.5, 2)
            if folded:
                convolution = torch.nn.utils.fuse_conv_bn_eval(convolution.eval(), norm.eval())
                if bug and place == 1:
                    convolution.bias.data += 0.1
            else:
                self.add_module(f"norm{place}", norm)
            self.add_module(f"convolution{place}", convolution)
        self.eval()

    def forward(self, x: Any) -> Any:
        for place in range(3):
            x = getattr(self, f"convolution{place}")(x)
            norm = getattr(self, f"norm{place}", None)
            x = torch.relu(x if norm is None else norm(x))
        return x


def test_a_folded_norm_is_no_difference() -> None:
    image = weights(1, 2, 4, 5, 5)
    for folded in (False, True):
        result = padiff.compare(Folding(folded), Folding(not folded), image, weights="keep", phase="forward")
        assert result.divergence is None


def test_a_norm_folded_wrongly_is_named() -> None:
    image = weights(1, 2, 4, 5, 5)
    result = padiff.compare(Folding(False), Folding(True, bug=True), image, weights="keep", phase="forward")
    assert result.divergence is not None
    assert result.divergence.raw_path == "convolution1"
