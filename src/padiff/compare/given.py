"""Where another dtype is no difference, as long as the values are the same: in what is given, and in what is kept."""

from __future__ import annotations

from dataclasses import replace

from padiff.records import Array, Outcome, Value

_MEASURED = ("float", "bfloat", "complex")


def as_given(base: Value, raw: Value, outcome: Outcome) -> Outcome:
    """The outcome for an input. It may be ones and zeros on one side, trues and falses on the other: how it is used
    shows in what is returned."""
    if outcome.reason != "dtype" or outcome.numbers is None or outcome.numbers.max_abs:
        return outcome
    if base.dtype.startswith(_MEASURED) or raw.dtype.startswith(_MEASURED):
        return outcome
    return replace(outcome, verdict="equal", reason=None)


def as_kept(base: Array, raw: Array, outcome: Outcome) -> Outcome:
    """The outcome for a buffer. Whole numbers may be floats on one side: paddle casts them when a model is cast."""
    if outcome.reason != "dtype" or outcome.numbers is None or outcome.numbers.max_abs:
        return outcome
    whole = [array.dtype.kind in "iu" for array in (base, raw)]
    return outcome if all(whole) or not any(whole) else replace(outcome, verdict="equal", reason=None)
