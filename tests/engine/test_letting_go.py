"""What is left in memory when a comparison is over: nothing that waits for Python's collector."""

from __future__ import annotations

import gc
from collections import Counter
from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff
from tests.twins import PAIRS, batch, net


def auto_diff(base: Any, raw: Any, x: np.ndarray) -> None:
    assert padiff.auto_diff(base, raw, ({"x": x}, {"x": x}), atol=1e-4)


def compare(base: Any, raw: Any, x: np.ndarray) -> None:
    assert padiff.compare(base, raw, {"x": x}).aligned


@pytest.mark.parametrize("run", [auto_diff, compare])
@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_nothing_waits_for_the_collector(base: str, raw: str, run: Any) -> None:
    models = net(base), net(raw)
    run(*models, batch())
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        run(*models, batch())
        gc.collect()
        left = Counter(type(thing).__name__ for thing in gc.garbage if type(thing).__module__.startswith("padiff"))
        left["tensor"] += sum(isinstance(thing, (torch.Tensor, paddle.Tensor)) for thing in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert +left == Counter()


@pytest.mark.parametrize(("base", "raw"), PAIRS)
@pytest.mark.parametrize("wrong", [False, True])
def test_a_result_holds_no_tensor_of_the_models_size(base: str, raw: str, wrong: bool) -> None:
    """Whoever keeps results of large models keeps no gradients of theirs."""
    models = net(base), net(raw)
    padiff.compare(*models, {"x": batch()})
    if wrong:
        weight = next(iter(models[1].parameters()))
        weight.set_value(weight * 1.5) if raw == "paddle" else weight.data.mul_(1.5)
    gc.collect()

    def held() -> int:
        tensors = [one for one in gc.get_objects() if issubclass(type(one), (torch.Tensor, paddle.Tensor))]
        return sum(int(np.prod(tuple(one.shape))) for one in tensors)

    before = held()
    result = padiff.compare(*models, {"x": batch()}, weights="keep")
    gc.collect()
    assert result.aligned is not wrong
    size = sum(int(np.prod(tuple(one.shape))) for one in models[0].parameters())
    assert held() - before < size / 4
    assert not any(trace.parameter_gradients for step in result.steps for trace in (step.base, step.raw))
