"""The page as text: everything embedded, nothing fetched, nothing of a model as markup."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from padiff.report import Report, to_html
from padiff.report.html import MOST_ROWS, embedded, inline
from tests.report.sketches import SKETCHES, diverged, hostile

each = pytest.mark.parametrize("sketch", SKETCHES.values(), ids=SKETCHES)


def data_of(page: str) -> Any:
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    return json.loads(found, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


@each
def test_one_file(sketch: Callable[[], Report]) -> None:
    page = to_html(sketch())
    assert page.count("<script") == page.count("</script>") == 3
    assert "{{" not in page.replace("{{}", "")
    for attribute in re.findall(r'(?:src|href)="([^"]*)"', page):
        assert attribute.startswith(("#", "data:"))
    assert "default-src 'none'" in page


def test_names_stay_text() -> None:
    page = to_html(hostile())
    assert "<title>padiff: TorchModel and Net&lt;script&gt;alert(4)&lt;/script&gt;, diverged</title>" in page
    assert "alert(1)</script>" not in page
    assert "\u2028" not in page
    assert data_of(page)["divergences"][0]["raw_path"] == "</script><script>alert(1)</script>"


def test_embedded_json_opens_and_ends_nothing() -> None:
    wild = {"<!--": "]]> & </SCRIPT> \u2028\u2029"}
    text = embedded(wild)
    assert not set(text) & set("<>&\u2028\u2029")
    assert json.loads(text) == wild


def test_a_report_of_ten_thousand_calls_stays_small() -> None:
    report = diverged(3333, 1600)
    assert len(report.calls) == 10_002
    assert len(to_html(report)) < 10_000_000


def test_beyond_that_inputs_that_agree_are_left_out() -> None:
    report = diverged(4, 2)
    many = replace(report, comparisons=report.comparisons * (MOST_ROWS // len(report.comparisons) + 1))
    page = to_html(many)
    roles = data_of(page)["rows"]["role"]
    verdicts = data_of(page)["rows"]["verdict"]
    assert not any(role == 1 and verdict < 3 for role, verdict in zip(roles, verdicts, strict=True))
    assert any(role == 1 for role in roles)
    assert data_of(page)["notes"] == ["inputs that agree are left out of this page; the JSON report has them"]
    assert len(page) < 10_000_000


def test_in_a_notebook_it_has_a_frame_of_its_own() -> None:
    found = inline(hostile())
    (source,) = re.findall(r'^<iframe [^>]*sandbox="allow-scripts"[^>]* srcdoc="([^"]*)"></iframe>$', found)
    assert html.unescape(source) == to_html(hostile())


def test_a_page_too_long_for_a_notebook_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("padiff.report.html.INLINE", 1000)
    assert inline(diverged()) == (
        "<p>DIVERGED: 44 tensors compared, 35 differ; it starts at one place. "
        "<code>result.save(&#x27;report.html&#x27;)</code> writes the whole report.</p>"
    ).replace("&#x27;", "'")
