"""Where no loss is given, outputs are followed back along directions of chance, the same in both models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import paddle
import pytest
import torch

import padiff
from padiff.compare.layouts import arranged_alike
from padiff.engine.projection import MOST_DRAWN, direction
from tests.twins import TorchScaleGradient

Change = Callable[[Any], Any]


class Torch(torch.nn.Module):
    """Ends in a norm: the mean of what it returns hardly depends on anything before."""

    def __init__(self, returns: Change = lambda x: x, *, scaled: bool = False) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(6, 12), torch.nn.Linear(12, 6)
        self.norm = torch.nn.LayerNorm(6)
        self.returns, self.scaled = returns, scaled

    def forward(self, x: Any) -> Any:
        hidden = torch.tanh(self.first(x))
        hidden = TorchScaleGradient.apply(hidden) if self.scaled else hidden
        return self.returns(self.norm(self.second(hidden)))


class Paddle(paddle.nn.Layer):
    def __init__(self, returns: Change = lambda x: x) -> None:
        super().__init__()
        self.first, self.second = paddle.nn.Linear(6, 12), paddle.nn.Linear(12, 6)
        self.norm = paddle.nn.LayerNorm(6)
        self.returns = returns

    def forward(self, x: Any) -> Any:
        return self.returns(self.norm(self.second(paddle.tanh(self.first(x)))))


def inputs() -> np.ndarray:
    return np.random.default_rng(5).standard_normal((4, 3, 5, 6)).astype("float32")


def test_a_wrong_gradient_before_a_last_norm_is_seen() -> None:
    result = padiff.compare(Torch(), Torch(scaled=True), inputs())
    found = result.divergence
    assert found is not None
    assert (found.raw_path, found.phase) == ("", "backward")
    assert found.note == "the gradient that arrives at the output of first differs"


def test_with_a_mean_its_gradients_are_rounding() -> None:
    result = padiff.compare(Torch(), Torch(scaled=True), inputs(), loss=lambda output: output.mean())
    numbers = [one.outcome.numbers for one in result.steps[0].comparisons if one.phase == "gradient"]
    assert all(one is not None and one.base_rms < 1e-6 for one in numbers[:4])


RETURNED: dict[str, tuple[Change, Change]] = {
    "the same": (lambda x: x, lambda x: x),
    "channels last": (lambda x: x, lambda x: x.transpose([0, 2, 3, 1])),
    "merged": (lambda x: x, lambda x: x.reshape([12, 5, 6])),
    "an axis of one": (lambda x: x, lambda x: x.unsqueeze(1)),
    "dicts in another order": (lambda x: {"a": x, "b": 2 * x}, lambda x: {"b": 2 * x, "a": x}),
    "twice the same, and a copy": (lambda x: (x, x), lambda x: (x, x.clone())),
    "a copy, and twice the same": (lambda x: (x, x.clone()), lambda x: (x, x)),
    "whole numbers": (lambda x: (x, x.argmax(-1)), lambda x: (x, x.argmax(-1))),
    "a mask that is minus infinity": (
        lambda x: (x, torch.full([3], -torch.inf)),
        lambda x: (x, paddle.full([3], -float("inf"))),
    ),
    "two dtypes": (lambda x: (x, x.double()), lambda x: (x, x.astype("float64"))),
    "repeated": (lambda x: x[:1], lambda x: x[:1].tile([4, 1, 1, 1])),
    "kept once": (lambda x: x[:1].expand(4, 3, 5, 6), lambda x: x[:1]),
}


@pytest.mark.parametrize("case", RETURNED)
def test_outputs_that_correspond_are_followed_alike(case: str) -> None:
    base, raw = RETURNED[case]
    result = padiff.compare(Torch(base), Paddle(raw), inputs())
    assert result.aligned, str(result.divergence)
    loss = next(one for one in result.steps[0].comparisons if one.role == "loss")
    assert loss.agrees
    gradients = [one.outcome.numbers for one in result.steps[0].comparisons if one.phase == "gradient"]
    assert len(gradients) == 6
    assert all(one is not None and one.base_rms > 1e-4 for one in gradients)


def test_a_wrong_gradient_is_found_in_another_layout() -> None:
    result = padiff.compare(Paddle(), Torch(lambda x: x.permute(3, 0, 1, 2), scaled=True), inputs())
    found = result.divergence
    assert found is not None
    assert (found.raw_path, found.phase) == ("", "backward")
    assert found.note == "the gradient that arrives at the output of first differs"


def test_narrow_outputs() -> None:
    base, raw = Torch().to(torch.bfloat16), Torch().to(torch.bfloat16)
    assert padiff.compare(base, raw, torch.from_numpy(inputs()).to(torch.bfloat16)).aligned


def test_a_loss_that_is_given_is_taken() -> None:
    seen: list[tuple[int, ...]] = []

    def loss(output: Any) -> Any:
        seen.append(tuple(output.shape))
        return (output * output).sum()

    result = padiff.compare(Torch(), Torch(), inputs(), loss=loss)
    assert result.aligned
    assert seen == [(4, 3, 5, 6)] * 3


@pytest.mark.parametrize("shape", [(), (1,), (7, 3), (300, 400)])
def test_directions(shape: tuple[int, ...]) -> None:
    found = direction(1, shape).spread
    assert found.shape == shape
    assert found.dtype == np.float32
    assert np.array_equal(found, direction(1, shape).spread)
    assert not np.array_equal(found, direction(0, shape).spread)
    for dtype in (np.float16, ml_dtypes.bfloat16):  # nothing is lost, whatever the outputs are kept in
        assert np.array_equal(found.astype(dtype).astype(np.float32), found)
    if found.size > 20:
        assert 0.5 < 8 * float(np.linalg.norm(found)) < 2


def test_a_long_direction_repeats_itself_out_of_step() -> None:
    found = direction(0, (3, 65536)).spread.ravel()
    assert np.array_equal(found[:100], found[MOST_DRAWN : MOST_DRAWN + 100])
    assert not np.array_equal(found[:100], found[65536 : 65536 + 100])


def test_what_belongs_to_base_in_raws_arrangement() -> None:
    generator = np.random.default_rng(0)
    base, other = generator.standard_normal((2, 2, 4, 4)), generator.standard_normal((2, 2, 4, 4))
    for order in ((0, 2, 3, 1), (2, 0, 1, 3), (0, 2, 1, 3)):
        found = arranged_alike(base, base.transpose(order), other)
        assert found is not None
        assert np.array_equal(found, other.transpose(order))
    assert arranged_alike(base, np.zeros(5), other) is None
    assert arranged_alike(base, np.zeros((64, 3)), other) is None


def test_where_one_side_repeats_sums_stay() -> None:
    generator = np.random.default_rng(0)
    once, other = generator.standard_normal((1, 5)), generator.standard_normal((1, 5))
    many, wide = np.repeat(once, 3, axis=0), generator.standard_normal((3, 5))
    spread, summed = arranged_alike(once, many, other), arranged_alike(many, once, wide)
    assert spread is not None
    assert summed is not None
    assert np.sum(spread * many) == pytest.approx(np.sum(other * once))
    assert np.sum(summed * once) == pytest.approx(np.sum(wide * many))
