"""Places that one author hands to every block and the other does not: they say nothing that the block does not know."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import padiff
from padiff.capture.held import HostValue
from padiff.engine.fed.given_slots import counts_up, may_be_given
from padiff.frameworks import adapter_named
from padiff.frameworks.tree import module_tree
from padiff.records import Call, Slot


class Mixing(nn.Module):
    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.query, self.key, self.factor = nn.Linear(8, 8), nn.Linear(8, 8), factor

    def forward(self, x: Any, cache_position: Any = None) -> Any:
        scores = self.query(x) @ self.key(x).transpose(1, 2)
        return x + torch.softmax(self.factor * scores, -1) @ x


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mixing = nn.LayerNorm(8), Mixing()

    def forward(self, x: Any, cache_position: Any = None) -> Any:
        return self.mixing(self.norm(x), cache_position)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.encoder, self.decoder = nn.Linear(8, 8), Block(), Block()

    def forward(self, x: Any) -> Any:
        return self.decoder(self.encoder(self.first(x)), torch.arange(x.shape[1]))


class Other(nn.Module):
    """The same under other names; nobody takes places."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.begin, self.early, self.late = nn.Linear(8, 8), OtherBlock(1.0), OtherBlock(factor)

    def forward(self, x: Any) -> Any:
        return self.late(self.early(self.begin(x)))


class OtherBlock(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.norm, self.mixing = nn.LayerNorm(8), OtherMixing(factor)

    def forward(self, x: Any) -> Any:
        return self.mixing(self.norm(x))


class OtherMixing(Mixing):
    def forward(self, x: Any) -> Any:
        return super().forward(x)


def test_who_hands_on_no_places_is_not_to_blame() -> None:
    x = np.random.default_rng(4).standard_normal((2, 5, 8)).astype("float32")
    found = padiff.compare(Net(), Other(2.0), x).divergence
    assert found is not None
    assert (found.raw_path, found.phase) == ("late.mixing", "forward")
    assert padiff.compare(Net(), Other(), x).aligned


@pytest.mark.parametrize(
    ("values", "counts"),
    [
        (np.arange(4), True),
        (np.tile(np.arange(4), (3, 1)), True),
        (np.arange(1, 5), False),  # they begin elsewhere: that is for who hands them on to say
        (np.array([0, 1, 1, 2]), False),
        (np.arange(4.0), False),
        (np.zeros(1, int), False),
        (np.array(0), False),
    ],
)
def test_what_counts_up(values: np.ndarray, counts: bool) -> None:
    assert counts_up(Slot("0", 0, HostValue(values), False)) is counts


@pytest.mark.parametrize(
    ("path", "name", "takes"),
    [
        ("decoder", "cache_position", True),
        ("decoder", "1", True),  # by position
        ("decoder", "mask", False),
        ("first", "cache_position", False),
    ],
)
def test_what_a_module_may_be_given(path: str, name: str, takes: bool) -> None:
    model = Net()
    live = module_tree(adapter_named("torch"), model)
    node = live.tree.by_path()[path]
    assert may_be_given(live, Call(0, -1, node.index, path, node.kind, 0, (), ()), name) is takes
