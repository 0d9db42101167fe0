"""Masks in another form: what calls are given besides, and whatever they return agrees, takes no second look."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import padiff
from tests.engine.test_crossings import counted

X = np.random.default_rng(0).standard_normal((2, 5, 8)).astype("float32")


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (torch.nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Any, mask: Any) -> Any:
        scores = self.q(x) @ self.k(x).mT
        scores = scores.masked_fill(~mask, -1e9) if mask.dtype == torch.bool else scores + mask
        return torch.softmax(scores, -1) @ self.v(x)


class Net(torch.nn.Module):
    def __init__(self, form: str, *, late: bool = False, scaled: bool = False) -> None:
        super().__init__()
        self.form, self.late, self.scaled = form, late, scaled
        self.first, self.second, self.norm = Attention(), Attention(), torch.nn.LayerNorm(8)

    def forward(self, x: Any) -> Any:
        seen = torch.ones(5, 5, dtype=torch.bool).tril(1 if self.late else 0)
        mask = {
            "truth": seen,
            "added": torch.zeros(5, 5).masked_fill(~seen, float("-inf")),
            "repeated": torch.zeros(2, 5, 5).masked_fill(~seen, -1e4),
        }[self.form]
        x = self.second(self.first(x, mask=mask), mask=mask)
        return self.norm(x * 1.5 if self.scaled else x)


def models(form: str, **options: bool) -> tuple[Any, Any]:
    torch.manual_seed(0)
    return Net("truth"), Net(form, **options)


@pytest.mark.parametrize("form", ["added", "repeated"])
def test_a_mask_in_another_form_costs_no_run(form: str) -> None:
    base, raw = models(form)
    runs = counted(base), counted(raw)
    result = padiff.compare(base, raw, X)
    assert result.aligned, str(result)
    assert [len(side) for side in runs] == [2, 1]


@pytest.mark.parametrize("form", ["added", "repeated"])
def test_a_wrong_one_is_found(form: str) -> None:
    result = padiff.compare(*models(form, late=True), X)
    assert result.divergence is not None
    assert result.divergence.phase == "forward"


def test_what_a_norm_takes_away_is_found() -> None:
    result = padiff.compare(*models("added", scaled=True), X)
    assert result.divergence is not None
    assert (result.divergence.raw_path, result.divergence.phase) == ("", "forward")


class Pooled(torch.nn.Module):
    """Pools before its head, or as the head's first part."""

    def __init__(self, within: bool, scaled: float = 0.0) -> None:
        super().__init__()
        self.stem, self.scaled = torch.nn.Conv2d(3, 8, 3), scaled
        pool, rest = torch.nn.AdaptiveAvgPool2d(1), [torch.nn.Flatten(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 4)]
        self.before = torch.nn.Sequential(*([] if within else [pool]))
        self.head = torch.nn.Sequential(*([pool] if within else []), *rest)

    def forward(self, x: Any) -> Any:
        x = self.before(self.stem(x))
        return self.head(x * self.scaled if self.scaled else x)


PICTURE = np.random.default_rng(1).standard_normal((2, 3, 6, 6)).astype("float32")


def test_a_head_that_begins_with_the_pooling_costs_no_run() -> None:
    torch.manual_seed(0)
    base, raw = Pooled(within=False), Pooled(within=True)
    runs = counted(base), counted(raw)
    result = padiff.compare(base, raw, PICTURE)
    assert result.aligned, str(result)
    assert len(runs[0]) <= 3
    assert len(runs[1]) == 1


def test_what_it_is_given_wrongly_is_found() -> None:
    torch.manual_seed(0)
    result = padiff.compare(Pooled(within=False), Pooled(within=True, scaled=1.5), PICTURE)
    assert result.divergence is not None
    assert (result.divergence.raw_path, result.divergence.phase) == ("", "forward")
