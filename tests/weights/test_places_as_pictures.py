"""A table of places that one author keeps as a picture and the other as rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff
from padiff.weights.fitting import turned_merge

X = np.random.default_rng(0).normal(size=(2, 3, 8, 10)).astype("float32")


class Pictures(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches, self.places = torch.nn.Conv2d(3, 6, 2, 2), torch.nn.Parameter(torch.randn(1, 6, 4, 5))
        self.norm, self.head = torch.nn.LayerNorm(6), torch.nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        x = (self.patches(x) + self.places).flatten(2).transpose(1, 2)
        return self.head(self.norm(x).mean(1))


class Rows(paddle.nn.Layer):
    def __init__(self, bug: bool = False) -> None:
        super().__init__()
        self.embed, self.bug = paddle.nn.Conv2D(3, 6, 2, 2), bug
        self.pos = self.create_parameter([1, 20, 6])
        self.ln, self.out = paddle.nn.LayerNorm(6), paddle.nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        x = self.embed(x).flatten(2).transpose([0, 2, 1])
        x = x + (self.pos[:, ::-1] if self.bug else self.pos)
        return self.out(self.ln(x).mean(1))


def test_a_table_of_places_is_turned_and_merged_or_cut() -> None:
    torch.manual_seed(0)
    base, raw = Pictures(), Rows()
    assert padiff.compare(base, raw, X).aligned
    wanted = base.places.detach().numpy().reshape(1, 6, 20).transpose(0, 2, 1)
    assert np.array_equal(raw.pos.numpy(), wanted)
    back = Pictures()
    assert padiff.compare(raw, back, X).aligned
    assert np.array_equal(back.places.detach().numpy(), base.places.detach().numpy())
    found = padiff.compare(base, Rows(bug=True), X).divergence
    assert found is not None and (found.raw_path, found.phase) == ("", "forward"), str(found)


@pytest.mark.parametrize(
    ("one", "two", "order"),
    [
        ((1, 24, 4, 4), (1, 16, 24), (0, 2, 3, 1)),
        ((1, 16, 24), (1, 24, 4, 4), (0, 2, 1)),
        ((24, 4, 4), (16, 24), (1, 2, 0)),
        ((1, 24, 4, 4), (1, 24, 16), None),
        ((1, 1, 4), (1, 4), None),
        ((24, 1, 4), (4, 24), None),
    ],
)
def test_the_order_of_axes(one: tuple[int, ...], two: tuple[int, ...], order: tuple[int, ...] | None) -> None:
    assert turned_merge(one, two) == order
