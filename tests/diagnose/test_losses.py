"""Cross entropies are told apart by what they send back, although nobody says what the labels are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import padiff

LABELS = torch.tensor(np.random.default_rng(0).integers(0, 9, (4, 6)))
LABELS[0, :3] = -100


def entropy(labels: torch.Tensor = LABELS, **more: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda logits: functional.cross_entropy(logits.reshape(-1, 9), labels.reshape(-1), **more)


def by_channel(**more: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda logits: functional.cross_entropy(logits.transpose(1, 2), LABELS, **more)


CASES = {
    "smoothing": ("label smoothing", entropy(), entropy(label_smoothing=0.1)),
    "other smoothing": ("label smoothing", entropy(label_smoothing=0.05), by_channel(label_smoothing=0.1)),
    "sum": ("reduction", entropy(), entropy(reduction="sum")),
    "padding counts": ("ignore_index", entropy(), entropy(LABELS.clamp(min=0))),
    "labels of the next": ("labels", entropy(LABELS.clamp(min=0)), entropy(LABELS.clamp(min=0).roll(1, 1))),
}


@pytest.mark.parametrize("case", CASES)
def test_cause(case: str) -> None:
    name, right, wrong = CASES[case]
    torch.manual_seed(0)
    base, raw = nn.Sequential(nn.Linear(5, 9)), nn.Sequential(nn.Linear(5, 9))
    divergence = padiff.compare(base, raw, torch.randn(4, 6, 5), loss=(right, wrong)).divergence
    assert divergence is not None
    assert (divergence.phase, divergence.role) == ("forward", "loss")
    assert divergence.causes[0].name == name, "\n".join(map(str, divergence.causes))
    assert "both are cross entropies" in divergence.causes[0].evidence


def test_the_same_written_otherwise() -> None:
    torch.manual_seed(0)
    base, raw = nn.Sequential(nn.Linear(5, 9)), nn.Sequential(nn.Linear(5, 9))
    assert padiff.compare(base, raw, torch.randn(4, 6, 5), loss=(entropy(), by_channel())).aligned


def test_two_other_losses_are_none() -> None:
    torch.manual_seed(0)
    base, raw = nn.Sequential(nn.Linear(5, 9)), nn.Sequential(nn.Linear(5, 9))
    target = torch.randn(4, 6, 9)
    losses = (lambda y: (y - target).square().mean(), lambda y: (y - target).abs().mean())
    divergence = padiff.compare(base, raw, torch.randn(4, 6, 5), loss=losses).divergence
    assert divergence is not None
    assert not {"labels", "label smoothing", "ignore_index"} & {cause.name for cause in divergence.causes}
