"""What is left of larger numbers is moved by what those lose: ``exp(x) - 1`` loses a last digit of one."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff
from padiff.capture.jitter import Jitter
from padiff.capture.perturb import perturbed
from padiff.frameworks import adapter_of_model, module_tree

SIDES = [(torch, paddle), (paddle, torch)]
NAMES = ["paddle against torch", "torch against paddle"]


def net(framework: Any, between: Any) -> Any:
    linear = framework.nn.Linear
    return framework.nn.Sequential(linear(16, 32), between, linear(32, 16), linear(16, 4))


def both(sides: tuple[Any, Any], make: Any) -> list[Any]:
    """A net for each of the frameworks, without biases: nothing else gives activations a size."""
    models = [net(framework, make(framework)) for framework in sides]
    with torch.no_grad(), paddle.no_grad():
        for model in models:
            for name, parameter in model.named_parameters():
                if name.endswith("bias"):
                    parameter.zero_()
    return models


def rows(scale: float) -> np.ndarray:
    return (np.random.default_rng(0).normal(size=(64, 16)) * scale).astype("float32")


@pytest.mark.parametrize("sides", SIDES, ids=NAMES)
@pytest.mark.parametrize("name", ["ELU", "CELU", "SELU", "Tanhshrink"])
def test_small_activations_that_one_framework_takes_from_one(name: str, sides: tuple[Any, Any]) -> None:
    for scale in (1e-2, 1e-4):
        assert padiff.compare(*both(sides, lambda framework: getattr(framework.nn, name)()), rows(scale)).aligned


@pytest.mark.parametrize("sides", SIDES, ids=NAMES)
@pytest.mark.parametrize("name", ["GroupNorm", "Mish", "Softplus"])
def test_activations_far_from_zero(name: str, sides: tuple[Any, Any]) -> None:
    """A variance that is the mean of squares less the square of the mean; ``log(1 + exp(x))`` far below zero."""
    given = (4, 32) if name == "GroupNorm" else ()
    for far, off in ((-12.0, False), (-5.0, False), (-5.0, True)):
        base, raw = both(sides, lambda framework: getattr(framework.nn, name)(*given))
        with torch.no_grad(), paddle.no_grad():
            base[0].bias.fill_(far)
            assert padiff.assign_weight(base, raw)
            if off:  # by a thousandth
                raw[1] = Off(raw[1]) if sides[1] is torch else PaddleOff(raw[1])
        divergence = padiff.compare(base, raw, rows(1.0), weights="keep").divergence
        assert (divergence.raw_path if divergence else None) == ("1" if off else None)


@pytest.mark.parametrize("sides", SIDES, ids=NAMES)
def test_numbers_that_are_all_the_same_less_their_mean(sides: tuple[Any, Any]) -> None:
    def made(framework: Any) -> Any:
        torch.manual_seed(0)
        paddle.seed(0)
        if framework is torch:
            layers = torch.nn.Conv1d(3, 8, 3, padding=1), torch.nn.InstanceNorm1d(8, affine=True)
            return torch.nn.Sequential(*layers, torch.nn.Conv1d(8, 4, 1))
        layers = paddle.nn.Conv1D(3, 8, 3, padding=1), paddle.nn.InstanceNorm1D(8)
        return paddle.nn.Sequential(*layers, paddle.nn.Conv1D(8, 4, 1))

    base, raw = (made(framework) for framework in sides)
    values = np.random.default_rng(0).uniform(-0.6, 0.6, 8).astype("float32")
    with torch.no_grad(), paddle.no_grad():
        base[0].bias.copy_(torch.from_numpy(values)) if sides[0] is torch else base[0].bias.set_value(values)
    assert padiff.compare(base, raw, np.zeros((4, 3, 17), "float32")).aligned


class TorchOwn(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.expm1(x) + torch.log1p(x.abs())


class PaddleOwn(paddle.nn.Layer):
    def forward(self, x: Any) -> Any:
        return paddle.exp(x) - 1 + paddle.log(1 + x.abs())


@pytest.mark.parametrize("sides", SIDES, ids=NAMES)
def test_an_author_who_takes_one_away_by_hand(sides: tuple[Any, Any]) -> None:
    models = both(sides, lambda framework: TorchOwn() if framework is torch else PaddleOwn())
    assert padiff.compare(*models, rows(1e-3)).aligned


@pytest.mark.parametrize("phase", ["forward", None])
@pytest.mark.parametrize("sides", SIDES, ids=NAMES)
def test_an_error_of_a_thousandth_is_seen_all_the_same(sides: tuple[Any, Any], phase: Any) -> None:
    """Also after it, where what is lost moves activations further than the error does."""
    for scale, place in ((1e-3, "1"), (1e-4, "2"), (1e-5, "3")):
        base, raw = both(sides, lambda framework: framework.nn.ELU())
        assert padiff.assign_weight(base, raw)
        with torch.no_grad(), paddle.no_grad():
            if place == "1":
                raw[1] = Off(raw[1]) if sides[1] is torch else PaddleOff(raw[1])
            else:
                raw[int(place)].weight.multiply_(raw[int(place)].weight * 0 + 1.001)
        options = {} if phase is None else {"phase": phase}
        result = padiff.compare(base, raw, rows(scale), weights="keep", **options)
        assert result.divergence is not None and result.divergence.raw_path == place


class Off(torch.nn.Module):
    def __init__(self, inner: Any) -> None:
        super().__init__()
        self._call = [inner]

    def forward(self, x: Any) -> Any:
        return self._call[0](x) * 1.001


class PaddleOff(paddle.nn.Layer):
    def __init__(self, inner: Any) -> None:
        super().__init__()
        self._call = [inner]

    def forward(self, x: Any) -> Any:
        return self._call[0](x) * 1.001


@pytest.mark.parametrize("framework", [torch, paddle])
def test_who_computes_what_is_moved(framework: Any) -> None:
    """Only the thread that shakes a model, only what is left of larger numbers, and never what is exact."""
    model = net(framework, framework.nn.ELU())
    live = module_tree(adapter_of_model(model, "model"), model)
    small = framework.to_tensor(rows(1e-4)) if framework is paddle else torch.from_numpy(rows(1e-4))

    def computed() -> list[np.ndarray]:
        ones = small * 0 + 1
        found = [framework.expm1(small), framework.expm1(small * 1e4), 1 - ones, ones - (1 + small)]
        return [np.array(one.numpy()) for one in found]

    plain = computed()
    elsewhere: list[list[np.ndarray]] = []
    with perturbed(live, Jitter()):
        thread = threading.Thread(target=lambda: elsewhere.append(computed()))
        thread.start()
        thread.join()
        moved = computed()
    assert [np.array_equal(one, other) for one, other in zip(plain, moved, strict=True)] == [False, True, True, False]
    for again in (elsewhere[0], computed()):
        assert all(np.array_equal(one, other) for one, other in zip(plain, again, strict=True))
