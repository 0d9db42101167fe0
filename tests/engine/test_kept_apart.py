"""A token that one author keeps apart from the others, and these in an order of their own: layers are called on each by
themselves, and blocks are given two tensors where base's are given one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import padiff

FILM = torch.randn(2, 3, 4, 8, generator=torch.Generator().manual_seed(1))
"""Two films of three frames with four places each."""


class Layer(nn.Module):
    """All of it in one, place by place: [batch, 1 + places * frames, width]."""

    def __init__(self) -> None:
        super().__init__()
        self.time_norm, self.time, self.norm = nn.LayerNorm(8), nn.Linear(24, 24), nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, hidden: Any) -> Any:
        first, rest = hidden[:, :1], hidden[:, 1:]
        mixed = self.time(self.time_norm(rest).reshape(8, 24)).reshape(2, 12, 8)
        hidden = torch.cat([first + mixed.mean(1, keepdim=True), rest + mixed], 1)
        return hidden + self.down(torch.tanh(self.up(self.norm(hidden))))


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.token = nn.Linear(8, 8), nn.Parameter(torch.randn(1, 1, 8))
        self.when, self.layers = nn.Parameter(torch.randn(1, 3, 1, 8)), nn.ModuleList([Layer(), Layer()])
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 5)

    def forward(self, film: Any) -> Any:
        rest = (self.embed(film) + self.when).transpose(1, 2).reshape(2, 12, 8)
        hidden = torch.cat([self.token.expand(2, -1, -1), rest], 1)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(self.norm(hidden)[:, 0])


class Block(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.norm_t, self.mix, self.norm_m = nn.LayerNorm(8), nn.Linear(24, 24), nn.LayerNorm(8)
        self.fc1, self.fc2, self.bug = nn.Linear(8, 12), nn.Linear(12, 8), bug

    def forward(self, token: Any, x: Any) -> Any:
        y = self.mix(self.norm_t(x.transpose(1, 2)).reshape(8, 24)).reshape(2, 4, 3, 8).transpose(1, 2)
        token = token + (y.sum((1, 2)) if self.bug == "token" else y.mean((1, 2)))[:, None]
        x = y if self.bug == "rest" else x + y
        return token + self.fed(token), x + self.fed(x)

    def fed(self, x: Any) -> Any:
        return self.fc2(torch.tanh(self.fc1(self.norm_m(x))))


class Raw(nn.Module):
    def __init__(self, bug: str = "") -> None:
        super().__init__()
        self.stem, self.cls = nn.Linear(8, 8), nn.Parameter(torch.randn(1, 1, 8))
        self.frame, self.blocks = nn.Parameter(torch.randn(1, 3, 1, 8)), nn.ModuleList([Block(bug), Block(bug)])
        self.out_norm, self.fc, self.bug = nn.LayerNorm(8), nn.Linear(8, 5), bug

    def forward(self, film: Any) -> Any:
        x = self.stem(film) + (self.frame.flip(1) if self.bug == "before" else self.frame)
        token = self.cls.expand(2, -1, -1)
        for block in self.blocks:
            token, x = block(token, x)
        return self.fc(token[:, 0] if self.bug == "after" else self.out_norm(token)[:, 0])


def pair(bug: str = "") -> tuple[Base, Raw]:
    torch.manual_seed(0)
    base = Base()
    for name, weight in base.named_parameters():
        if "norm" in name:
            nn.init.normal_(weight, 1.0, 0.3)
    return base, Raw(bug)


def test_it_is_aligned() -> None:
    assert padiff.compare(*pair(), FILM).aligned


@pytest.mark.parametrize(("bug", "path"), [("before", ""), ("after", ""), ("token", "blocks.0"), ("rest", "blocks.0")])
def test_the_code_that_is_wrong(bug: str, path: str) -> None:
    found = padiff.compare(*pair(bug), FILM).divergence
    assert found is not None
    assert (found.phase, found.raw_path) == ("forward", path), str(found)
