"""One author drops inside of a module that returns more besides, the other after it: what is wrong is elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import padiff

X = torch.linspace(-2.0, 2.0, 48).reshape(6, 8)


class Mixing(nn.Module):
    """With its dropout, and what it was weighed by."""

    def __init__(self) -> None:
        super().__init__()
        self.weigh, self.merge, self.drop = nn.Linear(8, 8), nn.Linear(8, 8), nn.Dropout(0.3)

    def forward(self, x: Any) -> Any:
        weights = torch.softmax(self.weigh(x), -1)
        return self.drop(self.merge(weights * x)), weights


class Plain(nn.Module):
    """Without."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.out = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        return self.out(torch.softmax(self.gate(x), -1) * x)


class Inside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn, self.ln, self.up, self.down = Mixing(), nn.LayerNorm(8), nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x: Any) -> Any:
        x = x + self.attn(x)[0]
        return x + self.down(torch.tanh(self.up(self.ln(x))))


class After(nn.Module):
    def __init__(self, curve: Any) -> None:
        super().__init__()
        self.mix, self.dropout1 = Plain(), nn.Dropout(0.3)
        self.norm2, self.linear1, self.linear2 = nn.LayerNorm(8), nn.Linear(8, 12), nn.Linear(12, 8)
        self.curve = curve

    def forward(self, x: Any) -> Any:
        x = x + self.dropout1(self.mix(x))
        return x + self.linear2(self.curve(self.linear1(self.norm2(x))))


def models(curve: Any) -> tuple[Any, Any]:
    torch.manual_seed(0)
    base = nn.Sequential(Inside(), Inside(), Inside(), nn.Linear(8, 3))
    return base, nn.Sequential(After(torch.tanh), After(curve), After(torch.tanh), nn.Linear(8, 3))


def test_the_code_that_is_wrong_is_named() -> None:
    assert padiff.compare(*models(torch.tanh), X).aligned
    result = padiff.compare(*models(torch.relu), X)
    assert [(one.raw_path, one.phase) for one in result.divergences] == [("1", "forward")], str(result)


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "both"])
@pytest.mark.parametrize("sync", [False, True], ids=["free", "synchronised"])
def test_apart(sync: bool, backward: bool, tmp_path: Path) -> None:
    for curve, expected in ((torch.tanh, None), (torch.relu, "1")):
        base, raw = models(curve)
        for model, to, options in ((base, "a", {}), (raw, "b", {"base": tmp_path / "a", "sync": sync})):
            with padiff.capture(model, tmp_path / to, overwrite=True, **options):
                out = model(X).square().mean()
                if backward:
                    out.backward()
        found = padiff.compare_dumps(tmp_path / "a", tmp_path / "b").divergence
        assert (found and found.raw_path) == expected, str(found)
