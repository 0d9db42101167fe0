"""How a fused projection is laid out is settled as raw comes to it: no model runs once more for that."""

from __future__ import annotations

from typing import Any

import paddle
import pytest
import torch

import padiff
from tests.engine.test_crossings import counted
from tests.weights.test_fused import LAYOUTS, WIDTH, Fused, Separate, Wrong, X


def blocks(framework: Any, *attentions: Any) -> Any:
    return framework.nn.Sequential(framework.nn.Linear(WIDTH, WIDTH), *attentions)


def models(layout: str, order: str, name: str, swap: bool) -> tuple[Any, Any]:
    separate = blocks(torch, Separate(), Separate())
    fused = blocks(paddle, Fused(layout, order, name), Fused(layout, order, name))
    return (fused, separate) if swap else (separate, fused)


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize(("order", "name"), [("qkv", "qkv"), ("vkq", "mixed"), ("qkv", "mixed")])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_aligned_pair_runs_as_often_as_any_other(layout: str, order: str, name: str, swap: bool) -> None:
    base, raw = models(layout, order, name, swap)
    called = counted(base), counted(raw)
    result = padiff.compare(base, raw, X)
    assert result.aligned, str(result)
    assert [len(side) for side in called] == [2, 1]
    assert result.plan is not None
    said = {entry.evidence for entry in result.plan.entries if "q_proj" in str(entry)}
    assert all("match" in evidence for evidence in said), said


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_wrong_elsewhere_stays_wrong(layout: str) -> None:
    base, raw = models(layout, "qkv", "mixed", False)
    raw[2].proj.register_forward_post_hook(lambda _, given, made: made * 1.01)
    called = counted(base), counted(raw)
    result = padiff.compare(base, raw, X)
    assert [one.raw_path for one in result.divergences] == ["2.proj"], str(result)
    assert [len(side) for side in called] == [4, 2]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_where_every_block_is_wrong(layout: str) -> None:
    base, raw = blocks(torch, Separate(), Separate()), blocks(paddle, Wrong(layout), Wrong(layout))
    result = padiff.compare(base, raw, X)
    assert result.divergence is not None
    assert result.divergence.raw_path == "1", str(result)


class Cached(Fused):
    """Keeps what it is given in an object of the caller's."""

    def forward(self, x: Any, kept: Any = None) -> Any:
        if kept is not None:
            kept.calls += 1
        return super().forward(x)


class Counter:
    calls = 0


class Calling(paddle.nn.Layer):
    def __init__(self, layout: str) -> None:
        super().__init__()
        self.first, self.attention, self.kept = paddle.nn.Linear(WIDTH, WIDTH), Cached(layout, name="mixed"), None

    def forward(self, x: Any) -> Any:
        kept = Counter()
        made = self.attention(self.first(x), kept=kept)
        assert kept.calls == 1
        return made


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_a_module_may_change_is_not_given_to_it_twice(layout: str) -> None:
    base = blocks(torch, Separate())
    result = padiff.compare(base, Calling(layout), X)
    assert result.aligned, str(result)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_is_left_behind(layout: str) -> None:
    base, raw = models(layout, "qkv", "mixed", False)
    raw.train()
    paddle.seed(3)
    before = paddle.get_rng_state()[0].current_seed(), paddle.rand([2]).tolist()
    paddle.seed(3)
    assert padiff.compare(base, raw, X).aligned
    assert (paddle.get_rng_state()[0].current_seed(), paddle.rand([2]).tolist()) == before
    assert all(parameter.grad is None for parameter in raw.parameters())
    assert all(not layer._forward_pre_hooks for layer in raw.sublayers(include_self=True))
