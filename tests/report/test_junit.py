"""The report as JUnit XML."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace

import pytest

from padiff.report import Report, to_junit
from tests.report.sketches import SKETCHES, aligned, diverged, hostile


def suite_of(report: Report) -> ElementTree.Element:
    found = ElementTree.fromstring(to_junit(report)).find("testsuite")
    assert found is not None
    return found


@pytest.mark.parametrize("sketch", SKETCHES.values(), ids=SKETCHES)
def test_counts_are_those_of_the_cases(sketch: Callable[[], Report]) -> None:
    suite = suite_of(sketch())
    cases = suite.findall("testcase")
    assert int(suite.attrib["tests"]) == len(cases)
    for what, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert int(suite.attrib[what]) == sum(case.find(tag) is not None for case in cases)
    names = [(case.attrib["classname"], case.attrib["name"]) for case in cases]
    assert len(set(names)) == len(names)


def test_one_failure_where_it_starts() -> None:
    suite = suite_of(diverged())
    (failed,) = [case for case in suite if case.find("failure") is not None]
    assert (failed.attrib["classname"], failed.attrib["name"]) == ("padiff.forward", "blocks.1.norm")
    failure = failed.find("failure")
    assert failure is not None
    assert failure.attrib["message"] == "rms error 3.0e-03, allowed 1.0e-05 (auto)"
    assert "raw port/model.py:11  h = self.norm(x)" in (failure.text or "")
    assert "cause: eps: eps is 0.001 in raw" in (failure.text or "")
    inherited = next(case for case in suite if case.attrib["name"] == "blocks.1.fc")
    skipped = inherited.find("skipped")
    assert skipped is not None
    assert skipped.attrib["message"].startswith(
        "differs, and no difference starts here; the first starts at blocks.1.norm"
    )
    before = next(case for case in suite if case.attrib["name"] == "blocks.0.fc")
    assert list(before) == []


def test_aligned_has_no_failure() -> None:
    suite = suite_of(aligned())
    assert [suite.attrib[name] for name in ("failures", "errors", "skipped")] == ["0", "0", "0"]
    assert suite.attrib["timestamp"] == "2026-01-02T03:04:05"


def test_not_sure_is_an_error() -> None:
    suite = suite_of(SKETCHES["unsure"]())
    error = suite.find("testcase/error")
    assert error is not None
    assert error.text == "nothing was compared"


def test_names_stay_text_and_what_xml_cannot_hold_is_replaced() -> None:
    suite = suite_of(hostile())
    (failed,) = [case for case in suite if case.find("failure") is not None]
    assert failed.attrib["name"] == "</script><script>alert(1)</script>"
    assert "a | b `c` & <d>\ufffd\u2028]]>" in (failed.findtext("failure") or "")


def test_steps_are_told_apart() -> None:
    first = diverged()
    later = tuple(replace(one, step=1) for one in aligned().comparisons)
    suite = suite_of(replace(first, comparisons=(*later, *first.comparisons)))
    assert {case.attrib["classname"].split(".")[1] for case in suite} == {"step0", "step1"}
