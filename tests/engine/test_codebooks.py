"""A module that keeps a tensor itself beside one that has a layer for it, and what both return besides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import padiff

X = np.random.default_rng(0).normal(size=(2, 6, 8)).astype("float32")


def losses(codes: Any, x: Any) -> tuple[Any, Any]:
    return nn.functional.mse_loss(codes, x.detach()), nn.functional.mse_loss(codes.detach(), x)


class Quantizer(nn.Module):
    """Looks up what is nearest in an embedding; returns that, a loss and how much of the book is used."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)

    def forward(self, x: Any) -> Any:
        nearest = torch.cdist(x, self.embedding.weight[None]).argmin(-1)
        codes = self.embedding(nearest)
        one, other = losses(codes, x)
        used = nn.functional.one_hot(nearest, 5).float().mean((0, 1))
        return x + (codes - x).detach(), one + 0.25 * other, (used * (used + 1e-9).log()).sum().exp()


class Half(torch.autograd.Function):
    """Hands on half of the gradient, wrongly."""

    @staticmethod
    def forward(ctx: Any, x: Any, codes: Any) -> Any:
        return codes.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * 0.5, None


class Codebook(nn.Module):
    """The same with a tensor of its own."""

    def __init__(self, bug: str) -> None:
        super().__init__()
        self.codes, self.bug = nn.Parameter(torch.randn(5, 4)), bug

    def forward(self, x: Any) -> Any:
        squares = (x**2).sum(-1, keepdim=True) - 2 * x @ self.codes.T + (self.codes**2).sum(-1)
        codes = self.codes[squares.argmin(-1)]
        one, other = losses(codes, x)
        loss = one + (1.0 if self.bug == "share" else 0.25) * other
        used = nn.functional.one_hot(squares.argmin(-1), 5).float().mean((0, 1))
        entropy = (used * (used + 1e-9).log()).sum()
        used = (-entropy if self.bug == "sign" else entropy).exp()
        made = Half.apply(x, codes.detach()) if self.bug == "gradient" else x + (codes - x).detach()
        return made, loss, used


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.quantizer, self.decoder = nn.Linear(8, 4), Quantizer(), nn.Linear(4, 8)

    def forward(self, x: Any) -> Any:
        codes, loss, used = self.quantizer(self.encoder(x))
        return {"made": self.decoder(codes), "loss": loss, "used": used}


class Port(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.out, self.book, self.into = nn.Linear(4, 8), Codebook(bug), nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        codes, loss, used = self.book(self.into(x))
        return {"made": self.out(codes), "loss": loss, "used": used}


def compared(bug: str) -> padiff.Result:
    torch.manual_seed(0)
    return padiff.compare(Base(), Port(bug), X)


def test_the_module_that_calls_the_layer_is_the_partner() -> None:
    result = compared("")
    assert result.aligned, str(result)
    assert ("quantizer", "book") in {(one.base_path, one.raw_path) for one in result.comparisons}
    assert "quantizer.embedding" in {one.path for one in result.unmatched}


@pytest.mark.parametrize(("bug", "line"), [("share", "loss = one + (1.0"), ("sign", "used = (-entropy")])
def test_what_a_call_returns_besides_and_the_model_returns(bug: str, line: str) -> None:
    found = compared(bug).divergence
    assert found is not None and found.op is not None and found.op.raw_line is not None
    assert (found.base_path, found.raw_path, found.phase) == ("quantizer", "book", "forward")
    assert found.op.raw_line.text.startswith(line)


def test_what_neither_side_follows_is_not_why_gradients_differ() -> None:
    """Both detach the same tensors, and codes that are looked up are the numbers that are handed on."""
    found = compared("gradient").divergence
    assert found is not None and found.op is not None
    assert (found.raw_path, found.phase, found.op.raw) == ("book", "backward", "Half.apply")
    assert found.causes[0].name == "own backward"
