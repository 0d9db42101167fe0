"""The report as JSON: what is written fits the published schema and is read back as it was."""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from padiff.errors import PadiffError, ReportError
from padiff.report import Report, load, save, to_json
from padiff.report.published import text
from tests.json_schema import fits
from tests.report.sketches import SKETCHES, diverged

SCHEMA = json.loads(importlib.resources.files("padiff.report").joinpath("schema/report-1.schema.json").read_bytes())
each = pytest.mark.parametrize("sketch", SKETCHES.values(), ids=SKETCHES)


def strictly(written: str) -> Any:
    """JSON as every reader knows it: without NaN and Infinity."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(written, parse_constant=refuse)


@each
def test_round_trip(sketch: Callable[[], Report]) -> None:
    written = to_json(sketch())
    assert to_json(load(written)) == written


def test_read_back_it_is_the_same() -> None:
    assert load(to_json(diverged())) == diverged()


@each
def test_what_is_written_fits_the_schema(sketch: Callable[[], Report]) -> None:
    assert fits(SCHEMA, strictly(to_json(sketch())))


def test_so_does_the_report_as_plain_data() -> None:
    assert fits(SCHEMA, diverged().to_dict())
    assert load(json.dumps(diverged().to_dict())) == diverged()


def test_the_published_schema_is_that_of_the_records() -> None:
    published = importlib.resources.files("padiff.report").joinpath("schema/report-1.schema.json")
    assert published.read_text(encoding="utf-8") == text()


def test_from_a_file(tmp_path: Path) -> None:
    save(diverged(), tmp_path / "report.json")
    assert load(tmp_path / "report.json") == load(str(tmp_path / "report.json")) == diverged()


def test_what_people_look_for_first_stands_first() -> None:
    found = strictly(to_json(diverged()))
    assert list(found)[:5] == ["format", "schema", "verdict", "aligned", "divergence"]
    assert (found["verdict"], found["aligned"], found["schema"]) == ("diverged", False, 1)
    assert found["divergence"] == found["divergences"][0]
    assert found["divergence"]["raw_path"] == "blocks.1.norm"
    assert found["divergence"]["causes"][0]["name"] == "eps"


def changed(change: Callable[[Any], object]) -> str:
    found = json.loads(to_json(diverged()))
    change(found)
    return json.dumps(found)


WRONG: dict[str, tuple[str, str]] = {
    "no JSON": ("{", "this is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
    "foreign": ('{"a": 1}', "this JSON is not a report of padiff: its member 'format' is missing"),
    "newer": (changed(lambda r: r.update(schema=2)), "the report has schema 2, this padiff reads 1"),
    "a member less": (changed(lambda r: r.pop("base")), "the report has no member 'base' in its top"),
    "a text for a number": (
        changed(lambda r: r["comparisons"][0].update(step="x")),
        "the report holds 'x' in comparisons[0].step, expected a whole number",
    ),
    "an unknown word": (
        changed(lambda r: r["comparisons"][3].update(phase="sideways")),
        "the report holds 'sideways' in comparisons[3].phase, "
        "expected one of forward, backward, gradient, weight, buffer",
    ),
    "a list too short": (
        changed(lambda r: r["divergences"][0].update(source=[[]])),
        "the report holds [[]] in divergences[0].source, expected 2 members",
    ),
    "an object for a list": (
        changed(lambda r: r.update(calls={})),
        "the report holds {} in calls, expected a list",
    ),
}


@pytest.mark.parametrize(("written", "message"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_read_is_named(written: str, message: str) -> None:
    with pytest.raises(ReportError) as caught:
        load(written)
    assert caught.value.message == message


def test_a_missing_file_is_named() -> None:
    with pytest.raises(PadiffError, match=r"'no\.json' cannot be read"):
        load("no.json")
