"""One op in two frameworks, given the same tensors and something else besides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff

of_torch, of_paddle = torch.nn.functional, paddle.nn.functional
KEEP = np.array([[True] * 6, [True] * 4 + [False] * 2, [True] * 5 + [False]])
GRID = np.random.default_rng(1).uniform(-1, 1, (1, 4, 4, 2)).astype("float32")
Code = Callable[[Any], Any]


def resized(size: int, to: tuple[int, int]) -> Any:
    """What resizing does to rows or columns, as a matrix."""
    return of_torch.interpolate(torch.eye(size)[None, None], to, mode="bicubic", antialias=True)[0, 0].numpy()


CASES: dict[str, tuple[Code, Code, Code, str, str]] = {
    "softmax over rows, some left out": (
        lambda x: torch.softmax(x.masked_fill(~torch.as_tensor(KEEP), float("-inf")), -1),
        lambda x: of_paddle.softmax(paddle.where(paddle.to_tensor(KEEP), x, paddle.full_like(x, -1e9)), -1),
        lambda x: of_paddle.softmax(paddle.where(paddle.to_tensor(KEEP), x, paddle.full_like(x, -1e9)), 0),
        "axis",
        "softmax over axis 0",
    ),
    "normalised along another axis": (
        lambda x: of_torch.normalize(x, dim=-1),
        lambda x: of_paddle.normalize(x, axis=1),
        lambda x: of_paddle.normalize(x, axis=0),
        "axis",
        "is given dim 0 in raw and -1 in base",
    ),
    "another row": (
        lambda x: x[-2] * 2.0,
        lambda x: x[1] * 2.0,
        lambda x: x[0] * 2.0,
        "slice",
        "is given index (0,) in raw and -2 in base",
    ),
    "padded at the other end": (
        lambda x: of_torch.pad(x[None, None], (0, 1, 0, 1)),
        lambda x: of_paddle.pad(x[None, None], [0, 1, 0, 1]),
        lambda x: of_paddle.pad(x[None, None], [1, 0, 1, 0]),
        "padding",
        "in raw and (0, 1, 0, 1) in base",
    ),
    "sampled between other corners": (
        lambda x: of_torch.grid_sample(x[None, None], torch.as_tensor(GRID), align_corners=False),
        lambda x: of_paddle.grid_sample(x[None, None], paddle.to_tensor(GRID), align_corners=False),
        lambda x: of_paddle.grid_sample(x[None, None], paddle.to_tensor(GRID), align_corners=True),
        "align_corners",
        "is given align_corners True in raw and False in base",
    ),
    "resized with what only one framework can do": (
        lambda x: of_torch.interpolate(x[None, None], (2, 3), mode="bicubic", antialias=True),
        lambda x: (paddle.to_tensor(resized(3, (2, 3))) @ x @ paddle.to_tensor(resized(6, (6, 3))))[None, None],
        lambda x: of_paddle.interpolate(x[None, None], [2, 3], mode="bicubic"),
        "antialias",
        "is given antialias False in raw and True in base",
    ),
    "taken from other places": (
        lambda x: x[torch.tensor([0, 2, 1, 1])] * 2.0,
        lambda x: paddle.gather(x, paddle.to_tensor([0, 2, 1, 1])) * 2.0,
        lambda x: paddle.gather(x, paddle.to_tensor([0, 1, 1, 2])) * 2.0,
        "index",
        "takes other places: at 1, 1 in raw and 2 in base",
    ),
    "a loss that is summed": (
        lambda x: of_torch.cross_entropy(x, torch.arange(3)) * 0.7,
        lambda x: of_paddle.cross_entropy(x, paddle.arange(3)) * 0.7,
        lambda x: of_paddle.cross_entropy(x, paddle.arange(3), reduction="sum") * 0.7,
        "reduction",
        "is given reduction 'sum' in raw and 'mean' in base",
    ),
}


class Base(torch.nn.Module):
    def __init__(self, code: Code) -> None:
        super().__init__()
        self.linear, self.code = torch.nn.Linear(5, 6), code

    def forward(self, x: Any) -> Any:
        return self.code(self.linear(x))


class Raw(paddle.nn.Layer):
    def __init__(self, code: Code) -> None:
        super().__init__()
        self.linear, self.code = paddle.nn.Linear(5, 6), code

    def forward(self, x: Any) -> Any:
        return self.code(self.linear(x))


@pytest.mark.parametrize("case", CASES)
def test_what_else_it_was_given_is_told(case: str) -> None:
    base, right, wrong, name, evidence = CASES[case]
    torch.manual_seed(0)
    x = np.random.default_rng(0).normal(size=(3, 5)).astype("float32")
    assert padiff.compare(Base(base), Raw(right), x).aligned
    divergence = padiff.compare(Base(base), Raw(wrong), x).divergence
    assert divergence is not None
    told = {cause.name: cause.evidence for cause in divergence.causes[:3]}
    assert name in told, divergence.causes
    assert evidence in told[name]
