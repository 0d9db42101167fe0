"""Whatever base draws is given to raw: both frameworks, all directions, forward and backward."""

from __future__ import annotations

import paddle
import pytest
import torch

import padiff
from tests.randomness.layers import LAYERS, PaddleSkips, TorchSkips
from tests.randomness.models import FEATURES, KINDS, UNLIKE, adam, data, net
from tests.twins import FRAMEWORKS, PAIRS, randomise


@pytest.mark.parametrize(("base", "raw"), PAIRS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_draw_is_replayed(kind: str, base: str, raw: str) -> None:
    result = padiff.compare(net(base, KINDS[kind]), net(raw, KINDS[kind]), data())
    assert result.aligned, str(result)
    assert {one.phase for one in result.comparisons} == {"forward", "backward", "gradient"}
    assert result.replayed > 0
    assert result.notes == ()


@pytest.mark.parametrize(("base", "raw"), PAIRS)
@pytest.mark.parametrize("kind", UNLIKE)
def test_a_kernel_with_another_gradient_keeps_it(kind: str, base: str, raw: str) -> None:
    """A model that is given draws has the gradients that it has with its own."""
    result = padiff.compare(net(base, UNLIKE[kind]), net(raw, UNLIKE[kind]), data())
    assert result.replayed > 0
    assert result.aligned is (base == raw), str(result)
    if base != raw:
        assert result.divergence is not None
        assert (result.divergence.phase, result.divergence.raw_path) == ("backward", "")


@pytest.mark.parametrize(("base", "raw"), PAIRS)
@pytest.mark.parametrize("kind", LAYERS)
def test_layers_that_drop_inside(kind: str, base: str, raw: str) -> None:
    models = [LAYERS[kind][framework]() for framework in (base, raw)]
    for model in models:
        randomise(model)
        model.train()
    result = padiff.compare(*models, data(3, 4, FEATURES))
    assert result.aligned, str(result)
    assert result.replayed > 0
    assert result.notes == ()


@pytest.mark.parametrize(("base", "raw"), PAIRS)
@pytest.mark.parametrize("kind", ["dropout", "drop path", "noise", "gumbel softmax"])
def test_draws_are_replayed_in_every_step(kind: str, base: str, raw: str) -> None:
    models = net(base, KINDS[kind]), net(raw, KINDS[kind])
    result = padiff.compare(*models, data(), steps=4, optimizers=tuple(adam(one) for one in models))
    assert result.aligned, str(result)
    assert len(result.steps) == 4
    assert result.replayed == 4


@pytest.mark.parametrize("raw", FRAMEWORKS)
def test_generators_of_the_models_own(raw: str) -> None:
    own = torch.Generator().manual_seed(1)
    base = net("torch", {"torch": lambda x: x + torch.randn(x.shape, generator=own)})
    other = net(raw, {"torch": lambda x: x + torch.randn_like(x), "paddle": lambda x: x + paddle.randn(x.shape)})
    result = padiff.compare(base, other, data(), steps=2, optimizers=(adam(base), adam(other)))
    assert result.aligned, str(result)
    assert result.replayed == 2


@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_layers_left_out_by_chance(base: str, raw: str) -> None:
    ways = {"torch": TorchSkips, "paddle": PaddleSkips}
    models = ways[base](), ways[raw]()
    for model in models:
        randomise(model)
        model.train()
    result = padiff.compare(*models, data())
    assert result.aligned, str(result)
    assert result.notes == ()
    assert result.replayed > 6


def test_what_runs_twice_is_counted_once() -> None:
    """Under autocast on one side raw runs again, and is given the same again."""
    raw = net("torch", KINDS["dropout"])
    raw.forward = torch.autocast("cpu", dtype=torch.bfloat16)(raw.forward)
    result = padiff.compare(net("torch", KINDS["dropout"]), raw, data())
    assert result.aligned, str(result)
    assert result.replayed == 1
