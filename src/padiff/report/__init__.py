"""One outcome, several renderings. Each is loaded when it is asked for: most runs end in a line of a log."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from padiff.report.html import to_html as to_html
    from padiff.report.json import load as load
    from padiff.report.json import to_json as to_json
    from padiff.report.junit import to_junit as to_junit
    from padiff.report.make import report_of as report_of
    from padiff.report.markdown import to_markdown as to_markdown
    from padiff.report.picture import picture_of as picture_of
    from padiff.report.record import Report as Report
    from padiff.report.saving import save as save
    from padiff.report.terminal import render as render
    from padiff.report.terminal import show as show

_HOME_OF = {
    "Report": "record",
    "load": "json",
    "picture_of": "picture",
    "render": "terminal",
    "report_of": "make",
    "save": "saving",
    "show": "terminal",
    "to_html": "html",
    "to_json": "json",
    "to_junit": "junit",
    "to_markdown": "markdown",
}
__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"padiff.report.{_HOME_OF[name]}"), name)
