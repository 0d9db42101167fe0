"""Functions of the user's own that fill a pair of layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import paddle
import pytest
import torch

from padiff import add_special_init, assign_weight, auto_diff
from padiff.errors import ArgumentError
from padiff.weights import special as special_init
from tests.autodiff.conftest import Log
from tests.autodiff.models import SimpleLayer, SimpleModule


@pytest.fixture(autouse=True)
def own_functions(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The call registers for the process: each test has a registry of its own."""
    monkeypatch.setattr(special_init, "_functions", {})
    yield


class TorchScale(torch.nn.Module):
    """Keeps its factors as logarithms."""

    def __init__(self) -> None:
        super().__init__()
        self.log_factor = torch.nn.Parameter(torch.randn(6))

    def forward(self, x: Any) -> Any:
        return x * self.log_factor.exp()


class PaddleScale(paddle.nn.Layer):
    """Keeps the factors themselves, in one piece with an offset."""

    def __init__(self) -> None:
        super().__init__()
        self.table = self.create_parameter([2, 6])

    def forward(self, x: Any) -> Any:
        return x * self.table[0] + self.table[1]


class TorchNet(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(4, 6)
        self.scale = TorchScale()

    def forward(self, x: Any) -> Any:
        return self.scale(self.fc(x))


class PaddleNet(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.fc = paddle.nn.Linear(4, 6)
        self.scale = PaddleScale()

    def forward(self, x: Any) -> Any:
        return self.scale(self.fc(x))


def fill(base_layer: Any, raw_layer: Any) -> None:
    factor = base_layer.log_factor.detach().exp().numpy()
    raw_layer.table.set_value(np.stack([factor, np.zeros_like(factor)]))


def test_it_fills_what_no_table_knows(log: Log) -> None:
    module, layer = TorchNet(), PaddleNet()
    assert assign_weight(module, layer) is False
    log()
    add_special_init("torch", "TorchScale", "paddle", "PaddleScale", fill)
    inp = ({"x": np.random.rand(3, 4).astype("float32")},) * 2
    assert auto_diff(module, layer, inp, atol=1e-5, diff_phase="forward") is True
    lines = log()
    told = "1 layer is filled by a function of yours (scale): gradients and weights inside are not compared"
    assert told in lines
    line = "2 tensors and 1 layer with an initialisation of yours of raw_model were overwritten"
    assert any(said.endswith(line) for said in lines)


def test_it_wins_over_the_built_in_table() -> None:
    def zeros(base_layer: Any, raw_layer: Any) -> None:
        raw_layer.weight.set_value(paddle.zeros_like(raw_layer.weight))

    add_special_init("torch", "Linear", "paddle", "Linear", zeros)
    layer = SimpleLayer()
    assert assign_weight(SimpleModule(), layer) is True
    assert not layer.linear1.weight.numpy().any()


def test_it_counts_for_its_own_direction_only() -> None:
    def never(base_layer: Any, raw_layer: Any) -> None:
        raise AssertionError

    add_special_init("paddle", "Linear", "torch", "Linear", never)
    assert assign_weight(SimpleModule(), SimpleLayer()) is True


def test_the_function_is_handed_base_then_raw() -> None:
    seen: list[tuple[str, str]] = []

    def note(base_layer: Any, raw_layer: Any) -> None:
        seen.append((type(base_layer).__module__.partition(".")[0], type(raw_layer).__module__.partition(".")[0]))

    add_special_init("torch", "Linear", "paddle", "Linear", note)
    assign_weight(SimpleLayer(), SimpleModule())
    assert seen == [("torch", "paddle")] * 2


def test_when_it_raises_nothing_is_copied_and_the_log_says_where(log: Log) -> None:
    def broken(base_layer: Any, raw_layer: Any) -> None:
        raw_layer.weight.set_value(paddle.zeros_like(raw_layer.weight))
        raise KeyError("in_proj")

    add_special_init("torch", "Linear", "paddle", "Linear", broken)
    layer = SimpleLayer()
    before = layer.linear1.weight.numpy().copy()
    assert assign_weight(SimpleModule(), layer) is False
    assert (layer.linear1.weight.numpy() == before).all()
    lines = log()
    assert lines[0] == "Assign weight Failed !!!"
    assert lines[1].endswith("no weights were overwritten")
    assert lines[2] == "    KeyError: 'in_proj'"
    assert "test_special_init.py: " in lines[3]


WRONG: list[tuple[tuple[Any, ...], list[str]]] = [
    (("tensorflow", "A", "paddle", "B", fill), ["base_framework", "'tensorflow'", "'paddle' or 'torch'"]),
    (("torch", "A", "pytorch", "B", fill), ["raw_framework", "'pytorch'", "'paddle' or 'torch'"]),
    (("torch", torch.nn.Linear, "paddle", "B", fill), ["base_class_name", "expected a name"]),
    (("torch", "A", "paddle", "", fill), ["raw_class_name", "''", "expected a name"]),
    (("torch", "A", "paddle", "B", "fill"), ["func is a str", "expected a function of (base_layer, raw_layer)"]),
]


@pytest.mark.parametrize(("args", "said"), WRONG)
def test_wrong_calls(args: tuple[Any, ...], said: list[str]) -> None:
    with pytest.raises(ArgumentError) as caught:
        add_special_init(*args)
    for part in said:
        assert part in str(caught.value)
