"""What a call was given, held against what its partner was given."""

from __future__ import annotations

from dataclasses import replace

from padiff.records import Outcome, Value

_MEASURED = ("float", "bfloat", "complex")


def as_given(base: Value, raw: Value, outcome: Outcome) -> Outcome:
    """The outcome for an input. It may be ones and zeros on one side, trues and falses on the other: how it is used
    shows in what is returned."""
    if outcome.reason != "dtype" or outcome.numbers is None or outcome.numbers.max_abs:
        return outcome
    if base.dtype.startswith(_MEASURED) or raw.dtype.startswith(_MEASURED):
        return outcome
    return replace(outcome, verdict="equal", reason=None)
