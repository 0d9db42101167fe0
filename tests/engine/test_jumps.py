"""A number on the jump of a derivative is told from a fault, in dumps of runs that nobody can run again."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import padiff

torch = pytest.importorskip("torch")
nn = torch.nn


class Kinked(nn.Module):  # type: ignore[misc, name-defined]
    """Adds a table before its ReLU, which may put an element on the other side of zero."""

    def __init__(self, module: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 16)
        self.act = nn.ReLU() if module else None
        self.norm = nn.Identity()
        self.wrong = False

    def forward(self, x: Any, table: Any) -> Any:
        h = self.norm(self.first(x) + table)
        if self.wrong:
            h = h + 0.2 * (h - h.detach())  # the same numbers, another gradient
        h = torch.relu(h) if self.act is None else self.act(h)
        return self.last(h)


def record(model: Any, to: Path, table: Any) -> None:
    x = torch.linspace(-1, 1, 64).reshape(4, 16)
    with padiff.capture(model, to, overwrite=True):
        model(x, table).square().mean().backward()


@pytest.mark.parametrize("module", [True, False], ids=["a module", "a function"])
def test_one_element_on_the_other_side(module: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Kinked(module)
    x = torch.linspace(-1, 1, 64).reshape(4, 16)
    table = torch.randn(4, 16)
    table[2, 5] = -float(model.first(x)[2, 5].detach()) + 2e-7
    record(model, tmp_path / "a", table)
    table[2, 5] -= 4e-7
    record(model, tmp_path / "b", table)
    values = [padiff.load(tmp_path / to).step(0).parameter_gradients["first.weight"] for to in "ab"]
    assert all(value is not None for value in values)
    assert not np.allclose(*(value.numpy() for value in values if value is not None), rtol=1e-3, atol=1e-6)
    result = padiff.compare_dumps(tmp_path / "a", tmp_path / "b")
    assert result.aligned, str(result)
    assert any("jump of a derivative" in note for note in result.notes)


def test_a_wrong_gradient_is_still_found(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Kinked(True)
    record(model, tmp_path / "a", torch.zeros(4, 16))
    model.wrong = True
    record(model, tmp_path / "b", torch.zeros(4, 16))
    found = padiff.compare_dumps(tmp_path / "a", tmp_path / "b").divergence
    assert found is not None and found.phase == "backward"


def test_an_optimizer_is_not_excused(tmp_path: Path) -> None:
    """Only weights whose gradients fell to the other side may differ."""
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 64).reshape(4, 16)
    table = torch.randn(4, 16)
    first = Kinked(True)
    table[2, 5] = -float(first.first(x)[2, 5].detach()) + 2e-7
    for to, rate, nudge in (("a", 0.1, 0.0), ("b", 0.2, 4e-7)):
        model = copy.deepcopy(first)
        optimizer = torch.optim.SGD(model.parameters(), rate)
        moved = table.clone()
        moved[2, 5] -= nudge
        with padiff.capture(model, tmp_path / to, optimizer=optimizer):
            model(x, moved).square().mean().backward()
            optimizer.step()
    found = padiff.compare_dumps(tmp_path / "a", tmp_path / "b").divergence
    assert found is not None and found.phase == "weight"
    assert ("lr", 0.1, 0.2) in found.settings
