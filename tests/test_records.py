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


@pytest.mark.parametrize(
    ("many", "few", "expected"),
    [
        ([48, 4, 12], [48, 48], 3),
        ([2, 3], [2, 3], 2),
        ([2, 3, 1], [6], 2),
        ([3, 2, 4], [2, 12], None),
        ([2, 3], [6, 2], None),
        ([2, 3], [], 0),
    ],
)
def test_neighbouring_axes_are_merged(many: list[int], few: list[int], expected: int | None) -> None:
    assert records.merged_axes(many, few) == expected
