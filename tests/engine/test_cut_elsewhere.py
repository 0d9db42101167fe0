"""One side stops following gradients, and the other is built differently."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import padiff


class Feed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x: Any) -> Any:
        return self.down(torch.tanh(self.up(x)))


class Nested(nn.Module):
    """A block whose second half is a module."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.norm, self.feed = nn.Linear(8, 8), nn.LayerNorm(8), Feed()

    def forward(self, x: Any) -> Any:
        made = self.norm(x + self.dense(x))
        return made + self.feed(made)


class Mixing(nn.Module):
    def __init__(self, *, stops: bool) -> None:
        super().__init__()
        self.dense, self.stops = nn.Linear(8, 8), stops

    def forward(self, x: Any) -> Any:
        made = self.dense(x)
        return made.detach() if self.stops else made


class Flat(nn.Module):
    """The same with the layers of that half in its own code, and a module around the first layer."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.mixing, self.norm1 = Mixing(stops=where == "mixing"), nn.LayerNorm(8)
        self.linear1, self.linear2 = nn.Linear(8, 12), nn.Linear(12, 8)
        if where in ("norm1", "linear1", "linear2"):
            layer = getattr(self, where)
            forward = layer.forward
            layer.forward = lambda x: forward(x.detach())

    def forward(self, x: Any) -> Any:
        made = self.norm1(x + self.mixing(x))
        return made + self.linear2(torch.tanh(self.linear1(made)))


def models(where: str) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(8, 8), Nested(), Nested(), nn.Linear(8, 4))
    return base, nn.Sequential(nn.Linear(8, 8), Flat(""), Flat(where), nn.Linear(8, 4))


PLACES = ["norm1", "linear1", "linear2", "mixing"]


@pytest.mark.parametrize("where", PLACES)
def test_the_layer_is_named(where: str) -> None:
    result = padiff.compare(*models(where), torch.randn(5, 8))
    assert [(one.raw_path, one.phase) for one in result.divergences] == [(f"2.{where}", "backward")], str(result)
    assert result.divergences[0].causes[0].name == "no gradient"


@pytest.mark.parametrize("where", ["", *PLACES])
def test_also_along_a_dump_in_the_first_step(where: str, tmp_path: Path) -> None:
    x = torch.randn(5, 8)
    base, raw = models(where)
    for model, folder, more in ((base, "a", {}), (raw, "b", {"base": tmp_path / "a", "sync": True})):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with padiff.capture(model, to=tmp_path / folder, optimizer=optimizer, **more):
            for _ in range(2):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
    result = padiff.compare_dumps(tmp_path / "a", tmp_path / "b")
    if not where:
        assert result.aligned, str(result)
        return
    assert [(one.raw_path, one.phase) for one in result.divergences] == [(f"2.{where}", "backward")], str(result)
    assert result.divergences[0].comparison.step == 0
