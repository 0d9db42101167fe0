"""What is left of gradients that differ only when raw is fed base's tensors."""

from __future__ import annotations

import numpy as np
import pytest

from padiff.compare.arrays import compare_arrays
from padiff.engine.second_look import agreeing_by_themselves
from padiff.records import Comparison, Tolerance

VALUES = np.linspace(1, 2, 64, dtype="float32")


def gradient(path: str, off: float, allowed: float, size: float = 1.0) -> Comparison:
    """Of a parameter, off by a share of it where so much is predicted."""
    values = VALUES * np.float32(size)
    outcome = compare_arrays(values, values * np.float32(1 + off), Tolerance(mode="auto", predicted=allowed))
    return Comparison("gradient", 0, "parameter", path, path, "Linear", "Linear", "weight", outcome)


FED = [gradient("a", 1e-3, 0.0), gradient("b", 0.0, 0.0)]


@pytest.mark.parametrize(
    ("free", "agree"),
    [
        ([gradient("a", 1e-6, 1e-6), gradient("b", 0.0, 0.0)], True),
        ([gradient("a", 1e-6, 1e-6), gradient("b", 1e-3, 0.0)], False),  # something is wrong: it may be this one
        ([gradient("a", 0.1, 1.0), gradient("b", 0.0, 0.0)], False),  # so much is predicted that it says nothing
        ([gradient("a", 0.1, 1e-8, 1e-9), gradient("b", 0.0, 0.0)], True),  # zero by rights: last digits are left
        ([gradient("b", 0.0, 0.0)], False),
        ([], False),
    ],
)
def test_gradients_that_agree_when_raw_runs_by_itself(free: list[Comparison], agree: bool) -> None:
    assert [one.agrees for one in FED] == [False, True]
    found = list(agreeing_by_themselves(FED, free))
    assert [one.agrees for one in found] == [agree, True]
    assert ("not so when raw runs by itself" in found[0].outcome.message) == agree
