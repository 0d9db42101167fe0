"""What a layer returns may be written afterwards, and be a view of something: its gradient is told nevertheless."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff
from padiff.capture.gradient_log import GradientLog
from padiff.capture.seen_tensors import SeenTensors
from padiff.frameworks import adapter_named

X = np.random.default_rng(0).normal(size=(3, 5, 6)).astype("float32")


class Writing(torch.nn.Module):
    """A linear layer returns a view of what it computed, where it is given three axes."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.first, self.last, self.how = torch.nn.Linear(6, 6), torch.nn.Linear(6, 4), how

    def forward(self, x: Any) -> Any:
        y = self.first(x)
        if self.how == "sum":
            late = torch.sin(x + y.sum())
            y += x
            y = y + late
        elif self.how == "part":
            y[:, :2] *= 2.0
        else:
            heads = y.view(3, 5, 2, 3).transpose(1, 2)
            heads /= 4.0
        return self.last(torch.tanh(y))


class Making(paddle.nn.Layer):
    def __init__(self, how: str, bug: bool = False) -> None:
        super().__init__()
        self.first, self.last = paddle.nn.Linear(6, 6), paddle.nn.Linear(6, 4)
        self.how, self.bug = how, bug

    def forward(self, x: Any) -> Any:
        y = self.first(x)
        if self.bug:
            y = y + (y - y.detach())
        if self.how == "sum":
            y = y + x + paddle.sin(x + y.sum())
        elif self.how == "part":
            y = paddle.concat([y[:, :2] * 2.0, y[:, 2:]], 1)
        else:
            y = y / 4.0
        return self.last(paddle.tanh(y))


@pytest.mark.parametrize("how", ["sum", "part", "heads"])
def test_a_view_that_is_written_has_its_gradient(how: str) -> None:
    torch.manual_seed(0)
    for base, raw in ((Writing(how), Making(how)), (Making(how), Writing(how))):
        result = padiff.compare(base, raw, X)
        assert result.aligned, str(result.divergence)
        assert any(one.phase == "backward" and one.raw_path == "first" for one in result.comparisons)


def test_a_gradient_that_is_wrong_behind_the_write_is_named() -> None:
    torch.manual_seed(0)
    for how in ("sum", "part", "heads"):
        found = padiff.compare(Writing(how), Making(how, bug=True), X).divergence
        assert found is not None and (found.raw_path, found.phase) == ("", "backward"), str(found)


def test_what_was_let_go_of_is_not_asked_when_its_memory_is_written_again() -> None:
    adapter = adapter_named("torch")
    log = GradientLog(adapter)
    log.taking = True
    tensors = SeenTensors(adapter, log.follow(), gradients=True, hooks=True)
    whole = torch.randn(2, 3, requires_grad=True) * 1.0
    gone, kept = whole.view(3, 2), whole.view(6)
    first, second = (tensors.known(view, hooked=True) for view in (gone, kept))
    tensors.about_to_write(torch.zeros(1))  # from now on it is known whose memory each reads
    first.release()
    tensors.about_to_write(kept)
    kept *= 2.0
    whole.sum().backward()
    assert np.array_equal(log[second.number].numpy(), np.full(6, 2.0, dtype="float32"))
