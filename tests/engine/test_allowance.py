"""Ops and causes are looked for with what is left of the runs that a step may take."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

import padiff
from padiff.capture.session import Session
from padiff.engine import allowance
from padiff.engine.allowance import FORWARD, MOST, WHOLE, Allowance
from tests.engine.test_suspected import Together, compared


def spent(base: int, raw: int) -> Allowance:
    return Allowance(*(cast("Session", SimpleNamespace(spent=one)) for one in (base, raw)))


def test_it_covers_what_is_left_of_each() -> None:
    left = spent(MOST[0] - WHOLE, MOST[1] - FORWARD)
    assert left.covers(base=WHOLE, raw=FORWARD)
    assert not left.covers(base=WHOLE + 1)
    assert not left.covers(raw=WHOLE)
    left.begin()
    assert left.covers(base=MOST[0], raw=MOST[1])


def two(*, wrong: bool) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(*(Together(wrong=wrong and number in (0, 2)) for number in range(3)))


@pytest.mark.parametrize(("most", "known"), [(MOST, [True, True]), ((11, 6), [True, False])])
def test_places_are_told_without_their_op_where_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, most: tuple[int, int], known: list[bool]
) -> None:
    """The first is watched as it is found; for the second both would run once more."""
    monkeypatch.setattr(allowance, "MOST", most)
    x: Any = torch.linspace(-1, 1, 24).view(3, 8)
    result, called = compared(two(wrong=False), two(wrong=True), x)
    assert isinstance(result, padiff.Result)
    assert [one.raw_path for one in result.divergences] == ["0", "2"]
    assert [one.op is not None for one in result.divergences] == known
    assert called == ([5, 5] if all(known) else [4, 2])  # raw twice more, since a setting differs, and is tried
