"""The report as JUnit XML, for what reads test results: a case for each module and phase."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence

from padiff.records import Comparison, Divergence
from padiff.report import words
from padiff.report.record import Report

FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML cannot hold in any form."""

Case = tuple[str, str, int]
"""Path of raw's module, phase, step."""


def to_junit(report: Report) -> str:
    """A failure where a difference starts; what merely inherits one is skipped, and says so."""
    name = clean(f"{report.base.name} vs {report.raw.name}")
    suite = ElementTree.Element("testsuite", name=f"padiff {name}")
    places: dict[tuple[str, str, int], Divergence] = {
        (one.raw_path, one.phase, one.step): one for one in report.divergences
    }
    cases: dict[tuple[str, str, int], list[Comparison]] = {}
    for comparison in report.comparisons:
        cases.setdefault((comparison.raw_path, comparison.phase, comparison.step), []).append(comparison)
    for place in places:
        cases.setdefault(place, [])
    for place, comparisons in cases.items():
        _case(suite, report, place, comparisons, places.get(place))
    if report.verdict == "unsure":
        case = ElementTree.SubElement(suite, "testcase", classname="padiff", name="verdict")
        error = ElementTree.SubElement(case, "error", message=clean(words.tally(report)))
        error.text = clean("\n".join(report.notes))
    for what, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(what, str(sum(case.find(tag) is not None for case in suite)))
    suite.set("tests", str(len(suite)))
    if report.created:
        suite.set("timestamp", report.created.split("+")[0])
    whole = ElementTree.Element("testsuites")
    whole.append(suite)
    ElementTree.indent(whole)
    body = ElementTree.tostring(whole, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{body}\n'


def _case(
    suite: ElementTree.Element,
    report: Report,
    place: Case,
    comparisons: Sequence[Comparison],
    divergence: Divergence | None,
) -> None:
    path, phase, step = place
    group = f"padiff.{phase}" if len(report.steps) <= 1 else f"padiff.step{step}.{phase}"
    case = ElementTree.SubElement(suite, "testcase", classname=group, name=clean(words.place(path)))
    wrong = next((one for one in comparisons if not one.agrees), None)
    if divergence is not None:
        message = clean(divergence.comparison.outcome.message)
        failure = ElementTree.SubElement(case, "failure", message=message, type="divergence")
        failure.text = clean(_told(divergence))
    elif wrong is not None and report.divergence is not None:
        first = words.both(report.divergence.base_path, report.divergence.raw_path)
        why = f"differs, and no difference starts here; the first starts at {first}: {wrong.outcome.message}"
        ElementTree.SubElement(case, "skipped", message=clean(why))


def _told(divergence: Divergence) -> str:
    lines = [str(divergence)]
    for side, stack in zip(("base", "raw"), divergence.source, strict=True):
        if stack:
            lines.append(f"{side} {stack[-1].file}:{stack[-1].line}  {stack[-1].text}")
    lines += [f"cause: {cause} ({words.sure(cause)})" for cause in divergence.causes]
    return "\n".join(lines)


def clean(text: str) -> str:
    return FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)
