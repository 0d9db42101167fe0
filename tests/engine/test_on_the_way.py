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


class Gated(torch.nn.Module):
    """Attention whose query and key are normed, and gated layers after it."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.q_norm, self.k_norm = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)

    def forward(self, x: Any) -> Any:
        q, k = self.q_norm(self.q_proj(x)), self.k_norm(self.k_proj(x))
        return self.o_proj((q @ k.transpose(1, 2)).softmax(-1) @ self.v_proj(x))


class GatedMlp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Any) -> Any:
        return self.down_proj(torch.nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class FusedGated(paddle.nn.Layer):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.wqkv, self.wo, self.scale = paddle.nn.Linear(WIDTH, 3 * WIDTH), paddle.nn.Linear(WIDTH, WIDTH), scale
        self.norms = paddle.nn.LayerList([paddle.nn.LayerNorm(WIDTH), paddle.nn.LayerNorm(WIDTH)])

    def forward(self, x: Any) -> Any:
        q, k, v = self.wqkv(x).chunk(3, -1)
        scores = self.norms[0](q) @ self.norms[1](k).transpose([0, 2, 1])
        return self.wo(paddle.nn.functional.softmax(scores * self.scale) @ v)


class FusedMlp(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.w13, self.w2 = paddle.nn.Linear(WIDTH, 2 * WIDTH), paddle.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        gate, up = self.w13(x).chunk(2, -1)
        return self.w2(paddle.nn.functional.silu(gate) * up)


def test_what_one_run_told_and_what_the_next_one_tells_is_not_asked_again() -> None:
    """Layers inside of attention tell of its layout though it is wrong; what comes after agrees on base's tensors."""
    base = torch.nn.Sequential(Gated(), GatedMlp())
    assert padiff.compare(base, paddle.nn.Sequential(FusedGated(1.0), FusedMlp()), X).aligned
    raw = paddle.nn.Sequential(FusedGated(0.5), FusedMlp())
    called = counted(base), counted(raw)
    result = padiff.compare(base, raw, X)
    assert result.divergence is not None
    assert result.divergence.raw_path == "0", str(result)
    assert [len(side) for side in called] == [4, 2]
    assert result.plan is not None
    assert not any(entry.alternatives for entry in result.plan.entries)


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.gamma, self.gamma_inner = (torch.nn.Parameter(torch.randn(WIDTH)) for _ in range(2))

    def forward(self, x: Any) -> Any:
        x = x + self.gamma_inner * self.first(x)
        return x + self.gamma * self.second(x)


class Listed(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = paddle.nn.Linear(WIDTH, WIDTH), paddle.nn.Linear(WIDTH, WIDTH)
        self.scales = paddle.nn.ParameterList([self.create_parameter([WIDTH]) for _ in range(2)])

    def forward(self, x: Any) -> Any:
        x = x + self.scales[0] * self.one(x)
        return x + self.scales[1] * self.two(x)


def test_a_list_of_parameters_is_called_by_nobody() -> None:
    """Which is which is settled in the module around the list, and not asked where something is wrong elsewhere."""
    torch.manual_seed(0)
    base = torch.nn.Sequential(Scaled(), Scaled(), torch.nn.ReLU())
    raw = paddle.nn.Sequential(Listed(), Listed(), paddle.nn.ReLU())
    called = counted(base), counted(raw)
    assert padiff.compare(base, raw, X).aligned
    assert [len(side) for side in called] == [2, 1]
    raw = paddle.nn.Sequential(Listed(), Listed(), paddle.nn.GELU())
    called = counted(base), counted(raw)
    result = padiff.compare(base, raw, X)
    assert result.divergence is not None
    assert result.divergence.raw_path == "2", str(result)
    assert len(called[1]) == 2


class Keys(torch.nn.Module):
    """Attention of as many heads as said; keys and values apart."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.num_heads = heads

    def forward(self, x: Any) -> Any:
        q, k, v = (one(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for one in (self.q, self.k, self.v))
        return self.o(((q @ k.transpose(-1, -2)).softmax(-1) @ v).transpose(1, 2).flatten(2))


class KeysByHead(paddle.nn.Layer):
    """Each head has its keys and values in one stretch."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.q, self.kv, self.o = (paddle.nn.Linear(WIDTH, size) for size in (WIDTH, 2 * WIDTH, WIDTH))
        self.num_heads = heads

    def forward(self, x: Any) -> Any:
        n, t, _ = x.shape
        q = self.q(x).reshape([n, t, self.num_heads, -1]).transpose([0, 2, 1, 3])
        k, v = self.kv(x).reshape([n, t, self.num_heads, 2, -1]).transpose([3, 0, 2, 1, 4]).unbind(0)
        made = paddle.matmul(paddle.nn.functional.softmax(paddle.matmul(q, k, transpose_y=True)), v)
        return self.o(made.transpose([0, 2, 1, 3]).reshape([n, t, WIDTH]))


@pytest.mark.parametrize("first", [1, 2])
def test_one_head_does_not_tell_how_heads_are_laid_out(first: int) -> None:
    torch.manual_seed(0)
    base, raw = torch.nn.Sequential(Keys(first), Keys(3)), paddle.nn.Sequential(KeysByHead(first), KeysByHead(3))
    called = counted(base), counted(raw)
    result = padiff.compare(base, raw, X)
    assert result.aligned, str(result)
    assert [len(side) for side in called] == [2, 1]
