"""The report as one HTML file: no network, nothing beside it, opens from disk."""

from __future__ import annotations

import html
import importlib.resources
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from padiff.records import Comparison, Divergence, Numbers, Outcome, Picture, SourceLine
from padiff.report import words
from padiff.report.plain import written
from padiff.report.record import Report
from padiff.report.slim import slimmer

STYLES = ("uPlot.min.css", "page.css")
SCRIPTS = ("words.js", "data.js", "list.js", "plot.js", "place.js", "detail.js", "page.js")
"""In this order, as one program; what each is for stands at its head."""
PHASES = ("forward", "backward", "gradient", "weight", "buffer")
ROLES = ("output", "input", "loss", "parameter", "buffer")
VERDICTS = ("equal", "rounding", "precision", "different")
MOST_MESSAGES = 2000
"""Comparisons whose message goes into the page; for the others their numbers say it."""
MOST_NUMBERS = 4000
"""Comparisons whose numbers go into the page in full: all of them, or those that differ."""
MOST_BYTES = 9_500_000
"""A longer page leaves out what it can do without."""
MOST_PICTURES = 1_200_000
"""Characters of pictures in a page."""
INLINE = 3_000_000
"""The longest page that is put into a notebook."""


def to_html(report: Report) -> str:
    """The whole page, below 10 MB."""
    found = ""
    for one in slimmer(report):
        found = _page(one, words.tally(report))
        if len(found) * 4 <= MOST_BYTES or len(found.encode()) <= MOST_BYTES:
            break
    return found


def _page(report: Report, tally: str) -> str:
    page = _asset("page.html")
    title = f"padiff: {report.base.name} and {report.raw.name}, {words.VERDICTS[report.verdict].lower()}"
    parts = {
        "TITLE": html.escape(title),
        "STYLE": "\n".join(_asset(name) for name in STYLES),
        "CHARTS": f"/* {_asset('uPlot.LICENSE').strip()} */\n" + _asset("uPlot.iife.min.js"),
        "DATA": embedded(_data(report, tally)),
        "SCRIPT": '"use strict";\n(() => {\n' + "\n".join(_asset(name) for name in SCRIPTS) + "\n})();",
    }
    first, *rest = page.split("{{")
    found = [first]
    for piece in rest:
        name, _, text = piece.partition("}}")
        found += [parts[name], text]
    return "".join(found)


def inline(report: Report) -> str:
    """The page in a frame of its own, for a notebook; a page too long for that is only named."""
    page = to_html(report)
    if len(page) > INLINE:
        told = f"{words.VERDICTS[report.verdict]}: {words.tally(report)}"
        return f"<p>{html.escape(told)}. <code>result.save('report.html')</code> writes the whole report.</p>"
    style = "width:100%;height:720px;border:1px solid #8884;border-radius:6px"
    source = html.escape(page, quote=True)
    return f'<iframe title="padiff report" sandbox="allow-scripts" style="{style}" srcdoc="{source}"></iframe>'


def embedded(data: Any) -> str:
    """JSON that ends no script and opens no tag, whatever it holds."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in ("<", ">", "&", "\u2028", "\u2029"):
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _asset(name: str) -> str:
    return importlib.resources.files("padiff.report").joinpath(f"page/{name}").read_text(encoding="utf-8")


# ------------------------------------------------------------------ what the page is made from


class _Texts:
    """Texts by number, each once."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self.known.setdefault(text, len(self.known))


class _Pictures:
    """Pictures by number, each once: a tensor is what one call returns and the next is given."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}
        self._length = 0

    def __call__(self, picture: Picture | None) -> int:
        """Its number; -1 where there is none, or no room for it."""
        if picture is None:
            return -1
        text = json.dumps(written(picture), allow_nan=False, separators=(",", ":"))
        if text not in self.known and self._length + len(text) <= MOST_PICTURES:
            self._length += len(text)
            self.known[text] = len(self.known)
        return self.known.get(text, -1)


def _data(report: Report, tally: str) -> dict[str, Any]:
    """The report in columns, so that thousands of calls stay small."""
    texts = _Texts()
    stacks: dict[tuple[int, ...], int] = {}
    data: dict[str, Any] = {
        "verdict": report.verdict,
        "headline": words.VERDICTS[report.verdict].capitalize(),
        "tally": tally,
        "tolerance": str(report.tolerance),
        "mode": report.tolerance.mode,
        "coverage": dict(report.coverage),
        "notes": list(report.notes),
        "created": report.created,
        "environment": written(report.environment),
        "steps": list(report.steps),
        "phases": PHASES,
        "roles": ROLES,
        "verdicts": VERDICTS,
    }
    for name, side in (("base", report.base), ("raw", report.raw)):
        data[name] = {
            "name": side.name,
            "framework": side.framework,
            "version": side.version,
            "environment": dict(side.environment),
            "modules": [
                [texts(one.path), texts(one.text), texts(_json(one.settings)), texts(_json(one.tensors))]
                for one in side.modules
            ],
        }
    data["divergences"] = [_divergence(one) for one in report.divergences]
    data["calls"] = {
        "step": [call.step for call in report.calls],
        "raw": [call.raw_call for call in report.calls],
        "parent": [call.parent for call in report.calls],
        "paths": [[texts(call.base_path), texts(call.raw_path)] for call in report.calls],
        "kinds": [[texts(call.base_kind), texts(call.raw_kind)] for call in report.calls],
        "occurrence": [call.occurrence for call in report.calls],
        "stacks": [
            [stacks.setdefault(stack, len(stacks)) for stack in (call.base_stack, call.raw_stack)]
            for call in report.calls
        ],
    }
    pictures = _Pictures()
    for name, rows in (("rows", report.comparisons), ("local", report.local)):
        data[name] = _columns(rows, texts, pictures, report.tolerance.mode)
    data["pictures"] = list(pictures.known)
    data["unmatched"] = [[one.side, one.path, one.kind, one.why, one.inside] for one in report.unmatched]
    data["weights"] = [
        [one.path, one.sources, list(one.shape), one.evidence, one.confidence, one.written, list(one.alternatives)]
        for one in report.weights
    ]
    data["stacks"] = list(stacks)
    data["frames"] = [[texts(one.file), one.line, texts(one.function)] for one in report.frames]
    data["code"] = {file: dict(lines) for file, lines in report.code.items()}
    data["texts"] = list(texts.known)
    return data


def _divergence(one: Divergence) -> dict[str, Any]:
    outcome = one.comparison.outcome
    found: dict[str, Any] = written(one)
    found["where"] = words.where(one)
    found["bad"] = words.how_bad(outcome)
    found["tensor"] = words.tensor(one.comparison)
    found["sure"] = [words.sure(cause) for cause in one.causes]
    found["marked"] = [_marked(stack) for stack in one.source]
    found["relative"] = _number(words.relative(outcome))
    return found


def _marked(stack: Sequence[SourceLine]) -> list[int]:
    return sorted(words.marked(stack))


def _columns(rows: Sequence[Comparison], texts: _Texts, pictures: _Pictures, mode: str) -> dict[str, Any]:
    """The comparisons in columns; what only few of them have, by their place."""
    messages = 0
    numbered = 0
    found: dict[str, Any] = {name: [] for name in COLUMNS}
    found |= {"paths": {}, "kinds": {}, "pictures": {}, "numbers": {}, "sources": {}}
    for place, one in enumerate(rows):
        if one.raw_call < 0:
            found["paths"][place] = [texts(one.base_path), texts(one.raw_path)]
            found["kinds"][place] = [texts(one.base_kind), texts(one.raw_kind)]
        if one.sources:
            found["sources"][place] = texts(" + ".join(one.sources))
        number = pictures(one.picture)
        if number >= 0:
            found["pictures"][place] = number
        outcome, numbers = one.outcome, one.outcome.numbers
        if numbers is not None and numbered < MOST_NUMBERS and (len(rows) <= MOST_NUMBERS or not outcome.agrees):
            found["numbers"][place] = _in_full(outcome, numbers)
            numbered += 1
        message = -1
        if outcome.verdict == "different" and (messages < MOST_MESSAGES or numbers is None):
            message = texts(outcome.message)
            messages += 1
        values: Mapping[str, Any] = {
            "phase": PHASES.index(one.phase),
            "step": one.step,
            "role": ROLES.index(one.role),
            "call": one.raw_call,
            "name": texts(one.name),
            "forms": texts(_forms(one)),
            "verdict": VERDICTS.index(outcome.verdict),
            "message": message,
            "relative": _number(words.relative(outcome)),
            "ratio": _number(outcome.ratio) if outcome.reason != "nonfinite" else None,
            "excess": _number(words.excess(outcome, mode)) if outcome.verdict != "equal" else None,
            "allowed": _number(_share(outcome.allowed, one)) if mode == "auto" else None,
            "predicted": _number(_share(outcome.predicted, one)),
        }
        for name in COLUMNS:
            found[name].append(values[name])
    return found


COLUMNS = (
    *("phase", "step", "role", "call", "name", "forms", "verdict", "message"),
    *("relative", "ratio", "excess", "allowed", "predicted"),
)


def _in_full(outcome: Outcome, numbers: Numbers) -> list[Any]:
    """In the order in which the page reads them."""
    worst = None if numbers.worst is None or numbers.base_worst is None else list(numbers.worst)
    return [
        *(_number(value, 6) for value in (numbers.rmse, numbers.base_rms, numbers.max_abs, numbers.mean_abs)),
        *(_number(value, 6) for value in (outcome.allowed, outcome.predicted, numbers.max_rel, numbers.max_ulp)),
        *(numbers.size, numbers.mismatched, written(round(numbers.cosine, 12)), worst),
        *((written(numbers.base_worst), written(numbers.raw_worst)) if worst is not None else (None, None)),
        outcome.layout,
    ]


def _json(facts: Mapping[str, Any]) -> str:
    return json.dumps(written(facts), ensure_ascii=False, allow_nan=False, separators=(",", ":")) if facts else ""


def _forms(one: Comparison) -> str:
    base, raw = one.forms
    return raw if base == raw or not base else f"{base} / {raw}" if raw else base


def _share(bound: float | None, one: Comparison) -> float | None:
    """A bound on the root mean square error, relative to base's as the error itself is."""
    numbers = one.outcome.numbers
    if bound is None or numbers is None or not numbers.base_rms > 0:
        return None
    return bound / numbers.base_rms


def _number(value: float | None, digits: int = 3) -> Any:
    """A few digits, or a word where JSON has no number for it."""
    if value is None:
        return None
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf"
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() and abs(short) < 1e6 else short
