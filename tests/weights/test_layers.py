"""Every pair of layers in the table, in every direction: copied, they compute the same; copied back, the same bits."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import paddle
import pytest
import torch

from padiff.frameworks import paddle_layers, torch_layers
from tests.weights.layer_cases import CASES, Arrays, LayerCase
from tests.weights.models import bits, copy, live

DIRECTIONS = list(product(("torch", "paddle"), repeat=2))


def build(case: LayerCase, framework: str, draw: int) -> Any:
    return getattr(case, framework)(draw)


def outputs(case: LayerCase, framework: str, model: Any) -> Arrays:
    """What the layer computes on the case's inputs."""
    if framework == "torch":
        with torch.no_grad():
            found = case.call_torch(model, *(torch.from_numpy(array.copy()) for array in case.inputs()))
    else:
        with paddle.no_grad():
            found = case.call_paddle(model, *(paddle.to_tensor(array) for array in case.inputs()))
    return tuple(tensor.numpy() for tensor in found)


def apart(one: Arrays, other: Arrays) -> float:
    """The largest difference against the largest value, over all outputs."""
    assert [array.shape for array in one] == [array.shape for array in other]
    return max(float(np.abs(a - b).max() / np.abs(a).max()) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(("base", "raw"), DIRECTIONS, ids=lambda name: name)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_copied_layers_agree(case: LayerCase, base: str, raw: str) -> None:
    base_model, raw_model = build(case, base, 1), build(case, raw, 2)
    expected = outputs(case, base, base_model)
    assert apart(expected, outputs(case, raw, raw_model)) > 1e-3, "they agree before anything is copied"

    before = bits(base_model)
    assert copy(base_model, raw_model)
    assert bits(base_model) == before, "base was written to"
    assert apart(expected, outputs(case, raw, raw_model)) < 1e-5

    twin = build(case, base, 3)
    assert bits(twin) != before
    assert copy(raw_model, twin)
    assert apart(expected, outputs(case, base, twin)) == 0  # and paddle's norms recompute the weight they normalise
    assert bits(twin) == before


NOT_RUN = {
    "adaptive_log_softmax_with_loss": "paddle 3.3.1 keeps its tails out of reach of parameters()",
}


def test_every_layer_that_both_tables_know_has_a_case() -> None:
    tables = (torch_layers.LAYERS, paddle_layers.LAYERS)
    both = set.intersection(*({spec.layer for spec in table.values() if spec.stored} for table in tables))
    met = {node.layer for case in CASES for model in (case.torch(), case.paddle()) for node in live(model).tree.nodes}
    assert both - met == set(NOT_RUN)
