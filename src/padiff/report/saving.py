"""Writes a report to a file; the ending says the form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from padiff.errors import ArgumentError
from padiff.report.html import to_html
from padiff.report.json import to_json
from padiff.report.junit import to_junit
from padiff.report.markdown import to_markdown
from padiff.report.record import Report
from padiff.report.terminal import render

FORMS: dict[str, Callable[[Report], str]] = {
    ".html": to_html,
    ".json": to_json,
    ".xml": to_junit,
    ".md": to_markdown,
    ".txt": render,
}


def form_of(path: str | Path) -> Callable[[Report], str]:
    """What renders a file of this name; raises ArgumentError for an ending that says nothing."""
    target = Path(path)
    form = FORMS.get(target.suffix.lower())
    if form is None:
        known = ", ".join(FORMS)
        raise ArgumentError(
            f"path: {str(path)!r} ends in {target.suffix!r}, expected one of {known}", "name it report.html"
        )
    return form


def save(report: Report, path: str | Path) -> None:
    """Write the report beside its name first, so that a file is there whole or not at all."""
    form, target = form_of(path), Path(path)
    data = form(report).encode("utf-8", "backslashreplace")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    partial.write_bytes(data)
    partial.replace(target)
