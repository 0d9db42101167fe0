"""Gradients that one side clips: the same but for one factor, whatever is allowed."""

from __future__ import annotations

import pytest

from padiff.engine.apart.clipping import by_one_factor
from padiff.records import Comparison, Numbers, Outcome


def gradient(name: str, factor: float, allowed: float, *, size: float = 1.0, cosine: float = 1.0) -> Comparison:
    error = abs(factor - 1) * size
    numbers = Numbers(9, error, error, size, error, size, cosine)
    verdict = "rounding" if error <= allowed else "different"
    outcome = Outcome(verdict, None if verdict == "rounding" else "values", "", numbers, allowed)
    return Comparison("gradient", 2, "parameter", "layer", "layer", "Linear", "Linear", name, outcome)


@pytest.mark.parametrize(
    ("others", "clipped"),
    [
        ([], True),
        ([gradient("loosely", 2.3, 3.0)], True),  # a small gradient beside a large one in a fused projection
        ([gradient("noise", 1.9, 0.1, size=0.01, cosine=0.2)], True),
        ([gradient("right", 1.0, 0.1)], False),
        ([gradient("wrong", 1.7, 0.1)], False),
        ([gradient("turned", 2.3, 0.1, cosine=0.9)], False),
    ],
    ids=lambda value: value[0].name if isinstance(value, list) and value else None,
)
def test_one_factor(others: list[Comparison], clipped: bool) -> None:
    assert by_one_factor([gradient("weight", 2.3, 0.1), *others]) is clipped


def test_nothing_differs() -> None:
    assert not by_one_factor([gradient("weight", 1.0 + 1e-7, 0.1), gradient("bias", 1.0 + 1e-7, 0.1)])
