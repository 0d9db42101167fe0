"""Which errors are drawn, and that the rest costs nothing."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

import padiff
from padiff.compare.arrays import compare_arrays
from padiff.engine import gallery
from padiff.engine.gallery import Gallery
from padiff.records import Comparison, Outcome, Tolerance

AUTO = Tolerance(mode="auto")
ONES = np.ones((4, 6), "float32")


def compared(error: float, base: Any = ONES) -> tuple[Outcome, Any, Any]:
    raw = base * np.float32(1 + error)
    return compare_arrays(base, raw, AUTO), base, raw


def row(outcome: Outcome) -> Comparison:
    return Comparison("forward", 0, "output", "a", "a", "A", "A", "", outcome)


def test_the_first_and_the_worst_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gallery, "FIRST", 2)
    monkeypatch.setattr(gallery, "WORST", 2)
    found = Gallery()
    errors = [0.01, 0.02, 0.5, 0.1, 0.9, 0.2]
    seen = [compared(error) for error in errors]
    for outcome, base, raw in seen:
        found.see("forward", outcome, base, raw)
    drawn = [one.picture is not None for one in found.hung(row(outcome) for outcome, _, _ in seen)]
    assert drawn == [True, True, True, False, True, False]


def test_one_picture_for_a_tensor_however_often_it_is_met() -> None:
    found = Gallery()
    outcome, base, raw = compared(0.1)
    found.see("forward", outcome, base, raw)
    found.see("forward", outcome, base * np.nan, raw)
    one, other = found.hung([row(outcome), row(outcome)])
    assert one.picture is not None
    assert one.picture is other.picture
    assert one.picture.first[0].base == 1.0


def test_phases_have_room_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gallery, "FIRST", 1)
    monkeypatch.setattr(gallery, "WORST", 1)
    found = Gallery()
    seen = [compared(error) for error in (0.1, 0.3, 0.2, 0.1)]
    for phase, one in zip(("forward", "forward", "forward", "backward"), seen, strict=True):
        found.see(phase, *one)  # type: ignore[arg-type]
    drawn = [one.picture is not None for one in found.hung(row(outcome) for outcome, _, _ in seen)]
    assert drawn == [True, True, False, True]


def test_what_is_too_large_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gallery, "MOST_ELEMENTS", 30)
    found = Gallery()
    seen = [compared(error) for error in (0.1, 0.2, 0.3)]
    for one in seen:
        found.see("forward", *one)
    # 24 elements for the first, 24 for the worst, and nothing is left for the third.
    assert [one.picture is not None for one in found.hung(row(o) for o, _, _ in seen)] == [True, True, False]


def test_other_layouts_are_brought_together() -> None:
    base = np.arange(24, dtype="float32").reshape(4, 6)
    outcome = compare_arrays(base.T, base.T + 1, AUTO)
    found = Gallery()
    found.see("forward", outcome, base, base.T + 1)
    (one,) = found.hung([row(outcome)])
    assert one.picture is not None
    assert (one.picture.extent, one.picture.first[1].index, one.picture.first[1].base) == ((6, 4), (0, 1), 6.0)


class Block(torch.nn.Module):
    def __init__(self, eps: float) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(8, eps=eps)
        self.fc = torch.nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        return x + self.fc(self.norm(x))


X = np.random.default_rng(0).normal(size=(6, 8)).astype("float32")


@pytest.mark.parametrize("tolerance", ["auto", (1e-5, 1e-6)])
def test_every_pair_that_differs_is_drawn(tolerance: Any) -> None:
    torch.manual_seed(0)
    base = torch.nn.Sequential(*(Block(1e-5) for _ in range(3)))
    raw = torch.nn.Sequential(Block(1e-5), Block(1e-1), Block(1e-5))
    result = padiff.compare(base, raw, X, tolerance=tolerance)
    assert result.divergence is not None
    assert result.divergence.raw_path == "1.norm"
    rows = [one for step in result.steps for one in (*step.comparisons, *step.local)]
    differing = [one for one in rows if not one.agrees]
    assert {one.phase for one in differing} == {"forward", "backward", "gradient"}
    assert [one for one in differing if one.picture is None] == []
    for one in differing:
        assert one.picture is not None
        assert one.outcome.numbers is not None
        assert one.picture.size == one.outcome.numbers.size
    assert {one.raw_path for one in rows if one.agrees and one.picture is not None} <= {""}


def test_of_what_agrees_only_the_result_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []

    def noted(base: Any, raw: Any) -> Any:
        drawn.append(raw.shape)

    monkeypatch.setattr(gallery, "picture_of", noted)
    torch.manual_seed(0)
    base = torch.nn.Sequential(*(Block(1e-5) for _ in range(3)))
    raw = copy.deepcopy(base)
    with torch.no_grad():
        for parameter in raw.parameters():
            parameter.copy_(torch.nextafter(parameter, torch.tensor(2.0)))
    result = padiff.compare(base, raw, X, weights="keep")
    assert result.aligned
    forward = [one for one in result.comparisons if (one.phase, one.role) == ("forward", "output")]
    assert {one.outcome.verdict for one in forward} == {"rounding"}
    assert drawn == [(6, 8)]
