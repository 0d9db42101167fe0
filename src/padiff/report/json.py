"""The report as JSON, and back."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from padiff.errors import ReportError
from padiff.report.plain import read, written
from padiff.report.record import SCHEMA, Report

FORMAT = "padiff-report"
LONG = ("comparisons", "local", "calls", "weights", "frames", "unmatched")
"""Lists with one line each; their members leave out what holds its default."""


def to_json(report: Report) -> str:
    """Strict JSON of the published schema."""
    head = {"format": FORMAT, "schema": SCHEMA, "verdict": report.verdict, "aligned": report.aligned}
    lines = [f"{_line(name)}: {_line(value)}" for name, value in head.items()]
    first = None if report.divergence is None else written(report.divergence)
    lines.append(f'"divergence": {json.dumps(first, indent=1, ensure_ascii=False, allow_nan=False)}')
    for one in dataclasses.fields(report):
        if one.name != "verdict":
            lines.append(f"{_line(one.name)}: {_member(one.name, getattr(report, one.name))}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _member(name: str, value: Any) -> str:
    if name in LONG:
        inside = ",\n".join(_line(written(item, slim=True)) for item in value)
        return f"[\n{inside}\n]" if inside else "[]"
    if name in ("base", "raw"):
        modules = ",\n".join(_line(written(item, slim=True)) for item in value.modules)
        rest = _line({key: item for key, item in written(dataclasses.replace(value, modules=())).items() if item != []})
        return f'{rest[:-1]}, "modules": [\n{modules}\n]}}'
    return json.dumps(written(value), indent=1, ensure_ascii=False, allow_nan=False)


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def load(source: str | Path) -> Report:
    """A saved report: the path of a file, or the JSON itself."""
    text = source if isinstance(source, str) and source.lstrip().startswith("{") else _text(Path(source))
    try:
        data = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ReportError(f"this is not JSON: {error}", "give a file that result.save wrote") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ReportError(
            "this JSON is not a report of padiff: its member 'format' is missing",
            "give a file that result.save wrote",
        )
    schema = data.get("schema")
    if schema != SCHEMA or isinstance(schema, bool):
        raise ReportError(f"the report has schema {schema!r}, this padiff reads {SCHEMA}", "pip install -U padiff")
    found = read(Report, data, "")
    assert isinstance(found, Report)
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ReportError(f"{str(path)!r} cannot be read: {error}") from None
