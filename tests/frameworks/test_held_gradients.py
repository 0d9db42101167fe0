"""A gradient that somebody holds stays what it was while its parameter gets another."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
import torch

from padiff.frameworks import adapter_named


def backward(framework: str, model: object, factor: float) -> None:
    ones = torch.ones(2, 3) if framework == "torch" else paddle.ones([2, 3])
    model(factor * ones).sum().backward()  # type: ignore[operator]


@pytest.mark.parametrize("framework", ["torch", "paddle"])
def test_a_held_gradient_is_neither_freed_nor_written(framework: str) -> None:
    adapter = adapter_named(framework)
    model = (torch if framework == "torch" else paddle).nn.Linear(3, 3)
    backward(framework, model, 1.0)
    first = adapter.gradient(model.weight)
    assert adapter.gradient_stays(model.weight)
    adapter.set_gradient(model.weight, None)
    backward(framework, model, 100.0)
    second = adapter.gradient(model.weight)
    adapter.set_gradient(model.weight, first)
    held = [float(adapter.to_numpy(one).max()) for one in (first, second, adapter.gradient(model.weight))]
    assert held == [2.0, 200.0, 2.0]
    adapter.set_gradient(model.weight, None)
    assert adapter.gradient(model.weight) is None
    assert np.array_equal(adapter.to_numpy(first), np.full((3, 3), 2.0))
