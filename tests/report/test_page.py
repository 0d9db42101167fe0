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
from padiff.report.html import _page, embedded, inline
from padiff.report.slim import slimmer
from padiff.report.words import tally
from tests.report.sketches import SKETCHES, aligned, diverged, hostile

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


def test_a_longer_one_leaves_out_what_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    report = diverged(40, 20)
    earlier = aligned(40)
    two = replace(
        report,
        comparisons=(*earlier.comparisons, *(replace(one, step=1) for one in report.comparisons)),
        calls=(*earlier.calls, *(replace(one, step=1) for one in report.calls)),
        local=tuple(replace(one, step=1) for one in report.local),
        divergences=tuple(replace(one, step=1) for one in report.divergences),
    )
    lengths = [len(_page(one, "").encode()) for one in slimmer(two)]
    assert lengths == sorted(lengths, reverse=True)
    assert len(set(lengths)) == 5
    notes = [
        "inputs that agree are left out of this page",
        "earlier steps are left out of this page",
        "what agrees when it is fed base's tensors is left out of this page, and so are all but 2000 weights",
        "everything that agrees is left out of this page",
    ]
    wrong = sum(not one.agrees for one in two.comparisons)
    for level, length in enumerate(lengths):
        monkeypatch.setattr("padiff.report.html.MOST_BYTES", length + 500)
        data = data_of(to_html(two))
        assert data["notes"] == [f"{note}; the JSON report has everything" for note in notes[:level]]
        assert data["rows"]["verdict"].count(3) == wrong
        assert data["tally"] == tally(two)


def test_a_tensor_is_drawn_once_however_often_it_is_met() -> None:
    report = diverged()
    data = data_of(to_html(report))
    assert len(data["pictures"]) == 1
    assert len(data["rows"]["pictures"]) > 5
    assert set(data["rows"]["pictures"].values()) == {0}


def test_there_is_so_much_room_for_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("padiff.report.html.MOST_PICTURES", 100)
    data = data_of(to_html(diverged()))
    assert (data["pictures"], data["rows"]["pictures"]) == ([], {})
    assert data["divergences"][0]["comparison"]["picture"]["size"] == 64


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
