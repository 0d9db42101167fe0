"""How models use their tensors is seen in the runs that are compared: raw is filled between them, as if it used its own
in the order in which it defines them, and its run tells."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff
from padiff.errors import WeightError
from tests.engine.test_crossings import counted

X = np.random.default_rng(0).standard_normal((4, 3, 6, 6)).astype("float32")


class Base(torch.nn.Module):
    def __init__(self, *, more: bool = False) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.a, self.norm_a = torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.BatchNorm2d(8)
        self.b, self.norm_b = torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.BatchNorm2d(8)
        self.head = torch.nn.Linear(8, 5)
        self.more = more

    def forward(self, x: Any) -> Any:
        x = torch.relu_(self.norm_a(self.a(self.stem(x))))
        x = torch.relu_(self.norm_b(self.b(x)))
        y = self.head(x.mean((2, 3)))
        return (y, x) if self.more else y


class Port(paddle.nn.Layer):
    """Says nothing by its names; ``swapped`` defines last what it uses first."""

    def __init__(self, *, swapped: bool = False, drop: float = 0.0, fails: bool = False) -> None:
        super().__init__()
        self.first = paddle.nn.Conv2D(3, 8, 3, padding=1)
        layers = ("u", "v") if swapped else ("v", "u")
        for name in layers:
            setattr(self, f"conv_{name}", paddle.nn.Conv2D(8, 8, 3, padding=1))
            setattr(self, f"bn_{name}", paddle.nn.BatchNorm2D(8))
        self.drop = paddle.nn.Dropout(drop)
        self.last = paddle.nn.Linear(8, 5)
        self.fails = fails

    def forward(self, x: Any) -> Any:
        x = paddle.nn.functional.relu_(self.bn_v(self.conv_v(self.first(x))))
        if self.fails:
            raise RuntimeError("out of luck")
        x = paddle.nn.functional.relu_(self.bn_u(self.conv_u(x)))
        return self.last(self.drop(x.mean((2, 3))))


def base(*, more: bool = False, training: bool = False) -> Any:
    torch.manual_seed(0)
    found = Base(more=more)
    for norm in (found.norm_a, found.norm_b):
        norm.running_mean = torch.randn(8)
        norm.running_var = torch.rand(8) + 0.5
    return found.train(training)


def port(*, training: bool = False, **options: Any) -> Any:
    found = Port(**options)
    found.train() if training else found.eval()
    return found


def equal(ours: Any, theirs: Any) -> bool:
    return bool(np.array_equal(ours.detach().numpy(), theirs.numpy()))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("swapped", "calls"), [(False, [2, 1]), (True, [2, 2])])
def test_raw_runs_again_only_where_its_order_is_another(training: bool, swapped: bool, calls: list[int]) -> None:
    one, other = base(training=training), port(training=training, swapped=swapped)
    runs = counted(one), counted(other)
    result = padiff.compare(one, other, X)
    assert result.aligned, str(result)
    assert [len(side) for side in runs] == calls
    for ours, theirs in ((one.a, other.conv_v), (one.b, other.conv_u)):
        assert equal(ours.weight, theirs.weight)
    for ours, theirs in ((one.norm_a, other.bn_v), (one.norm_b, other.bn_u)):
        assert equal(ours.running_mean, theirs._mean)
        assert equal(ours.running_var, theirs._variance)
    sources = {entry.path: entry.sources[0].path for entry in result.plan.entries}
    assert (sources["conv_v.weight"], sources["conv_u.weight"]) == ("a.weight", "b.weight")


def test_raw_that_was_filled_before_runs_once() -> None:
    one, other = base(), port()
    padiff.compare(one, other, X)
    runs = counted(one), counted(other)
    assert padiff.compare(one, other, X).aligned
    assert [len(side) for side in runs] == [2, 1]


@pytest.mark.parametrize("swapped", [False, True])
def test_raw_that_keeps_its_weights_runs_once_in_whatever_order(swapped: bool) -> None:
    one, other = base(), port(swapped=swapped)
    padiff.compare(one, other, X)
    runs = counted(one), counted(other)
    result = padiff.compare(one, other, X, weights="keep")
    assert result.aligned, str(result)
    assert [len(side) for side in runs] == [2, 1]


def test_a_weight_that_raw_keeps_and_that_is_wrong_takes_no_run_beforehand() -> None:
    one, other = base(), port(swapped=True)
    padiff.compare(one, other, X)
    other.conv_u.weight.set_value(other.conv_u.weight * 1.01)
    kept = other.conv_u.weight.numpy().copy()
    runs = counted(one), counted(other)
    result = padiff.compare(one, other, X, weights="keep")
    assert result.divergence is not None
    assert result.divergence.raw_path == "conv_u"
    assert [len(side) for side in runs] == [4, 2]
    assert np.array_equal(other.conv_u.weight.numpy(), kept)


def test_raw_that_was_filled_otherwise_tells_by_its_values_how() -> None:
    """Two layers of one kind and size are defined in the order that is not the one they are used in."""
    one, other = base(), port(swapped=True)
    padiff.compare(one, other, X)
    runs = counted(one), counted(other)
    result = padiff.compare(one, other, X)
    assert result.aligned, str(result)
    assert [len(side) for side in runs] == [2, 2]  # that the values are right is known when it has run
    assert equal(one.a.weight, other.conv_v.weight)


@pytest.mark.parametrize("swapped", [False, True])
def test_a_fault_is_named_where_it_is(swapped: bool) -> None:
    one, other = base(), port(swapped=swapped)
    other.bn_u.register_forward_post_hook(lambda layer, given, output: output * 1.01)
    runs = counted(one), counted(other)
    result = padiff.compare(one, other, X)
    assert [found.raw_path for found in result.divergences] == ["bn_u"]
    assert len(runs[0]) <= 5
    assert len(runs[1]) <= 3


@pytest.mark.parametrize("swapped", [False, True])
def test_an_exception_half_way_comes_with_what_agreed(swapped: bool) -> None:
    with pytest.raises(RuntimeError, match="out of luck") as raised:
        padiff.compare(base(), port(swapped=swapped, fails=True), X)
    half: Any = raised.value.padiff_result  # type: ignore[attr-defined]
    agreed = {one.raw_path for one in half.comparisons if one.role == "output" and one.agrees}
    assert "first" in agreed
    assert swapped or {"conv_v", "bn_v"} <= agreed


def test_draws_are_handed_to_whom_they_belong() -> None:
    class Dropping(Base):
        def forward(self, x: Any) -> Any:
            return torch.nn.functional.dropout(super().forward(x), 0.5, training=True)

    class DroppingPort(Port):
        def forward(self, x: Any) -> Any:
            return paddle.nn.functional.dropout(super().forward(x), 0.5, training=True)

    one, other = Dropping().eval(), DroppingPort(swapped=True)
    other.eval()
    result = padiff.compare(one, other, X)
    assert result.aligned, str(result)
    assert result.replayed


def test_an_output_that_raw_does_not_return_is_left_out_of_the_loss() -> None:
    one, other = base(more=True), port()
    result = padiff.compare(one, other, X)
    assert result.aligned, str(result)
    assert all(found.agrees for found in result.comparisons if found.phase == "gradient")


def test_a_tensor_that_raw_cannot_fill_is_told_as_before() -> None:
    other = port()
    other.last = paddle.nn.Linear(8, 6)
    with pytest.raises(WeightError, match="last"):
        padiff.compare(base(), other, X)


def test_values_that_are_there_already_are_believed() -> None:
    one, other = base(), port(swapped=True)
    assert padiff.compare(one, other, X).aligned
    again = padiff.compare(one, other, X)
    assert again.aligned
    assert {entry.evidence for entry in again.plan.entries if entry.path == "conv_u.weight"} == {"values"}


def test_base_that_raises_is_told_as_such() -> None:
    one, other = base(), port()
    one.head.forward = lambda x: 1 // 0
    with pytest.raises(ZeroDivisionError) as raised:
        padiff.compare(one, other, X)
    assert any("raised by the base model Base" in note for note in raised.value.__notes__)
    kept = [(parameter.grad, parameter.requires_grad) for parameter in one.parameters()]
    assert kept == [(None, True)] * len(kept)
    assert not one._forward_hooks and not one._forward_pre_hooks
