"""Records: made by the thousand, and changed by nobody."""

from __future__ import annotations

import dataclasses

import pytest

from padiff import records
from padiff.records import Numbers, Outcome

RECORDS = [one for one in vars(records).values() if isinstance(one, type) and dataclasses.is_dataclass(one)]


@pytest.mark.parametrize("one", RECORDS, ids=lambda one: one.__name__)
def test_records_are_compared_by_what_they_hold(one: type) -> None:
    assert one.__eq__ is not object.__eq__
    assert one.__hash__ is not None


def test_equal_records_are_one_in_a_set() -> None:
    numbers = Numbers(1, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0)
    pair = [Outcome("equal", None, "equal", dataclasses.replace(numbers)) for _ in range(2)]
    assert pair[0] == pair[1]
    assert len(set(pair)) == 1
