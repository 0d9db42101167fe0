"""The comparisons as a table of pandas."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from padiff.errors import NotAvailableError
from padiff.records import Comparison
from padiff.report import words

COLUMNS = (
    *("step", "phase", "role", "base_path", "raw_path", "base_kind", "raw_kind", "name", "base_form", "raw_form"),
    *("verdict", "reason", "message", "relative_error", "ratio", "allowed", "predicted"),
    *("size", "mismatched", "max_abs", "mean_abs", "max_rel", "rmse", "base_rms", "cosine", "max_ulp"),
)


def to_dataframe(comparisons: Iterable[Comparison]) -> Any:
    """One row for each comparison, in order."""
    try:
        import pandas
    except ImportError:
        raise NotAvailableError(
            "to_dataframe needs pandas, which is not installed", "pip install 'padiff[pandas]'"
        ) from None
    rows = [_row(one) for one in comparisons]
    return pandas.DataFrame(rows, columns=list(COLUMNS))


def _row(one: Comparison) -> tuple[Any, ...]:
    outcome = one.outcome
    found: dict[str, Any] = {} if outcome.numbers is None else outcome.numbers.to_dict()
    found |= {"base_form": one.forms[0], "raw_form": one.forms[1], "relative_error": words.relative(outcome)}
    for record in (one, outcome):
        found |= {name: getattr(record, name) for name in COLUMNS if hasattr(record, name)}
    return tuple(found.get(name) for name in COLUMNS)
