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
