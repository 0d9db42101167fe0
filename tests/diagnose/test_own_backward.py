"""Where gradients stop inside a module's own code: the op that is not followed is named, in the call that gradients
reach first."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import torch

import padiff

ROWS, MEMORY = np.random.default_rng(0).normal(size=(2, 3, 6, 4)).astype("float32")


class Lags(torch.nn.Module):
    """A memory moved by the lags that score best, the same weights for two halves of its columns."""

    def __init__(self) -> None:
        super().__init__()
        self.score, self.value = torch.nn.Linear(4, 1), torch.nn.Linear(4, 4)

    def forward(self, x: Any, memory: Any) -> Any:
        scores, values = self.score(x)[..., 0], self.value(memory)
        values = values.view(3, 6, 2, 2).permute(2, 0, 1, 3).reshape(6, 6, 2)
        _, lags = torch.topk(scores.mean(0), 3)
        weights = torch.softmax(scores[:, lags], -1)
        found = torch.zeros_like(values)
        for place in range(3):
            found = found + values.roll(-int(lags[place]), 1) * weights[:, place].view(-1, 1, 1).repeat(2, 6, 2)
        return found.view(2, 3, 6, 2).permute(1, 2, 0, 3).reshape(3, 6, 4)


class Base(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.first, self.second = torch.nn.Linear(4, 4), Lags(), Lags()

    def forward(self, x: Any, memory: Any) -> Any:
        x = self.into(x)
        x = x + self.first(x, memory)
        return x + self.second(x, memory)


class Moved(paddle.nn.Layer):
    def __init__(self, detached: bool) -> None:
        super().__init__()
        self.score, self.value, self.detached = paddle.nn.Linear(4, 1), paddle.nn.Linear(4, 4), detached

    def forward(self, x: Any, memory: Any) -> Any:
        scores, values = self.score(x)[..., 0], self.value(memory)
        values = paddle.concat(values.chunk(2, axis=-1), axis=0)
        _, lags = paddle.topk(scores.mean(axis=0), 3)
        weights = paddle.nn.functional.softmax(paddle.index_select(scores, lags, axis=1), axis=-1)
        weights = weights.tile([2, 1])
        found = 0
        for place in range(3):
            weight = weights[:, place]
            weight = weight.detach() if self.detached else weight
            found = found + paddle.roll(values, -int(lags[place]), axis=1) * weight.reshape([-1, 1, 1])
        return paddle.concat(found.chunk(2, axis=0), axis=-1)


class Raw(paddle.nn.Layer):
    def __init__(self, detached: bool = False) -> None:
        super().__init__()
        self.into, self.a, self.b = paddle.nn.Linear(4, 4), Moved(detached), Moved(detached)

    def forward(self, x: Any, memory: Any) -> Any:
        x = self.into(x)
        x = x + self.a(x, memory)
        return x + self.b(x, memory)


def test_nobody_follows_places() -> None:
    torch.manual_seed(0)
    assert padiff.compare(Base(), Raw(), (ROWS, MEMORY)).aligned


def test_the_op_that_is_not_followed() -> None:
    torch.manual_seed(0)
    result = padiff.compare(Base(), Raw(detached=True), (ROWS, MEMORY))
    found = result.divergence
    assert found is not None
    assert (found.phase, found.raw_path) == ("backward", "b"), str(found)
    assert "no gradient" in {cause.name for cause in found.causes}
    assert found.op is not None and found.op.raw_line is not None
    assert "detach" in found.op.raw_line.text, str(found)
    assert [one.raw_path for one in result.divergences] == ["b", "a"]
